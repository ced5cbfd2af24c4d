// Run the candidates of a trial on the CPU. The twin of webmlc/tune/measure/wasm.py.

import { bytesOf, fill, isOutput, POISON } from "./compare.js";
import { Helpers, instantiate } from "./helpers.js";

/** @import { RunFunction, Runner, StartHelper, Trial } from "./types.d.ts" */

/** @implements {Runner} */
export class WasmRunner {
  isLost = false;

  /** @param {Trial} trial @param {StartHelper} startHelper */
  static async open(trial, startHelper) {
    const module = await WebAssembly.compile(bytesOf(trial.module));
    // The maximum is as small as it can be: phones reserve memory for it.
    const memory = new WebAssembly.Memory({ initial: trial.pages, maximum: trial.pages, shared: true });
    const helpers = await Helpers.start(trial, module, memory, startHelper);
    return new WasmRunner(trial, memory, instantiate(module, memory), helpers);
  }

  /** @param {Trial} trial @param {WebAssembly.Memory} memory @param {RunFunction} run @param {Helpers} helpers */
  constructor(trial, memory, run, helpers) {
    this.trial = trial;
    this.run = run;
    this.helpers = helpers;
    this.words = new Int32Array(memory.buffer);
    const bytes = new Uint8Array(memory.buffer);
    for (const [address, words] of trial.words) this.words.set(words, address / 4);
    for (const [seed, buffer] of trial.buffers.entries()) {
      if (!isOutput(buffer)) bytes.set(fill(buffer, seed), buffer.offset);
    }
    this.places = trial.buffers.filter(isOutput).map(({ offset, size }) => bytes.subarray(offset, offset + size));
  }

  /** @param {number} candidate */
  outputs(candidate) {
    for (const place of this.places) place.fill(POISON);
    this.sample(candidate, 1);
    return this.places.map((place) => Uint8Array.from(place)); // a copy in memory that is not shared
  }

  /** @param {number} candidate @param {number} repeats */
  sample(candidate, repeats) {
    const { steps, repeats_address, threads } = this.trial;
    this.words[repeats_address / 4] = repeats;
    this.helpers.call();
    try {
      const begin = performance.now();
      this.run(steps * candidate, steps * (candidate + 1), 0, threads);
      return performance.now() - begin;
    } catch (error) {
      this.helpers.reset();
      throw error;
    }
  }

  overhead() {
    return 0;
  }

  stop() {
    this.helpers.end();
  }
}
