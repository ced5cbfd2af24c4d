// Measure a trial by the steps that webmlc/tune/measure/trial.py defines. The twin of webmlc/tune/measure/rounds.py.
//
//   in:  a trial as JSON data
//   out: { milliseconds, reasons }, an element of each for every candidate
//
//   const { milliseconds, reasons } = await measure(trial, startHelper);
//
// It runs in a worker of a page, and in Node, Deno and Bun.

import { difference, isOutput } from "./compare.js";
import { GpuRunner } from "./gpu_runner.js";
import { WasmRunner } from "./wasm_runner.js";

/** @import { Measurement, Progress, Runner, StartHelper, Trial } from "./types.d.ts" */

const TIMER_STEPS = 50; // a sample takes at least this many steps of the timer, whose error is then at most 2 %
const OVERHEADS = 10; // a sample takes at least this many times as long as an empty one: submitting it says nothing of a kernel
const TIMER_PROBES = 5; // steps of the timer that are measured; the smallest counts, because the thread may be interrupted
const MAX_GROWTH = 8; // how many times as often a candidate repeats in the next sample of its warm-up, at most
const GRACE_FACTOR = 2; // in the first rounds, a candidate drops out only if it is slower than this times `hopeless`

/**
 * Measure the candidates of a trial. Rejects if candidate 0 does not run, or if the GPU is lost.
 * @param {Trial} trial
 * @param {StartHelper} startHelper  lets another thread take part, if the trial has several
 * @param {(progress: Progress) => void} [onProgress]
 * @returns {Promise<Measurement>}
 */
export async function measure(trial, startHelper, onProgress = () => {}) {
  const runner = trial.device === "wasm" ? await WasmRunner.open(trial, startHelper) : await GpuRunner.open(trial);
  try {
    return await new Measuring(trial, runner, onProgress).all();
  } finally {
    runner.stop();
  }
}

class Measuring {
  repeats = 1; // of each candidate in a sample
  steps = 0; // of the progress
  overhead = 0; // milliseconds of an empty sample
  spent = 0; // milliseconds of all samples

  /** @param {Trial} trial @param {Runner} runner @param {(progress: Progress) => void} onProgress */
  constructor(trial, runner, onProgress) {
    this.trial = trial;
    this.runner = runner;
    this.onProgress = onProgress;
    this.timerStep = timerStep();
    this.sampleMs = Math.max(trial.protocol.sample_ms, TIMER_STEPS * this.timerStep);
    this.candidates = Array.from({ length: trial.candidates }, (_, i) => i); // those that still take part
    this.reasons = this.candidates.map(() => "");
    /** @type {number[][]} */
    this.milliseconds = this.candidates.map(() => []);
  }

  async all() {
    await this.#check();
    this.overhead = await this.runner.overhead();
    this.sampleMs = Math.max(this.sampleMs, OVERHEADS * this.overhead);
    await this.#forEach(async (candidate) => {
      const repeats = await this.#warmUp(candidate);
      if (candidate === 0) this.repeats = repeats;
    });
    const { rounds, fewest, limit_ms } = this.trial.protocol;
    for (let round = 1; round <= rounds && (round <= fewest || this.spent < limit_ms); round++) {
      await this.#forEach((candidate) => this.#sample(candidate));
      this.#dropHopeless(round);
      this.candidates.push(...this.candidates.splice(0, 1)); // no candidate always runs after the same other one
    }
    return { milliseconds: this.milliseconds, reasons: this.reasons };
  }

  /** Compare the outputs of all candidates with those of candidate 0. */
  async #check() {
    const types = this.trial.buffers.filter(isOutput).map(({ dtype }) => dtype);
    /** @type {Uint8Array[]} */
    let expected = [];
    await this.#forEach(async (candidate) => {
      const outputs = await this.runner.outputs(candidate);
      if (candidate === 0) expected = outputs;
      const differences = types.map((dtype, i) => difference(outputs[i], expected[i], dtype, this.trial.tolerance));
      const text = differences.find(Boolean);
      if (text) this.reasons[candidate] = `wrong: ${text}`;
    });
  }

  /** Run a candidate for a while. Returns the repetitions that take as long as a sample should. @param {number} candidate */
  async #warmUp(candidate) {
    const { warmup_ms, max_repeats } = this.trial.protocol;
    for (let repeats = 1, spent = 0; ; ) {
      const time = await this.#time(candidate, repeats);
      spent += time;
      const kernelMs = Math.max(time - this.overhead, time / OVERHEADS);
      const fitting = Math.min(Math.ceil((repeats * this.sampleMs) / kernelMs), max_repeats);
      if (spent >= warmup_ms) return fitting;
      repeats = Math.min(fitting, MAX_GROWTH * repeats);
    }
  }

  /** @param {number} candidate */
  async #sample(candidate) {
    const calls = this.repeats * this.trial.calls.length;
    const milliseconds = await this.#time(candidate, this.repeats);
    this.spent += milliseconds;
    this.milliseconds[candidate].push(milliseconds / calls);
  }

  /** @param {number} round  from 1 on */
  #dropHopeless(round) {
    const { grace, hopeless } = this.trial.protocol;
    const fastest = (/** @type {number} */ candidate) => Math.min(...this.milliseconds[candidate]);
    const limit = Math.min(...this.candidates.map(fastest)) * hopeless * (round < grace ? GRACE_FACTOR : 1);
    const others = this.candidates.filter((candidate) => candidate !== 0);
    const survivor = others.reduce((best, candidate) => (fastest(candidate) < fastest(best) ? candidate : best), others[0]);
    const survives = (/** @type {number} */ candidate) => candidate === 0 || candidate === survivor || fastest(candidate) <= limit;
    this.candidates = this.candidates.filter(survives);
  }

  /** The milliseconds of one sample, at least one step of the timer. @param {number} candidate @param {number} repeats */
  async #time(candidate, repeats) {
    return Math.max(await this.runner.sample(candidate, repeats), this.timerStep);
  }

  /**
   * Do some work for every candidate that takes part. One that fails is disqualified. Candidate 0 must not fail.
   * @param {(candidate: number) => Promise<void>} work
   */
  async #forEach(work) {
    for (const candidate of this.candidates) {
      try {
        await work(candidate);
      } catch (error) {
        const text = String(/** @type {Partial<Error>} */ (error)?.message ?? error).split("\n")[0];
        if (candidate === 0) throw new Error(`candidate 0 failed: ${text}`, { cause: error });
        if (this.runner.isLost) throw new Error(`candidate ${candidate} lost the device: ${text}`, { cause: error });
        this.reasons[candidate] = `failed: ${text}`;
        this.milliseconds[candidate] = [];
      }
    }
    this.candidates = this.candidates.filter((candidate) => !this.reasons[candidate]);
    this.steps += 1; // the check, the warm-up and the rounds are steps of about the same length
    this.onProgress({ done: this.steps / (this.trial.protocol.rounds + 2), candidates: this.candidates.length });
  }
}

/** The smallest step of this engine's timer, in milliseconds. */
function timerStep() {
  let smallest = Infinity;
  for (let i = 0; i < TIMER_PROBES; i++) {
    const begin = performance.now();
    let end = begin;
    while (end === begin) end = performance.now();
    smallest = Math.min(smallest, end - begin);
  }
  return smallest;
}
