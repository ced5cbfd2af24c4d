// Download weights in pieces of odd sizes, with byte streams and without, as requested line by line.
//
//   in (stdin), one per line:   { byteStreams, pieces: [bytes...], breaks, slow, backlog, bytes, chunk_bytes, chunks_sha256 }
//   out (stdout), one per line: { chunks: [[start, data, isHashed]...], mostBuffers, progress, error }
//
// If `slow` is true, each buffer is given back a millisecond later. `mostBuffers` is the largest number that is away at once.
// `backlog` is that of a thread which takes the chunks, or null. `progress` is the bytes that were reported.

import { hashOf, streamWeights } from "../../runtime_js/weights.js";
import { answerLines } from "./answer_lines.mjs";

await answerLines(async ({ byteStreams, pieces, breaks, slow, backlog, ...file }) => {
  const open = async () => {
    const type = byteStreams ? { type: "bytes" } : {};
    const pull = (controller) => {
      const piece = pieces.shift();
      if (piece) return controller.enqueue(Uint8Array.from(piece));
      if (breaks) return controller.error(new Error("reset"));
      controller.close();
      controller.byobRequest?.respond(0);
    };
    return new Response(new ReadableStream({ ...type, pull }));
  };

  const chunks = [];
  let progress = 0;
  let away = 0;
  let mostBuffers = 0;
  async function returnLater(buffer) {
    const copy = structuredClone(buffer, { transfer: [buffer] });
    mostBuffers = Math.max(mostBuffers, ++away);
    await new Promise((resolve) => setTimeout(resolve, 1));
    away--;
    return copy;
  }
  const take = (data, start, isHashed) => {
    chunks.push([start, [...data], isHashed]);
    return slow || !isHashed ? answer(data, isHashed) : undefined;
  };
  async function answer(data, isHashed) {
    const hash = isHashed ? null : await hashOf(data);
    return { buffer: slow ? await returnLater(data.buffer) : data.buffer, hash };
  }
  const count = (bytes) => (progress += bytes);
  const readBacklog = backlog === null ? undefined : () => backlog;
  const error = await streamWeights({ base: { open }, onBytes: count }, { path: "w", ...file }, take, null, readBacklog).then(
    () => null,
    ({ name, message }) => `${name}: ${message}`,
  );
  return { chunks, mostBuffers, progress, error };
});
