// Runs that are over about as soon as a worker is awake: the page makes them itself, with the worker's module on the memory
// that both share. What a run takes is measured, here as there, and again from time to time: which is sooner depends on
// the model, its shapes, and how quickly this machine wakes other threads.
//
//   pace.here                         whether the page should make the next run
//   pace.took(wasHere, milliseconds)  after each run, wherever it was

/** @typedef {import("./types.d.ts").ModuleRun} ModuleRun */

const LIMIT_MS = 5; // that a run may block the page: less than a third of a frame
const TRIAL_MS = 20; // that the first one here may take
const SAMPLES = 3; // runs that tell how long they take
const FORGET = 64; // runs after which it is measured anew

/** The median of the last runs: one of them may have been disturbed. */
class Recent {
  /** @type {number[]} */
  #times = [];

  get known() {
    return this.#times.length === SAMPLES;
  }

  get milliseconds() {
    return [...this.#times].sort((a, b) => a - b)[SAMPLES >> 1];
  }

  /** @param {number} milliseconds */
  add(milliseconds) {
    this.#times = [...this.#times.slice(1 - SAMPLES), milliseconds];
  }
}

export class Pace {
  #here = new Recent();
  #there = new Recent();
  #runs = 0;

  /** @param {number} threads that share a run there: here it is one */
  constructor(threads) {
    this.threads = threads;
  }

  get here() {
    const { milliseconds: there } = this.#there;
    if (!this.#there.known) return false;
    if (!this.#here.known) return there <= LIMIT_MS && there * this.threads <= TRIAL_MS;
    return this.#here.milliseconds <= (this.threads > 1 ? Math.min(there, LIMIT_MS) : LIMIT_MS);
  }

  /** @param {boolean} here @param {number} milliseconds */
  took(here, milliseconds) {
    if (++this.#runs % FORGET === 0) {
      this.#here = new Recent();
      this.#there = new Recent();
    }
    (here ? this.#here : this.#there).add(milliseconds);
  }
}

/**
 * The module's function, for this thread. Instantiated asynchronously: a page may not wait for a large module.
 * @param {WebAssembly.Module} module
 * @param {WebAssembly.Memory} memory
 * @returns {Promise<ModuleRun>}
 */
export async function instantiateHere(module, memory) {
  return /** @type {ModuleRun} */ ((await WebAssembly.instantiate(module, { env: { memory } })).exports.run);
}
