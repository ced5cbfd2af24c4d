// What differs between a browser and Node: workers, the door to whoever started one, reading a URL.
// `process.getBuiltinModule` keeps Node's modules out of sight of bundlers.

/** @typedef {import("./types.d.ts").MessageDoor} MessageDoor */
/** @typedef {import("./types.d.ts").WorkerDoor} WorkerDoor */

/** @type {((name: string) => any) | undefined} */
const builtin = /** @type {any} */ (globalThis).process?.getBuiltinModule;

export const isNode = builtin !== undefined;

/** True where workers may share memory. */
export const canShareMemory = isNode || globalThis.crossOriginIsolated === true;

/**
 * The door to a new worker. In a browser the caller makes it, so that bundlers see `new Worker(new URL(...))`.
 * @param {URL} url
 * @param {() => Worker} start
 * @returns {WorkerDoor}
 */
export function openWorker(url, start) {
  if (builtin) {
    const worker = new (builtin("node:worker_threads").Worker)(url);
    return {
      post: (message, transfer) => worker.postMessage(message, transfer),
      listen: (handler) => worker.on("message", handler),
      onError: (handler) => worker.on("error", (/** @type {Error} */ error) => handler(error.message)),
      terminate: () => worker.terminate(),
    };
  }
  const worker = start();
  return {
    post: (message, transfer = []) => worker.postMessage(message, transfer),
    listen: (handler) => worker.addEventListener("message", (event) => handler(event.data)),
    onError: (handler) => worker.addEventListener("error", (event) => handler(event.message ?? "it could not be started")),
    terminate: () => worker.terminate(),
  };
}

/**
 * Inside a worker: the door to whoever started it.
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

/**
 * A response for `url`; in Node, files too.
 * @param {URL} url
 * @returns {Promise<Response>}
 */
export async function open(url) {
  if (builtin && url.protocol === "file:") {
    const file = await builtin("node:fs").openAsBlob(url).catch(() => null);
    return file === null ? new Response(null, { status: 404 }) : new Response(file);
  }
  return fetch(url);
}
