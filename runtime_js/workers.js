// Start the workers of a model. Only pages import this module: if a worker did, bundlers would see a worker that starts itself.
//
// Browsers start workers only from scripts of the page's origin, and bundlers move scripts. So there are two ways to start a
// worker. The second is tried if the first fails:
//
//   1. From the script beside this module. Bundlers see `new Worker(new URL(...))`, bundle that script and replace its URL.
//   2. From the package's copy of the script. If that is on another origin, a blob of this origin imports it.

import { HostError, InternalError, missingFeature } from "./errors.js";
import { builtin } from "./platform.js";

/** @typedef {import("./types.d.ts").WorkerDoor} WorkerDoor */
/** @typedef {(message: any) => void} Listener */

const SCRIPT = "wasm_worker.js";
const HERE = import.meta.url; // a constant, because bundlers copy files that they see in `new URL(..., import.meta.url)`

export class Workers {
  /** @param {URL} base the package's folder */
  constructor(base) {
    this.url = new URL(SCRIPT, base);
    /** @type {Set<() => any>} The ways that have not failed yet. */
    this.ways = new Set(
      builtin
        ? [() => startInNode(HERE), () => startInNode(base)]
        : [() => new Worker(new URL("./wasm_worker.js", import.meta.url), { type: "module" }), () => startCopy(this.url)],
    );
  }

  /**
   * Start a worker.
   * @param {Listener} listen
   * @param {(error: Error) => void} fail  called if the worker does not catch an error
   * @returns {WorkerDoor} `post` throws HostError if the worker did not start
   */
  open(listen, fail) {
    const worker = this.#start(listen, fail);
    worker.catch(() => {}); // `post` reports it
    return {
      post: async (message, transfer = []) => (await worker).postMessage(message, transfer),
      terminate: () => worker.then((thread) => thread.terminate(), () => {}),
    };
  }

  /** Try the ways in order. @param {Listener} listen @param {(error: Error) => void} fail */
  async #start(listen, fail) {
    let reason = "";
    for (const way of this.ways) {
      try {
        return await start(way, listen, fail);
      } catch (error) {
        reason = /** @type {Partial<Error>} */ (error).message ?? "";
        this.ways.delete(way);
      }
    }
    if (!builtin && !globalThis.Worker) throw missingFeature("Worker");
    const { href, origin } = this.url;
    const remedy =
      builtin || origin === globalThis.origin
        ? "serve the whole package there, to isolated pages with Cross-Origin-Embedder-Policy"
        : "serve the package from the page's origin, or with Access-Control-Allow-Origin to a page whose " +
          `Content-Security-Policy has worker-src blob: ${origin}`;
    throw new HostError(`the worker ${href} did not start${reason && ` (${reason})`}: ${remedy}`);
  }
}

/**
 * Start a worker one way. Resolves when it runs: its script then posts a first message.
 * @param {() => any} way
 * @param {Listener} listen
 * @param {(error: Error) => void} fail
 * @returns {Promise<any>}
 */
function start(way, listen, fail) {
  return new Promise((resolve, reject) => {
    const worker = way();
    let onError = (/** @type {Error | ErrorEvent} */ error) => {
      worker.terminate();
      reject(error);
    };
    /** @type {Listener} */
    let onMessage = () => {
      onMessage = listen;
      onError = ({ message }) => fail(new InternalError(`a worker of the model failed: ${message}`));
      resolve(worker);
    };
    if (builtin) {
      worker.on("message", (/** @type {any} */ data) => onMessage(data)).on("error", (/** @type {Error} */ error) => onError(error));
      worker.unref();
    } else {
      worker.onmessage = (/** @type {MessageEvent} */ { data }) => onMessage(data);
      worker.onerror = (/** @type {ErrorEvent} */ event) => onError(event);
    }
  });
}

/** @param {string | URL} folder  or a file in it */
function startInNode(folder) {
  return new (builtin?.("node:worker_threads").Worker)(new URL(SCRIPT, folder));
}

/** Start a script of any origin. @param {URL} url */
function startCopy(url) {
  if (url.origin === origin) return new Worker(url, { type: "module" });
  const script = new Blob([`import ${JSON.stringify(url)}`], { type: "text/javascript" });
  return new Worker(URL.createObjectURL(script), { type: "module" });
}
