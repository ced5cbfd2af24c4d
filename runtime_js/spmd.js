// Threads that run one program: how the leader calls its helpers and how a helper waits.
//
// Between runs a helper spins briefly, then sleeps on shared control words: no message is posted per run. A run never
// depends on helpers that the operating system, busy with other programs, has yet to wake: the leader takes one step
// after the other by itself until all have come, and what is then left with them. Where work turns out to be slower with
// helpers than without, they are only called now and then, to see. One command brings a helper back to its event loop,
// where a message waits with a new memory.

import { toData } from "./errors.js";

/** @typedef {import("./types.d.ts").Help} Help */
/** @typedef {import("./types.d.ts").ModuleRun} ModuleRun */

const CONTROL_BYTES = 64;
const GENERATION = 0; // counts commands
const COMMAND = 1;
const FIRST = 2;
const LAST = 3;
const CAME = 4; // helpers that came for the command; negative once no more are admitted
const THREADS = 5; // that carry it out, the leader included; 0 until this is known
const DONE = 6; // helpers that have carried it out
const RUN = 1;
const NEW_MEMORY = 2;
const CLOSED = -(2 ** 30);
const SPINS = 4000; // some tens of microseconds: a pause between two runs, not between two frames
const PATIENCE = 1 / 8; // how much of the time that some work takes is spent waiting for helpers
const MOST_PATIENCE = 2; // milliseconds
const MARGIN = 0.9; // of its time with helpers is what work must take without, to go on like that
const FIRST_GAP = 4; // runs before the other way is tried
const LAST_GAP = 128;
const FRESH = 2; // runs with helpers after the first without

/** @param {WebAssembly.Module} module @param {WebAssembly.Memory} memory @returns {ModuleRun} */
export function instantiate(module, memory) {
  return /** @type {ModuleRun} */ (new WebAssembly.Instance(module, { env: { memory } }).exports.run);
}

/**
 * A helper thread: do what the control words say until a message is announced.
 * @param {Help} help
 */
export function help({ module, memory, control, seen, port }) {
  try {
    const run = instantiate(module, memory);
    for (;;) {
      waitForChange(control, GENERATION, seen);
      seen = Atomics.load(control, GENERATION);
      const before = Atomics.add(control, CAME, 1);
      if (before < 0) continue; // too late
      Atomics.notify(control, CAME);
      waitForChange(control, THREADS, 0);
      const command = Atomics.load(control, COMMAND);
      const [first, last] = [Atomics.load(control, FIRST), Atomics.load(control, LAST)];
      if (command === RUN && first < last) run(first, last, before + 1, Atomics.load(control, THREADS));
      Atomics.add(control, DONE, 1);
      Atomics.notify(control, DONE);
      if (command === NEW_MEMORY) return;
    }
  } catch (error) {
    port.postMessage(toData(error)); // straight to the page: the leader waits in a barrier
  }
}

/** Steps of the module, and the milliseconds that they take with helpers and without. */
export class Work {
  #together = Infinity;
  #alone = Infinity;
  #stale = 0; // runs with helpers until their time is known anew: code may have been slow at first
  #gap = FIRST_GAP;
  #left = FIRST_GAP;

  /** `isDivisible`: they decide nothing, so each may be run by itself. @param {number} first @param {number} last @param {boolean} isDivisible */
  constructor(first, last, isDivisible) {
    this.first = first;
    this.last = last;
    this.isDivisible = isDivisible;
  }

