// The differences between browsers and Node: shared memory, messages to the thread that started a worker, reading a URL.
// Node's modules come from `process.getBuiltinModule`, because bundlers would try to bundle imports of them.

/** @import { MessageDoor } from "./types.d.ts" */

/** The version of webmlc that this runtime is a part of. A page does not use workers of another one. */
export const RUNTIME_VERSION = "0.2.0";

/** Returns a module of Node by name. Undefined in browsers. @type {((name: string) => any) | undefined} */
export const builtin = /** @type {any} */ (globalThis).process?.getBuiltinModule;

export const isNode = builtin !== undefined;

/** The base of relative URLs: the address of the page, or in Node the working folder. */
export const here = () => (builtin ? builtin("node:url").pathToFileURL("./").href : location.href);

const FILE_CHUNK_BYTES = 1 << 16; // read at once for a reader without buffers of its own

let holds = 0; // the calls of `holdProcess` that no `releaseProcess` has undone
/** @type {any} Keeps the process alive while there are holds. Starting one for each run would take longer than a small model. */
let aliveTimer = null;

/** Keep a Node process alive until `releaseProcess`. The runtime's workers do not keep it alive. */
export function holdProcess() {
  if (!builtin || holds++) return;
  aliveTimer ??= builtin("node:timers").setInterval(() => {}, 2 ** 30);
  aliveTimer.ref();
}

/** Undo a `holdProcess`. */
export function releaseProcess() {
  if (builtin && !--holds) aliveTimer.unref();
}

/**
 * Keep a Node process alive until the promise settles.
 * @template T @param {Promise<T>} promise @returns {Promise<T>}
 */
export function keepAlive(promise) {
  if (!builtin) return promise;
  holdProcess();
  return promise.finally(releaseProcess);
}

/** The reason why threads cannot share memory, or "". Some hosts isolate pages but have no SharedArrayBuffer. */
export const sharingObstacle = !(isNode || globalThis.crossOriginIsolated)
  ? "the page is not cross-origin isolated: serve it with Cross-Origin-Opener-Policy: same-origin and " +
    "Cross-Origin-Embedder-Policy: require-corp to use more"
  : typeof SharedArrayBuffer === "undefined"
    ? "this host has no SharedArrayBuffer"
    : "";

export const canShareMemory = !sharingObstacle;

/**
 * Called in a worker: the connection to the thread that started the worker.
 * @returns {MessageDoor}
 */
export function parentPort() {
  if (builtin) {
    const port = builtin("node:worker_threads").parentPort;
    return { post: (message, transfer) => port.postMessage(message, transfer), listen: (handler) => port.on("message", handler) };
  }
  const scope = /** @type {any} */ (globalThis);
  return {
    post: (message, transfer = []) => scope.postMessage(message, transfer),
    listen: (handler) => scope.addEventListener("message", (/** @type {MessageEvent} */ event) => handler(event.data)),
  };
}

/** Decompress data in the format of zlib. @param {ArrayBuffer} data @returns {Promise<ArrayBuffer>} */
export async function inflate(data) {
  if (!builtin) return new Response(new Blob([data]).stream().pipeThrough(new DecompressionStream("deflate"))).arrayBuffer();
  const { buffer, byteOffset, byteLength } = builtin("node:zlib").inflateSync(data);
  return buffer.slice(byteOffset, byteOffset + byteLength);
}

/**
 * A stream of a file of Node. Bytes are read into the buffers of the reader: the stream of a Blob would leave a copy of the file
 * to the collector of garbage.
 * @param {() => Promise<any>} open  called for the first bytes, so that a stream that nobody reads holds no file open
 * @param {number} size  bytes
 * @returns {ReadableStream<Uint8Array<ArrayBuffer>>}
 */
function streamOf(open, size) {
  /** @type {any} */
  let file = null;
  let position = 0;
  return new ReadableStream({
    type: "bytes",
    autoAllocateChunkSize: Math.min(size, FILE_CHUNK_BYTES) || 1,
    async pull(controller) {
      file ??= await open();
      const request = /** @type {ReadableStreamBYOBRequest} */ (controller.byobRequest);
      const { bytesRead } = await file.read(request.view);
      position += bytesRead;
      if (bytesRead) request.respond(bytesRead);
      if (bytesRead && position < size) return;
      await file.close();
      controller.close();
      controller.byobRequest?.respond(0); // to a reader that waits for more
    },
    cancel: () => file?.close(),
  });
}

/**
 * Fetch `url`; Node also reads files. If a browser may not fetch the URL, the error says why, which the browser's own error does
 * not.
 * @param {URL} url
 * @param {AbortSignal} [signal]  ends a download
 * @returns {Promise<Response>}
 */
export async function open(url, signal) {
  if (builtin && url.protocol === "file:") {
    const { open, stat } = builtin("node:fs/promises");
    const entry = await stat(url).catch(() => null);
    return entry?.isFile() ? new Response(streamOf(() => open(url), entry.size)) : new Response(null, { status: 404 });
  }
  return fetch(url, { signal }).catch((error) => {
    if (url.protocol === "file:") throw new Error("pages read no files: open them from a web server, such as `webmlc serve`");
    if (isNode || url.origin === origin) throw error;
    throw new Error(`${error.message}; a server of another origin must send Access-Control-Allow-Origin`);
  });
}
