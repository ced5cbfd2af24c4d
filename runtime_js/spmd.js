// Threads that run one program: how the leader wakes its helpers and how a helper waits.
//
// Between runs a helper spins briefly, then sleeps on shared control words: no message is posted per run. Within a run
// threads spin for longer, as in the module's barriers: one that sleeps and wakes often looks idle to the operating system,
// which then runs all of them on one core. One command brings a helper back to its event loop, where a message waits with
// a new memory.

import { toData } from "./errors.js";

/** @typedef {import("./types.d.ts").Help} Help */
/** @typedef {import("./types.d.ts").ModuleRun} ModuleRun */

export const CONTROL_BYTES = 64;
const GENERATION = 0; // counts commands
const COMMAND = 1;
const FIRST = 2;
const LAST = 3;
const DONE = 4; // helpers that have finished the command
const RUN = 1;
const NEW_MEMORY = 2;
const IDLE_SPINS = 4000; // some tens of microseconds: a pause between two runs, not between two frames
const BUSY_SPINS = 1 << 20; // some milliseconds: more than another thread's time slice

/** @param {WebAssembly.Module} module @param {WebAssembly.Memory} memory @returns {ModuleRun} */
export function instantiate(module, memory) {
  return /** @type {ModuleRun} */ (new WebAssembly.Instance(module, { env: { memory } }).exports.run);
}

/**
 * A helper thread: do what the control words say until a message is announced.
 * @param {Help} help
 */
export function help({ tid, threads, module, memory, control, seen, port }) {
  try {
    const run = instantiate(module, memory);
    for (;;) {
      waitForChange(control, GENERATION, seen, IDLE_SPINS);
      seen++;
      const what = Atomics.load(control, COMMAND);
      if (what === RUN) run(Atomics.load(control, FIRST), Atomics.load(control, LAST), tid, threads);
      Atomics.add(control, DONE, 1);
      Atomics.notify(control, DONE);
      if (what === NEW_MEMORY) return;
    }
  } catch (error) {
    port.postMessage(toData(error)); // straight to the page: the leader waits in a barrier
  }
}

/**
 * Run module steps `first..last-1` on the leader and `helpers` more threads; returns when all are done.
 * @param {ModuleRun} run
 * @param {Int32Array} control
 * @param {number} helpers
 * @param {number} first
 * @param {number} last
 */
export function runTogether(run, control, helpers, first, last) {
  Atomics.store(control, FIRST, first);
  Atomics.store(control, LAST, last);
  command(control, RUN);
  run(first, last, 0, helpers + 1);
  waitForHelpers(control, helpers);
}

/**
 * Send the helpers back to their event loops, where a message with the new memory and the returned count must reach them.
 * @param {Int32Array} control
 * @param {number} helpers
 * @returns {number}
 */
export function announceMemory(control, helpers) {
  command(control, NEW_MEMORY);
  waitForHelpers(control, helpers); // or the next command would overwrite this one unseen
  return Atomics.load(control, GENERATION);
}

/** @param {Int32Array} control @param {number} what */
function command(control, what) {
  Atomics.store(control, COMMAND, what);
  Atomics.store(control, DONE, 0);
  Atomics.add(control, GENERATION, 1);
  Atomics.notify(control, GENERATION);
}

/** @param {Int32Array} control @param {number} helpers */
function waitForHelpers(control, helpers) {
  for (let done = 0; done < helpers; done = Atomics.load(control, DONE)) waitForChange(control, DONE, done, BUSY_SPINS);
}

/** @param {Int32Array} control @param {number} word @param {number} seen @param {number} spins before it sleeps */
function waitForChange(control, word, seen, spins) {
  for (let i = 0; i < spins; i++) if (Atomics.load(control, word) !== seen) return;
  while (Atomics.load(control, word) === seen) Atomics.wait(control, word, seen);
}