  /** How long to wait for helpers. */
  get patience() {
    return Math.min(PATIENCE * this.#together, MOST_PATIENCE);
  }

  /** Whether the next run takes helpers: as is faster, or the other way where that was never tried, or long ago. */
  chooseTogether() {
    if (this.#stale) return true;
    const together = MARGIN * this.#together <= this.#alone;
    if (together && this.#alone < Infinity) {
      this.#left = this.#gap = FIRST_GAP;
      return true;
    }
    if (this.#left-- > 0) return together;
    if (together) this.#stale = FRESH;
    else this.#gap = Math.min(2 * this.#gap, LAST_GAP);
    this.#left = this.#gap;
    return !together;
  }

  /** Keep the time of a run: a shorter one counts at once, a longer one little by little. @param {boolean} together @param {number} milliseconds */
  took(together, milliseconds) {
    const settled = (/** @type {number} */ before) => Math.min(milliseconds, (3 * before + milliseconds) / 4);
    if (!together) {
      this.#alone = settled(this.#alone);
    } else {
      this.#together = this.#stale === FRESH ? milliseconds : settled(this.#together);
      this.#stale = Math.max(0, this.#stale - 1);
    }
  }
}

/** The helpers of a model, as its leader sees them. */
export class Crew {
  #size;
  #admitted = 0; // to the last command

  /** @param {number} size */
  constructor(size) {
    this.#size = size;
    this.control = new Int32Array(new SharedArrayBuffer(CONTROL_BYTES));
  }

  /**
   * Run work on the leader and, if that is faster, on the helpers that come; returns when all is done.
   * @param {ModuleRun} run
   * @param {Work} work
   */
  run(run, work) {
    const begin = performance.now();
    const together = work.chooseTogether();
    if (together) this.#runTogether(run, work);
    else run(work.first, work.last, 0, 1);
    work.took(together, performance.now() - begin);
  }

  /** @param {ModuleRun} run @param {Work} work */
  #runTogether(run, { first, last, isDivisible, patience }) {
    this.#call(RUN);
    this.#await(patience);
    for (; isDivisible && first < last && !this.#isComplete(); first++) run(first, first + 1, 0, 1);
    Atomics.store(this.control, FIRST, first);
    Atomics.store(this.control, LAST, last);
    const threads = this.#start();
    if (first < last) run(first, last, 0, threads);
  }

  /**
   * Send the helpers back to their event loops, where a message with the new memory and the returned count must reach them.
   * @returns {number}
   */
  announceMemory() {
    this.#call(NEW_MEMORY);
    this.#await(Infinity);
    this.#start();
    return Atomics.load(this.control, GENERATION);
  }

  /** Wake the helpers for a command, once they are done with the last one. @param {number} command */
  #call(command) {
    const { control } = this;
    for (let done; (done = Atomics.load(control, DONE)) < this.#admitted; ) waitForChange(control, DONE, done);
    Atomics.store(control, COMMAND, command);
    Atomics.store(control, DONE, 0);
    Atomics.store(control, THREADS, 0);
    Atomics.store(control, CAME, 0);
    Atomics.add(control, GENERATION, 1);
    Atomics.notify(control, GENERATION);
  }

  /** Wait until all helpers have come, but not for long. @param {number} milliseconds */
  #await(milliseconds) {
    const end = performance.now() + milliseconds;
    while (!this.#isComplete()) {
      const left = end - performance.now();
      if (left <= 0) return;
      waitForChange(this.control, CAME, Atomics.load(this.control, CAME), left);
    }
  }

  #isComplete() {
    return Atomics.load(this.control, CAME) === this.#size;
  }

  /** Admit no more helpers; those that came start, in number one less than is returned. */
  #start() {
    this.#admitted = Atomics.exchange(this.control, CAME, CLOSED);
    Atomics.store(this.control, THREADS, this.#admitted + 1);
    Atomics.notify(this.control, THREADS);
    return this.#admitted + 1;
  }
}

/** Spin, then sleep, until a word changes or the time is over. @param {Int32Array} control @param {number} word @param {number} seen @param {number} [milliseconds] */
function waitForChange(control, word, seen, milliseconds = Infinity) {
  for (let i = 0; i < SPINS; i++) if (Atomics.load(control, word) !== seen) return;
  while (Atomics.load(control, word) === seen && Atomics.wait(control, word, seen, milliseconds) !== "timed-out");
}
