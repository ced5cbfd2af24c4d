// Synchronise the threads of a model: the leader wakes its helpers, and helpers wait for runs.
//
// Between runs a helper spins briefly, for longer after a long run, then sleeps on words of shared memory, the control words. No
// message is posted for a run. During a run a helper takes iterations of the leader's parallel loops (see
// webmlc/target/wasm/threads.py). The leader never waits for a helper that arrives late.
//
// The leader is the model's worker, or in a short run the page, which may not sleep (see short_runs.js).
//
// If the model gets another memory, a helper notices that its memory is outdated, and returns to its event loop. There a message
// brings the new memory.
//
// The leader does not wake helpers itself. Some systems would place a helper on the leader's core, and leave the other core idle.
// The leader wakes a thread named the caller instead. The caller wakes the helpers, and sleeps. They cannot go to the leader's
// core then, because it is busy.

import { CONTROL } from "./manifest_records.js";

/** @import { Help, ModuleExports } from "./types.d.ts" */

// Indices of the control words.
const RUNS = 0; // counts the runs
const MEMORIES = 1; // counts the memories after the first
const SLEEPERS = 2; // the number of helpers that sleep until the next run
const CALLS = 3; // counts the calls of the caller
const CALLER = 4; // 1 once the caller listens
const NEVER = 5; // a word that no thread notifies, to sleep for a fixed time

const CONTROL_WORDS = 16;
const IDLE_SPINS = 4000; // some tens of microseconds: longer than the pause between two short runs, shorter than a frame
const IDLE_SHARE = 0.1; // of the time of its last run, for which a helper may spin, because a spinning thread takes energy
const MOST_IDLE_MS = 0.4; // longer than the page takes from one token to the next
const CALL_DELAY_MS = 0.1; // the caller waits until the page, which asked for the run, sleeps and leaves its core to a helper

/** The control words, which the threads of a model share besides its memory. */
export function controlWords() {
  return new Int32Array(new SharedArrayBuffer(4 * CONTROL_WORDS));
}

/** @param {WebAssembly.Module} module @param {WebAssembly.Memory} memory @returns {ModuleExports} */
export function instantiate(module, memory) {
  return /** @type {any} */ (new WebAssembly.Instance(module, { env: { memory } }).exports);
}

/**
 * Called in a helper: take part in every run until the model gets another memory than `memory`, which is number `generation`.
 * @param {Help} help
 */
export function help({ tid, threads, module, memory, control, generation }) {
  const isCurrent = () => Atomics.load(control, MEMORIES) === generation;
  if (!isCurrent()) return;
  const { run } = instantiate(module, memory);
  for (let runs = 0, milliseconds = 0; ; ) {
    spin(control, runs, Math.min(IDLE_SHARE * milliseconds, MOST_IDLE_MS));
    Atomics.add(control, SLEEPERS, 1); // before RUNS is read again, so that a leader that changes it later sees this helper
    while (Atomics.load(control, RUNS) === runs) Atomics.wait(control, RUNS, runs);
    Atomics.sub(control, SLEEPERS, 1);
    runs = Atomics.load(control, RUNS);
    if (!isCurrent()) return;
    const before = performance.now();
    try {
      run(0, 0, tid, threads);
      milliseconds = performance.now() - before;
    } catch (error) {
      Atomics.store(new Int32Array(memory.buffer), CONTROL.running / 4, 0); // the leader must not wait for this helper's chunk
      throw error;
    }
  }
}

/**
 * Wait for the next run for some milliseconds, or a little longer.
 * @param {Int32Array} control
 * @param {number} runs  those that began before
 * @param {number} milliseconds
 */
function spin(control, runs, milliseconds) {
  const end = performance.now() + milliseconds;
  do for (let i = 0; i < IDLE_SPINS; i++) if (Atomics.load(control, RUNS) !== runs) return;
  while (performance.now() < end);
}

/** Called in the caller: wake the helpers whenever the leader calls. @param {Int32Array} control */
export function passOnCalls(control) {
  Atomics.store(control, CALLER, 1);
  for (;;) {
    const calls = Atomics.load(control, CALLS);
    Atomics.wait(control, NEVER, 0, CALL_DELAY_MS);
    Atomics.notify(control, RUNS);
    Atomics.wait(control, CALLS, calls);
  }
}

/**
 * Run the leader's part of a run, and let helpers take part.
 * @param {WebAssembly.Memory} memory
 * @param {Int32Array} control
 * @param {boolean} awake  true if this thread may not sleep
 * @param {() => void} work  runs the module as thread 0
 */
export function withHelpers(memory, control, awake, work) {
  const words = new Int32Array(memory.buffer);
  words[CONTROL.awake / 4] = Number(awake);
  Atomics.store(words, CONTROL.running / 4, 1);
  wake(control);
  try {
    work(); // clears RUNNING at the end
  } finally {
    Atomics.store(words, CONTROL.running / 4, 0); // after a trap helpers must not look for work either
  }
}

/**
 * Tell the helpers that their memory is outdated. A message must bring each helper the new one.
 * @param {Int32Array} control
 * @returns {number} the generation of the new memory
 */
export function announceMemory(control) {
  return Atomics.add(control, MEMORIES, 1) + 1;
}

/** Wake the helpers, or let the caller wake them. @param {Int32Array} control */
function wake(control) {
  Atomics.add(control, RUNS, 1);
  if (!Atomics.load(control, SLEEPERS)) return;
  if (!Atomics.load(control, CALLER)) {
    Atomics.notify(control, RUNS);
  } else {
    Atomics.add(control, CALLS, 1);
    Atomics.notify(control, CALLS);
  }
}
