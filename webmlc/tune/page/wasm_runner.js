// Run the candidates of a trial on the CPU. The twin of webmlc/tune/engines/wasm.py.

import { bytesOf, elementBytes, fill, POISON } from "./compare.js";

/** @typedef {import("./types.d.ts").Runner} Runner */
/** @typedef {import("./types.d.ts").Trial} Trial */
/** @typedef {import("./types.d.ts").StartHelper} StartHelper */
/** @typedef {import("./types.d.ts").Helper} Helper */

const RUNNING = 128; // the address of the word that is 1 while helpers take chunks (see webmlc/target/wasm/threads.py)
const MAX_PAGES = 65536; // of the memory that modules import

/** @implements {Runner} */
export class WasmRunner {
  /**
   * @param {Trial} trial @param {StartHelper} [startHelper]
   */
  static async open(trial, startHelper) {
    const module = await WebAssembly.compile(bytesOf(trial.module));
    const memory = new WebAssembly.Memory({ initial: trial.pages, maximum: MAX_PAGES, shared: true });
    const { exports } = await WebAssembly.instantiate(module, { env: { memory } });
    const runner = new WasmRunner(trial, memory, /** @type {any} */ (exports.run));
    for (let tid = 1; tid < trial.threads && startHelper; tid++) runner.helpers.push(startHelper(tid, module, memory, trial.threads));
    return runner;
  }

  /** @type {Helper[]} */
  helpers = [];

  /**
   * @param {Trial} trial @param {WebAssembly.Memory} memory
   * @param {(first: number, last: number, tid: number, threads: number) => void} run
   */
  constructor(trial, memory, run) {
    this.trial = trial;
    this.run = run;
    this.words = new Int32Array(memory.buffer);
    this.bytes = new Uint8Array(memory.buffer);
    for (const [address, words] of trial.words) this.words.set(words, address / 4);
    for (const [seed, buffer] of trial.buffers.entries()) {
      if (buffer.pattern) this.bytes.set(fill(buffer, elementBytes(buffer.dtype), seed), buffer.offset);
    }
  }

  /** @param {number} candidate */
  outputs(candidate) {
    const places = this.trial.buffers.filter(({ pattern }) => !pattern).map(({ offset, size }) => this.bytes.subarray(offset, offset + size));
    for (const place of places) place.fill(POISON);
    this.#call(candidate, 1);
    return places.map((place) => place.slice());
  }

  /** @param {number} candidate @param {number} repeats */
  sample(candidate, repeats) {
    const begin = performance.now();
    this.#call(candidate, repeats);
    return performance.now() - begin;
  }

  stop() {
    for (const helper of this.helpers) helper.stop();
  }

  /** @param {number} candidate @param {number} repeats */
  #call(candidate, repeats) {
    const { steps, repeats_address, threads } = this.trial;
    this.words[repeats_address / 4] = repeats;
    Atomics.store(this.words, RUNNING / 4, 1);
    for (const helper of this.helpers) helper.help();
    try {
      this.run(steps * candidate, steps * (candidate + 1), 0, threads);
    } finally {
      Atomics.store(this.words, RUNNING / 4, 0);
    }
  }
}
