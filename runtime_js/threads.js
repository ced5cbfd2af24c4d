// Threads that run one program: how the leader wakes its helpers and how a helper waits.
//
// Between runs a helper spins briefly, then sleeps on shared control words: no message is posted per run. Within a run it
// takes work from the leader's loops (see target/wasm/threads.py); the leader never waits for one that comes late. Nor does it
// where the model gets another memory: a helper finds that its own is not the last, and returns to its event loop, where a
// message brings that.
//
// The leader is the model's worker, or in a short run the page, which may not sleep (see short_runs.js).
//
// The leader does not wake helpers itself: some systems put a woken thread on the core of the one that woke it while that core
// has room for one more, and leave the next one idle. The caller is woken instead: it wakes the helpers, for whom there is no
// room beside the leader then, and sleeps.

import { AWAKE, RUNNING } from "./memory_plan.js";

/** @typedef {import("./types.d.ts").Help} Help */
/** @typedef {import("./types.d.ts").ModuleExports} ModuleExports */

const RUNS = 0; // counts them
const MEMORIES = 1; // counts those after the first
const ASLEEP = 2; // helpers that sleep until the next run
const CALLS = 3; // counts what the caller is woken for
const CALLER = 4; // 1 once it listens
const NEVER = 5; // nobody notifies it
const CONTROL_WORDS = 16;
const IDLE_SPINS = 4000; // some tens of microseconds: a pause between two runs, not between two frames

const CALL_DELAY_MS = 0.1; // after which the page, which asked for the run, sleeps, and leaves a core to a helper

/** What the threads of a model share besides its memory. */
export function controlWords() {
  return new Int32Array(new SharedArrayBuffer(4 * CONTROL_WORDS));
}

/** @param {WebAssembly.Module} module @param {WebAssembly.Memory} memory @returns {ModuleExports} */
export function instantiate(module, memory) {
  return /** @type {any} */ (new WebAssembly.Instance(module, { env: { memory } }).exports);
}

/**
 * A helper thread: help with every run until the model has a memory after this one, the `generation`th.
 * @param {Help} help
 */
export function help({ tid, threads, module, memory, control, generation }) {
  const isLast = () => Atomics.load(control, MEMORIES) === generation;
  if (!isLast()) return;
  const { run } = instantiate(module, memory);
  for (let seen = 0; ; ) {
    for (let i = 0; i < IDLE_SPINS && Atomics.load(control, RUNS) === seen; i++);
    Atomics.add(control, ASLEEP, 1); // before the last look, so that who runs after it sees a sleeper
    while (Atomics.load(control, RUNS) === seen) Atomics.wait(control, RUNS, seen);
    Atomics.sub(control, ASLEEP, 1);
    seen = Atomics.load(control, RUNS);
    if (!isLast()) return;
    try {
      run(0, 0, tid, threads);
    } catch (error) {
      Atomics.store(new Int32Array(memory.buffer), RUNNING / 4, 0); // what it took is never done: the leader waits no more
      throw error;
    }
  }
}

/** The caller: wake the helpers whenever the leader wants them. @param {Int32Array} control */
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
 * Do the leader's work with the help of who comes.
 * @param {WebAssembly.Memory} memory
 * @param {Int32Array} control
 * @param {boolean} awake this thread may not sleep
 * @param {() => void} work runs the module as thread 0
 */
export function withHelpers(memory, control, awake, work) {
  const words = new Int32Array(memory.buffer);
  words[AWAKE / 4] = Number(awake);
  Atomics.store(words, RUNNING / 4, 1);
  wake(control);
  try {
    work(); // the module clears it at the end
  } finally {
    Atomics.store(words, RUNNING / 4, 0); // nor do helpers look for work after a trap
  }
}

/**
 * Say that there is another memory, of the returned generation: a message must bring it to every helper.
 * @param {Int32Array} control
 * @returns {number}
 */
export function announceMemory(control) {
  return Atomics.add(control, MEMORIES, 1) + 1;
}

/** @param {Int32Array} control */
function wake(control) {
  Atomics.add(control, RUNS, 1);
  if (!Atomics.load(control, ASLEEP)) return;
  if (!Atomics.load(control, CALLER)) {
    Atomics.notify(control, RUNS);
  } else {
    Atomics.add(control, CALLS, 1);
    Atomics.notify(control, CALLS);
  }
}
