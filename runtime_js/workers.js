// Start the workers of a model. See folder.js for the ways to start one: if the first fails, the next one is tried.

import { HostError, InternalError, missingFeature } from "./errors.js";
import { builtin, RUNTIME_VERSION } from "./platform.js";

/** @import { WorkerDoor, WorkerSource } from "./types.d.ts" */
/** @typedef {(message: any) => void} Listener */

export class Workers {
  /** @param {WorkerSource} source */
  constructor(source) {
    this.source = source;
    /** @type {Set<() => any>} The ways that have not failed yet. */
    this.ways = new Set(source.ways);
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
    const { areThisThread, script, remedy } = this.source;
    let reason = "";
    for (const way of this.ways) {
      try {
        return await start(way, listen, fail);
      } catch (error) {
        reason = /** @type {Partial<Error>} */ (error).message ?? "";
        this.ways.delete(way);
      }
    }
    if (!builtin && !globalThis.Worker && !areThisThread) throw missingFeature("Worker");
    const cause = reason && ` (${reason})`;
    throw new HostError(`the worker ${script} did not start${cause}: ${remedy}`);
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
    let onMessage = ({ runtime }) => {
      if (runtime !== RUNTIME_VERSION) return onError(new Error(`it is of webmlc ${runtime}, the page's runtime of ${RUNTIME_VERSION}`));
      onMessage = listen;
      onError = ({ message }) => fail(new InternalError(`a worker of the model failed: ${message}`));
      resolve(worker);
    };
    if (worker.on) {
      worker.on("message", (/** @type {any} */ data) => onMessage(data)).on("error", (/** @type {Error} */ error) => onError(error));
      worker.unref();
    } else {
      worker.onmessage = (/** @type {MessageEvent} */ { data }) => onMessage(data);
      worker.onerror = (/** @type {ErrorEvent} */ event) => onError(event);
    }
  });
}
