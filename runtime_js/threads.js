// Threads that run one program: how the leader wakes its helpers and how a helper waits.
//
// Between runs a helper spins briefly, then sleeps on shared control words: no message is posted per run. Within a run it
// takes work from the leader's loops (see target/wasm/threads.py); the leader never waits for one that comes late. One command
// brings a helper back to its event loop, where a message waits with a new memory.
//
// The leader does not wake helpers itself: some systems put a woken thread on the core of the one that woke it while that core
// has room for one more, and leave the next one idle. The caller is woken instead: it wakes the helpers, for whom there is no
// room beside the leader then, and sleeps.

import { RUNNING } from "./memory_plan.js";
import { openWorker } from "./platform.js";

/** @typedef {import("./types.d.ts").Help} Help */
/** @typedef {import("./types.d.ts").ModuleRun} ModuleRun */
/** @typedef {import("./types.d.ts").WorkerDoor} WorkerDoor */

const GENERATION = 0; // counts commands
const COMMAND = 1;
const LEFT = 2; // helpers that have left for the new memory
const ASLEEP = 3; // helpers that sleep until the next command
const CALLS = 4; // counts what the caller is woken for
const CALLER = 5; // 1 once it listens
const NEVER = 6; // nobody notifies it
const CONTROL_WORDS = 16;
const RUN = 1;
const NEW_MEMORY = 2;
const IDLE_SPINS = 4000; // some tens of microseconds: a pause between two runs, not between two frames

const CALL_DELAY_MS = 0.1; // after which the page, which asked for the run, sleeps, and leaves a core to a helper

/** What the threads of a model share besides its memory. */
export function controlWords() {
  return new Int32Array(new SharedArrayBuffer(4 * CONTROL_WORDS));
}

/** A worker for whatever helps the leader (see wasm_helper.js). @returns {WorkerDoor} */
export function openHelper() {
  const url = new URL("./wasm_helper.js", import.meta.url);
  return openWorker(url, () => new Worker(new URL("./wasm_helper.js", import.meta.url), { type: "module" }));
}

/** @param {WebAssembly.Module} module @param {WebAssembly.Memory} memory @returns {ModuleRun} */
export function instantiate(module, memory) {
  return /** @type {ModuleRun} */ (new WebAssembly.Instance(module, { env: { memory } }).exports.run);
}

/**
 * A helper thread: do what the control words say until a message is announced.
 * @param {Help} help
 */
export function help({ tid, threads, module, memory, control, seen }) {
  const run = instantiate(module, memory);
  for (;;) {
    for (let i = 0; i < IDLE_SPINS && Atomics.load(control, GENERATION) === seen; i++);
    Atomics.add(control, ASLEEP, 1); // before the last look, so that who commands after it sees a sleeper
    while (Atomics.load(control, GENERATION) === seen) Atomics.wait(control, GENERATION, seen);
    Atomics.sub(control, ASLEEP, 1);
    seen = Atomics.load(control, GENERATION);
    if (Atomics.load(control, COMMAND) === NEW_MEMORY) break;
    run(0, 0, tid, threads);
  }
  Atomics.add(control, LEFT, 1);
  Atomics.notify(control, LEFT);
}

/** The caller: wake the helpers whenever the leader wants them. @param {Int32Array} control */
export function passOnCalls(control) {
  Atomics.store(control, CALLER, 1);
  for (;;) {
    const calls = Atomics.load(control, CALLS);
    Atomics.wait(control, NEVER, 0, CALL_DELAY_MS);
    Atomics.notify(control, GENERATION);
    Atomics.wait(control, CALLS, calls);
  }
}

/**
 * Run module steps `first..last-1` on the leader, with the help of who comes.
 * @param {ModuleRun} run
 * @param {WebAssembly.Memory} memory
 * @param {Int32Array} control
 * @param {number} threads
 * @param {number} first
 * @param {number} last
 */
export function runTogether(run, memory, control, threads, first, last) {
  const words = new Int32Array(memory.buffer);
  Atomics.store(words, RUNNING / 4, 1);
  command(control, RUN);
  try {
    run(first, last, 0, threads); // clears it at the end
  } finally {
    Atomics.store(words, RUNNING / 4, 0); // nor do helpers look for work after a trap
  }
}

/**
 * Send the helpers back to their event loops, where a message with the new memory and the returned count must reach them.
 * @param {Int32Array} control
 * @param {number} helpers
 * @returns {number}
 */
export function announceMemory(control, helpers) {
  Atomics.store(control, LEFT, 0);
  command(control, NEW_MEMORY);
  for (let left = 0; left < helpers; left = Atomics.load(control, LEFT)) Atomics.wait(control, LEFT, left);
  return Atomics.load(control, GENERATION);
}

/** @param {Int32Array} control @param {number} what */
function command(control, what) {
  Atomics.store(control, COMMAND, what);
  Atomics.add(control, GENERATION, 1);
  if (!Atomics.load(control, ASLEEP)) return;
  if (!Atomics.load(control, CALLER)) {
    Atomics.notify(control, GENERATION);
  } else {
    Atomics.add(control, CALLS, 1);
    Atomics.notify(control, CALLS);
  }
}
