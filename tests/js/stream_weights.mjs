// Download weights in pieces of odd sizes, with byte streams and without.
//
//   in (argv[2]):  { byteStreams, pieces: [bytes...], breaks, slow, backlog, bytes, chunk_bytes, chunks }
//   out (stdout):  { chunks: [[start, data, verified]...], most, told, error }
//
// `slow`: buffers are taken away and given back a millisecond later; `most` of them at once. `backlog`: of a thread that
// takes them, if there is one.

import { streamWeights } from "../../runtime_js/weights.js";

const { byteStreams, pieces, breaks, slow, backlog, ...file } = JSON.parse(process.argv[2]);

globalThis.fetch = async () => {
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
let told = 0;
let away = 0;
let most = 0;
async function keep(buffer) {
  const kept = structuredClone(buffer, { transfer: [buffer] });
  most = Math.max(most, ++away);
  await new Promise((resolve) => setTimeout(resolve, 1));
  away--;
  return kept;
}
const take = (data, start, verified) => {
  chunks.push([start, [...data], verified]);
  return slow ? keep(data.buffer) : undefined;
};
const count = (bytes) => (told += bytes);
const behind = backlog === null ? undefined : () => backlog;
const error = await streamWeights(new URL("http://models/"), { path: "w", ...file }, take, count, null, behind).then(
  () => null,
  ({ name, message }) => `${name}: ${message}`,
);
process.stdout.write(JSON.stringify({ chunks, most, told, error }));
