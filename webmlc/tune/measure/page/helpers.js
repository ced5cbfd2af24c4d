// Let other threads take part in a trial, as helpers of the thread that measures, the leader.
//
// A helper sleeps until the leader calls it. Then it takes chunks of the module's parallel loops, until the word RUNNING is cleared
// (see webmlc/target/wasm/threads.py). The leader never waits for helpers, except after a failure: a helper may then still be
// inside of a chunk, and would disturb the next candidate.

/** @import { Help, RunFunction, StartHelper, Trial } from "./types.d.ts" */

const RUNNING = 128 / 4; // the index of the word that is 1 while helpers take chunks
const OFFER_WORDS = 2; // words at the start of memory, which describe the free chunks

// Indices of the control words.
const CALLS = 0; // counts the leader's calls; END after the last one
const INSIDE = 1; // the number of helpers inside of the module
const CONTROL_WORDS = 2;

const END = -1;
const ARRIVAL_MS = 1; // the leader starts its clock at the latest after this time, with the helpers that have arrived

/** Instantiate a module. @param {WebAssembly.Module} module @param {WebAssembly.Memory} memory @returns {RunFunction} */
export function instantiate(module, memory) {
  return /** @type {any} */ (new WebAssembly.Instance(module, { env: { memory } }).exports).run;
}

export class Helpers {
  /**
   * Start the helpers of a trial.
   * @param {Trial} trial
   * @param {WebAssembly.Module} module
   * @param {WebAssembly.Memory} memory
   * @param {StartHelper} startHelper
   */
  static async start({ threads }, module, memory, startHelper) {
    const helpers = new Helpers(threads - 1, memory);
    const { control } = helpers;
    if (control) {
      const tids = Array.from({ length: threads - 1 }, (_, i) => i + 1);
      await Promise.all(tids.map((tid) => startHelper({ tid, threads, module, memory, control })));
    }
    return helpers;
  }

  /** @param {number} count @param {WebAssembly.Memory} memory */
  constructor(count, memory) {
    this.count = count;
    this.words = new Int32Array(memory.buffer);
    this.control = count ? new Int32Array(new SharedArrayBuffer(4 * CONTROL_WORDS)) : null;
  }

  /** Call the helpers before a run. Returns when all have arrived, or after a short time. */
  call() {
    const { control, words, count } = this;
    Atomics.store(words, RUNNING, 1);
    if (!control) return;
    Atomics.add(control, CALLS, 1);
    Atomics.notify(control, CALLS);
    for (const begin = performance.now(); Atomics.load(control, INSIDE) < count && performance.now() - begin < ARRIVAL_MS; );
  }

  /** After a failure: wait until all helpers have left the module, and withdraw the chunks that nobody took. */
  reset() {
    const { control, words } = this;
    Atomics.store(words, RUNNING, 0);
    Atomics.notify(words, RUNNING);
    while (control && Atomics.load(control, INSIDE));
    words.fill(0, 0, OFFER_WORDS);
  }

  /** Dismiss the helpers. */
  end() {
    if (!this.control) return;
    Atomics.store(this.control, CALLS, END);
    Atomics.notify(this.control, CALLS);
  }
}

/**
 * Called in a helper: take part until the trial ends.
 * @param {Help} help
 * @param {() => void} onReady
 */
export function help({ tid, threads, module, memory, control }, onReady) {
  const run = instantiate(module, memory);
  onReady();
  for (let calls = 0; calls !== END; calls = Atomics.load(control, CALLS)) {
    if (calls) takePart(() => run(0, 0, tid, threads), memory, control);
    Atomics.wait(control, CALLS, calls);
  }
}

/** @param {() => void} run @param {WebAssembly.Memory} memory @param {Int32Array} control */
function takePart(run, memory, control) {
  Atomics.add(control, INSIDE, 1);
  try {
    run();
  } catch {
    Atomics.store(new Int32Array(memory.buffer), RUNNING, 0); // the leader traps instead of waiting for this helper's chunk
  } finally {
    Atomics.sub(control, INSIDE, 1);
  }
}
