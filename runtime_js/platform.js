// What differs between a browser and Node: starting a worker, talking to the one who started it, reading a URL.
// `process.getBuiltinModule` keeps Node's modules out of sight of bundlers.

/** @typedef {{ post: (message: any, transfer?: Transferable[]) => void, listen: (handler: (message: any) => void) => void }} Port */
/** @typedef {Port & { onError: (handler: (message: string) => void) => void, terminate: () => void }} WorkerPort */

/** @type {((name: string) => any) | undefined} */
const builtin = /** @type {any} */ (globalThis).process?.getBuiltinModule;

export const isNode = builtin !== undefined;

/** True where workers may share memory. */
export const canShareMemory = isNode || globalThis.crossOriginIsolated === true;

/**
 * Start `wasm_worker.js`.
 * @returns {WorkerPort}
 */
export function startWorker() {
  if (builtin) {
    const { Worker: NodeWorker } = builtin("node:worker_threads");
    const worker = new NodeWorker(new URL("./wasm_worker.js", import.meta.url));
    return {
      post: (message, transfer) => worker.postMessage(message, transfer),
      listen: (handler) => worker.on("message", handler),
      onError: (handler) => worker.on("error", (/** @type {Error} */ error) => handler(error.message)),
      terminate: () => worker.terminate(),
    };
  }
  const worker = new Worker(new URL("./wasm_worker.js", import.meta.url), { type: "module" });
  return {
    post: (message, transfer = []) => worker.postMessage(message, transfer),
    listen: (handler) => worker.addEventListener("message", (event) => handler(event.data)),
    onError: (handler) => worker.addEventListener("error", (event) => handler(event.message ?? "could not be started")),
    terminate: () => worker.terminate(),
  };
}

/**
 * Inside a worker: the port to whoever started it.
 * @returns {Port}
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
