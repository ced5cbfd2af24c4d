// Starts the workers of a model. Only pages import this: to bundlers, a worker that did would start itself.
//
// A browser starts workers only from scripts of the page's origin, and a bundler moves scripts. So there are two ways, and the
// second is tried where the first fails:
//
//   1. the script beside this module: bundlers see `new Worker(new URL(...))`, bundle it too and adapt the URL
//   2. the package's copy of it: where that is on another origin, a script that is made here imports it

import { HostError, InternalError, missing, toData } from "./errors.js";
import { builtin } from "./platform.js";

/** @typedef {import("./types.d.ts").WorkerDoor} WorkerDoor */

const SCRIPT = "wasm_worker.js";

export class Workers {
  /** @param {URL} base the package's folder */
  constructor(base) {
    const url = new URL(SCRIPT, base);
    this.url = url;
    /** @type {(() => any)[]} Those that have not failed yet, the first to try first. */
    this.ways = builtin
      ? [() => startInNode(new URL(SCRIPT, import.meta.url)), () => startInNode(url)]
      : [() => new Worker(new URL("./wasm_worker.js", import.meta.url), { type: "module" }), () => startCopy(url)];
  }

  /**
   * Start a worker. What is posted before its script runs waits for that; the script's first message says that it does.
   * @param {(message: any) => void} listen
   * @param {(error: Error) => void} fail the worker did not start, or did not catch an error
   * @returns {WorkerDoor}
   */
  open(listen, fail) {
    const { ways } = this;
    /** @type {any} */
    let worker;
    /** @type {[any, Transferable[]][] | null} */
    let waiting = [];
    const start = (reason = "") => {
      const [way] = ways;
      if (!way) return fail(this.#notStarted(reason));
      const failed = (/** @type {string} */ why) => {
        if (!waiting) return fail(new InternalError(`a worker of the model failed: ${why}`));
        worker?.terminate();
        if (ways[0] === way) ways.shift();
        start(why);
      };
      const hear = (/** @type {any} */ message) => {
        if (!waiting) return listen(message);
        for (const post of waiting) worker.postMessage(...post);
        waiting = null;
      };
      try {
        worker = way();
        if (builtin) {
          worker.on("message", hear).on("error", (/** @type {Error} */ error) => failed(error.message));
        } else {
          worker.onmessage = (/** @type {MessageEvent} */ { data }) => hear(data);
          worker.onerror = (/** @type {ErrorEvent} */ { message }) => failed(message);
        }
      } catch (error) {
        failed(toData(error).message);
      }
    };
    start();
    return {
      post: (message, transfer = []) => (waiting ? waiting.push([message, transfer]) : worker.postMessage(message, transfer)),
      terminate: () => {
        waiting = null; // it is not started again
        fail = () => {};
        worker?.terminate();
      },
    };
  }

  /** @param {string} reason */
  #notStarted(reason) {
    const { href, origin } = this.url;
    if (!builtin && !globalThis.Worker) return missing("Worker");
    const remedy =
      builtin || origin === globalThis.origin
        ? "serve the whole package there; to an isolated page, with Cross-Origin-Embedder-Policy"
        : `serve the package from the page's origin; or have ${origin} send Access-Control-Allow-Origin, and the page's ` +
          "Content-Security-Policy allow it and blob: as worker-src";
    return new HostError(`the worker ${href} did not start${reason && ` (${reason})`}: ${remedy}`);
  }
}

/** @param {URL} url */
function startInNode(url) {
  return new (builtin?.("node:worker_threads").Worker)(url);
}

/** @param {URL} url */
function startCopy(url) {
  if (url.origin === origin) return new Worker(url, { type: "module" });
  const script = new Blob([`import ${JSON.stringify(url)}`], { type: "text/javascript" });
  return new Worker(URL.createObjectURL(script), { type: "module" });
}
