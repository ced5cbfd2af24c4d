// What differs between a browser and Node: sharing memory, the door to whoever started a worker, reading a URL.
// `process.getBuiltinModule` keeps Node's modules out of sight of bundlers.

/** @typedef {import("./types.d.ts").MessageDoor} MessageDoor */

/** Node's own modules, where there are any. @type {((name: string) => any) | undefined} */
export const builtin = /** @type {any} */ (globalThis).process?.getBuiltinModule;

export const isNode = builtin !== undefined;

/** What relative URLs are relative to: the page, in Node the working folder. */
export const here = () => (builtin ? builtin("node:url").pathToFileURL("./").href : location.href);

/**
 * The same promise. In Node it keeps the process alive until then; workers do not.
 * @template T @param {Promise<T>} promise @returns {Promise<T>}
 */
export function keepAlive(promise) {
  if (!builtin) return promise;
  const timer = setInterval(() => {}, 2 ** 30);
  return promise.finally(() => clearInterval(timer));
}

/** Why workers may not share memory; empty where they may. A host may isolate pages and lack the constructor. */
export const sharingObstacle = !(isNode || globalThis.crossOriginIsolated)
  ? "the page is not cross-origin isolated: serve it with Cross-Origin-Opener-Policy: same-origin and " +
    "Cross-Origin-Embedder-Policy: require-corp to use more"
  : typeof SharedArrayBuffer === "undefined"
    ? "this host has no SharedArrayBuffer"
    : "";

export const canShareMemory = !sharingObstacle;

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
 * A response for `url`; in Node, files too. Throws an error that says what a browser does not: why it may not fetch that URL.
 * @param {URL} url
 * @returns {Promise<Response>}
 */
export async function open(url) {
  if (builtin && url.protocol === "file:") {
    const file = await builtin("node:fs").openAsBlob(url).catch(() => null);
    return file === null ? new Response(null, { status: 404 }) : new Response(file);
  }
  return fetch(url).catch((error) => {
    if (url.protocol === "file:") throw new Error("pages read no files: open them from a web server, such as `webmlc serve`");
    if (isNode || url.origin === origin) throw error;
    throw new Error(`${error.message}; a server of another origin must send Access-Control-Allow-Origin`);
  });
}
