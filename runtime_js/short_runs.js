// Choose the thread that executes each run.
//
// A short run can end before the worker has woken up. The page executes such a run itself: it calls the worker's module on the
// memory that both share. The page can lead the worker's helper threads, or work alone if it finishes before they start. The best
// way depends on the model, its shapes, and how fast the machine wakes threads. So runs are timed each way, and from time to
// time they are timed again.
//
//   pace.way                      the way in which to execute the next run
//   pace.took(way, milliseconds)  to be called after each run

/** @import { ModuleRun, Way } from "./types.d.ts" */

const WAY_MS = 1; // assumed cost of waking the worker and of its answer
const ALONE_MS = 2; // try a run without helpers if all threads together spend at most this time on it
const SAMPLES = 3; // runs that are timed each way
const FIRST_WINDOW = 12; // number of runs after which times are measured again, because the engine optimises code meanwhile
const LONGEST_WINDOW = 64; // each window is twice as long as the one before, up to this

/** The time of a run: the minimum of the last samples, because disturbances and unoptimised code only add time. */
class Recent {
  /** @type {number[]} */
  #times = [];
  isKnown = false;
  milliseconds = Infinity;

  /** @param {number} milliseconds */
  add(milliseconds) {
    const times = this.#times;
    if (times.length === SAMPLES) times.shift();
    this.isKnown = times.push(milliseconds) === SAMPLES;
    this.milliseconds = Math.min(...times);
  }
}

/** Times of no runs yet. @returns {Record<Way, Recent>} */
function noRuns() {
  return { there: new Recent(), alone: new Recent(), together: new Recent() };
}

export class Pace {
  /** The way in which to execute the next run. @type {Way} */
  way = "there";
  #recent = noRuns();
  #window = FIRST_WINDOW;
  #remaining = FIRST_WINDOW; // runs until the window ends

  /**
   * @param {number} threads  of the model
   * @param {number} limit  the milliseconds for which a run may block the page; 0 forbids runs in the page
   */
  constructor(threads, limit) {
    this.threads = threads;
    this.limit = limit;
  }

  /** Record the time of a run. @param {Way} way @param {number} milliseconds */
  took(way, milliseconds) {
    this.#recent[way].add(milliseconds);
    if (!--this.#remaining) {
      this.#recent = noRuns();
      this.#window = Math.min(2 * this.#window, LONGEST_WINDOW);
      this.#remaining = this.#window;
    }
    this.way = this.#choose();
  }

  /** @returns {Way} */
  #choose() {
    const { there, alone, together } = this.#recent;
    const { limit } = this;
    if (!limit || !there.isKnown || there.milliseconds > limit + WAY_MS) return "there";
    const shared = this.threads > 1;
    const here = shared ? together : alone;
    if (here.isKnown && here.milliseconds > limit) return "there";
    if (!shared) return "alone";
    if (!here.isKnown || here.milliseconds * this.threads > ALONE_MS) return "together";
    return !alone.isKnown || alone.milliseconds < here.milliseconds ? "alone" : "together";
  }
}

/**
 * Instantiate the module for this thread. Browsers forbid pages to instantiate a large module synchronously.
 * @param {WebAssembly.Module} module
 * @param {WebAssembly.Memory} memory
 * @returns {Promise<ModuleRun>}
 */
export async function instantiateHere(module, memory) {
  return /** @type {ModuleRun} */ ((await WebAssembly.instantiate(module, { env: { memory } })).exports.run);
}
