// Runs that are over about as soon as a worker is awake: the page makes them itself, with the worker's module on the memory
// that both share; it leads the worker's helpers, or is alone where it is done before they come. What a run takes is measured
// each way, and again from time to time: which is sooner depends on the model, its shapes, and how quickly this machine wakes
// other threads.
//
//   pace.way                      who should make the next run
//   pace.took(way, milliseconds)  after each run, whoever made it

/** @typedef {import("./types.d.ts").ModuleRun} ModuleRun */
/** @typedef {import("./types.d.ts").Way} Way */

const WAY_MS = 1; // that a run there may take longer, to the worker and back
const ALONE_MS = 2; // of all threads together, that a run may be sooner without helpers
const SAMPLES = 3; // runs that tell how long they take
const FIRST_WINDOW = 12; // runs after which it is measured anew; then twice as many, each time: code is soon optimised
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

/** @returns {Record<Way, Recent>} */
function noRuns() {
  return { there: new Recent(), alone: new Recent(), together: new Recent() };
}

export class Pace {
  #recent = noRuns();
  #window = FIRST_WINDOW;
  #left = FIRST_WINDOW; // runs of it

  /** @param {number} threads that a run may have @param {number} limit milliseconds that a run may block the page; 0: none may */
  constructor(threads, limit) {
    this.threads = threads;
    this.limit = limit;
  }

  /** Who should make the next run. @returns {Way} */
  get way() {
    const { there, alone, together } = this.#recent;
    const { limit } = this;
    if (!limit || !there.known || there.milliseconds > limit + WAY_MS) return "there";
    const shared = this.threads > 1;
    const here = shared ? together : alone;
    if (here.known && here.milliseconds > limit) return "there";
    if (!shared) return "alone";
    if (!here.known || here.milliseconds * this.threads > ALONE_MS) return "together";
    return !alone.known || alone.milliseconds < here.milliseconds ? "alone" : "together";
  }

  /** @param {Way} way @param {number} milliseconds */
  took(way, milliseconds) {
    this.#recent[way].add(milliseconds);
    if (--this.#left) return;
    this.#recent = noRuns();
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
