// Runs that are over about as soon as a worker is awake: the page makes them itself, with the worker's module on the memory
// that both share. What a run takes is measured, here as there, so a slow device or a larger shape goes back to the worker.
//
//   pace.took(milliseconds)   after each run, wherever it was
//   pace.short                whether the next one may block the page

/** @typedef {import("./types.d.ts").ModuleRun} ModuleRun */
/** @typedef {import("./types.d.ts").Shared} Shared */

const LIMIT_MS = 2; // an eighth of a frame
const ENOUGH = 4; // short runs that outweigh a long one
const MOST = 2 * ENOUGH;

export class Pace {
  #balance = 0;

  get short() {
    return this.#balance >= ENOUGH;
  }

  /** @param {number} milliseconds of one thread */
  took(milliseconds) {
    const change = milliseconds <= LIMIT_MS ? 1 : -ENOUGH;
    this.#balance = Math.max(-MOST, Math.min(MOST, this.#balance + change));
  }
}

/**
 * The module's function, for this thread. Instantiated asynchronously: a page may not wait for a large module.
 * @param {Shared} shared
 * @returns {Promise<ModuleRun>}
 */
export async function instantiateHere({ module, memory }) {
  return /** @type {ModuleRun} */ ((await WebAssembly.instantiate(module, { env: { memory } })).exports.run);
}
