// Measure a trial: the steps that webmlc/tune/trial.py defines. The twin of webmlc/tune/engines/rounds.py.
//
//   in:  a trial, as JSON
//   out: { milliseconds, reasons }, one of each for every candidate
//
// It runs in a worker of a browser, or in Node. Nothing else of webmlc is needed.

import { difference } from "./compare.js";
import { WasmRunner } from "./wasm_runner.js";
import { GpuRunner } from "./gpu_runner.js";

/** @typedef {import("./types.d.ts").Trial} Trial */
/** @typedef {import("./types.d.ts").Runner} Runner */
/** @typedef {import("./types.d.ts").Measurement} Measurement */

const SHORTEST_MS = 1e-6; // stands for a time too short for the timer
const TIMER_STEPS = 20; // a sample takes at least this many steps of the timer

/**
 * Measure the candidates of a trial. Rejects if candidate 0 does not run.
 * @param {Trial} trial
 * @param {(tid: number, module: WebAssembly.Module, memory: WebAssembly.Memory, threads: number) => { help: () => void, stop: () => void }} [startHelper]
 *        starts a thread that helps with parallel loops
 * @returns {Promise<Measurement>}
 */
export async function measure(trial, startHelper) {
  const runner = trial.device === "wasm" ? await WasmRunner.open(trial, startHelper) : await GpuRunner.open(trial);
  try {
    return await measureWith(trial, runner);
  } finally {
    runner.stop();
  }
}

/** @param {Trial} trial @param {Runner} runner @returns {Promise<Measurement>} */
async function measureWith(trial, runner) {
  const { protocol } = trial;
  const numbers = Array.from({ length: trial.candidates }, (_, i) => i);
  const reasons = numbers.map(() => "");
  const control = await runner.outputs(0);
  for (const candidate of numbers.slice(1)) {
    try {
      reasons[candidate] = mismatch(trial, await runner.outputs(candidate), control);
    } catch (error) {
      reasons[candidate] = `failed: ${String(/** @type {any} */ (error)?.message ?? error).split("\n")[0]}`;
    }
  }
  let candidates = numbers.filter((i) => !reasons[i]);
  const sampleMs = Math.max(protocol.sample_ms, TIMER_STEPS * timerStep());
  /** @type {number[]} */
  const repeats = [];
  for (const candidate of candidates) repeats[candidate] = await warmUp(trial, runner, candidate, sampleMs);
  /** @type {number[][]} */
  const milliseconds = numbers.map(() => []);
  for (let round = 1; round <= protocol.rounds; round++) {
    for (const candidate of candidates) {
      const time = Math.max(await runner.sample(candidate, repeats[candidate]), SHORTEST_MS);
      milliseconds[candidate].push(time / (repeats[candidate] * trial.calls.length));
    }
    const fastest = Math.min(...candidates.map((i) => Math.min(...milliseconds[i])));
    const limit = fastest * protocol.hopeless * (round < protocol.grace ? 2 : 1);
    candidates = candidates.filter((i) => i === 0 || Math.min(...milliseconds[i]) <= limit);
  }
  return { milliseconds, reasons };
}

/** Why a candidate's outputs are wrong, or "". @param {Trial} trial @param {Uint8Array[]} actual @param {Uint8Array[]} expected */
function mismatch(trial, actual, expected) {
  const types = trial.buffers.filter(({ pattern }) => !pattern).map(({ dtype }) => dtype);
  for (const [i, dtype] of types.entries()) {
    const text = difference(actual[i], expected[i], dtype, trial.tolerance);
    if (text) return `wrong: ${text}`;
  }
  return "";
}

/**
 * Warm a candidate up. Returns the repetitions that take as long as a sample should.
 * @param {Trial} trial @param {Runner} runner @param {number} candidate @param {number} sampleMs
 */
async function warmUp({ protocol }, runner, candidate, sampleMs) {
  for (let repeats = 1, spent = 0; ; ) {
    const time = Math.max(await runner.sample(candidate, repeats), SHORTEST_MS);
    spent += time;
    const fitting = Math.min(Math.max(1, Math.ceil((repeats * sampleMs) / time)), protocol.max_repeats);
    if (spent >= protocol.warmup_ms) return fitting;
    repeats = Math.min(fitting, 8 * repeats);
  }
}

/** The smallest step of this engine's timer, in milliseconds. */
function timerStep() {
  let step = Infinity;
  for (let i = 0; i < 5; i++) {
    const begin = performance.now();
    let end = begin;
    while (end === begin) end = performance.now();
    step = Math.min(step, end - begin);
  }
  return step;
}
