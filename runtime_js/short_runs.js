// Runs that are over about as soon as a worker is awake: the page makes them itself, with the worker's module on the memory
// that both share. What a run takes is measured, here as there, and again from time to time: which is sooner depends on
// the model, its shapes, and how quickly this machine wakes other threads.
//
//   pace.here                         whether the page should make the next run
//   pace.took(wasHere, milliseconds)  after each run, wherever it was

/** @typedef {import("./types.d.ts").ModuleRun} ModuleRun */

const LIMIT_MS = 5; // that a run may block the page: less than a third of a frame
const WAY_MS = 1; // that a run there may take longer, to the worker and back
const TRIAL_MS = 20; // that the first one here may take
const SAMPLES = 3; // runs that tell how long they take
const FIRST_WINDOW = 8; // runs after which it is measured anew; then twice as many, each time: code is soon optimised
const LONGEST_WINDOW = 64;

/** The least of the last runs: what disturbs one of them, or code that is not optimised yet, only adds to it. */
class Recent {
  /** @type {number[]} */
  #times = [];

  get known() {
    return this.#times.length === SAMPLES;
  }

  get milliseconds() {
    return Math.min(...this.#times);
  }

  /** @param {number} milliseconds */
  add(milliseconds) {
    this.#times = [...this.#times.slice(1 - SAMPLES), milliseconds];
  }
}

export class Pace {
  #here = new Recent();
  #there = new Recent();
  #window = FIRST_WINDOW;
  #left = FIRST_WINDOW; // runs of it

  /** @param {number} threads that share a run there: here it is one */
  constructor(threads) {
    this.threads = threads;
  }

  get here() {
    const { milliseconds: there } = this.#there;
    if (!this.#there.known) return false;
    if (!this.#here.known) return there <= LIMIT_MS + WAY_MS && there * this.threads <= TRIAL_MS;
    return this.#here.milliseconds <= (this.threads > 1 ? Math.min(there, LIMIT_MS) : LIMIT_MS);
  }

  /** @param {boolean} here @param {number} milliseconds */
  took(here, milliseconds) {
    (here ? this.#here : this.#there).add(milliseconds);
    if (--this.#left) return;
    this.#here = new Recent();
    this.#there = new Recent();
    this.#window = Math.min(2 * this.#window, LONGEST_WINDOW);
    this.#left = this.#window;
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
