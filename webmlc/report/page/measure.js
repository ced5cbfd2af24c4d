// Measure a program, inside this page or in the package beside it.
//
// Inside the page, run the CPU program, one thread, step by step. The page holds the module, and the constants whose values matter.
// `webmlc/report/measurable.py` says what is where; `webmlc/target/wasm/emit_module.py` says what the module expects.

import { hasPart, inflate, partBytes } from "./parts.js";

/** @import { Data, Run, Step, Times } from "./types.d.ts" */
/** @typedef {{ run: (first: number, last: number, thread: number, threads: number) => void, warm: (loop: number, calls: number) => number }} Exports */

const PAGE = 65536;
const [SLOTS, SCRATCH, MAY_NOT_SLEEP] = [1024, 256, 132]; // addresses of the control area
const ROUNDS = 3; // each step is measured so often, and the fastest one counts
const RUNS = 5; // whole runs in a round
const SAMPLE = 1; // milliseconds that one sample takes at least: browsers round their clocks
const MOST_CALLS = 4096; // of one step in a sample
const PAUSE = 30; // milliseconds between two breaks, in which the page stays alive
const PEAK_LOOPS = 2_000_000;
const PEAK_BYTES = 32 << 20;

/**
 * @param {Run} plan @param {Step[]} steps
 * @param {(share: number) => void} onProgress
 * @returns {Promise<Times>}
 */
export async function measureHere(plan, steps, onProgress) {
  const variant = await chooseVariant();
  const memory = allocate(plan);
  const module = await WebAssembly.compile(await inflate(partBytes(`module-${variant}`)));
  const instance = await WebAssembly.instantiate(module, { env: { memory } });
  const exports = /** @type {Exports} */ (/** @type {unknown} */ (instance.exports));
  const runStep = (/** @type {number} */ step) => exports.run(plan.steps[step], plan.steps[step] + 1, 0, 1);
  const pause = pacer();
  for (let loop = 0; exports.warm(loop, 20_000); loop++) await pause();
  for (const step of steps.keys()) runStep(step); // also what runs at load
  const timed = [...steps.keys()].filter((step) => !steps[step].once);
  for (const step of timed) runStep(step);
  const peak = await measurePeak(variant, plan.accumulators);
  /** @type {(number | undefined)[]} */
  const times = steps.map(() => undefined);
  const calls = steps.map(() => 1); // of each step in a sample
  let whole = Infinity;
  for (let round = 0; round < ROUNDS; round++) {
    for (let i = 0; i < RUNS; i++) {
      const start = performance.now();
      for (const step of timed) runStep(step);
      whole = Math.min(whole, performance.now() - start);
      await pause();
    }
    for (const [i, step] of timed.entries()) {
      let ms = sample(() => runStep(step), calls[step]);
      while (ms < SAMPLE && calls[step] < MOST_CALLS) {
        calls[step] = Math.min(MOST_CALLS, Math.ceil(calls[step] * Math.max(2, Math.min(64, (1.2 * SAMPLE) / ms))));
        ms = sample(() => runStep(step), calls[step]);
      }
      times[step] = Math.min(times[step] ?? Infinity, ms / calls[step]);
      if (await pause()) onProgress((round + i / timed.length) / ROUNDS);
    }
  }
  const total = times.reduce((/** @type {number} */ sum, ms) => sum + (ms ?? 0), 0);
  return { steps: times, total, whole, how: `CPU, 1 thread, module ${variant}, in this page; random weights; steps repeat, so caches hold their data`, peak };
}

/** The milliseconds of some calls. @param {() => void} call @param {number} calls */
function sample(call, calls) {
  const start = performance.now();
  for (let i = 0; i < calls; i++) call();
  return performance.now() - start;
}

/** Returns a function that lets the page breathe now and then, and says if it did. */
function pacer() {
  let last = performance.now();
  return async () => {
    if (performance.now() - last < PAUSE) return false;
    await new Promise((resolve) => setTimeout(resolve));
    last = performance.now();
    return true;
  };
}

/** The fastest module that the page holds and this browser runs. */
async function chooseVariant() {
  for (const variant of ["relaxed", "simd128"]) {
    if (hasPart(`module-${variant}`) && WebAssembly.validate(partBytes(`peak-${variant}`))) return variant;
  }
  throw new Error("this browser does not run WebAssembly with SIMD");
}

/** Memory with the slots, the real constants and random numbers. @param {Run} plan */
function allocate(plan) {
  const pages = Math.ceil(plan.total / PAGE);
  const memory = new WebAssembly.Memory({ initial: pages, maximum: pages, shared: true });
  const bytes = new Uint8Array(memory.buffer);
  const words = new Int32Array(memory.buffer);
  words.set(plan.slots, SLOTS / 4);
  words.set(plan.scratch, SCRATCH / 4);
  words[MAY_NOT_SLEEP / 4] = 1;
  const constants = partBytes("constants");
  let position = 0;
  for (const [address, size] of plan.constants) {
    bytes.set(constants.subarray(position, position + size), address);
    position += size;
  }
  for (const [address, size, dtype] of plan.fills) fill(memory.buffer, address, size, dtype);
  return memory;
}

/** Fill memory with small random numbers of a type. @param {ArrayBufferLike} buffer @param {number} address @param {number} size @param {string} dtype */
function fill(buffer, address, size, dtype) {
  let seed = 12345;
  const next = () => (seed = (Math.imul(seed, 1664525) + 1013904223) >>> 0) / 2 ** 32;
  if (dtype === "float32") {
    const values = new Float32Array(buffer, address, size >> 2);
    for (let i = 0; i < values.length; i++) values[i] = 0.1 * (next() - 0.5);
  } else if (dtype === "float64") {
    const values = new Float64Array(buffer, address, size >> 3);
    for (let i = 0; i < values.length; i++) values[i] = 0.1 * (next() - 0.5);
  } else if (dtype.endsWith("float16")) {
    const [one, mask] = dtype === "float16" ? [0x2000, 0x83ff] : [0x3c00, 0x807f]; // signs and mantissas are random
    const values = new Uint16Array(buffer, address, size >> 1);
    for (let i = 0; i < values.length; i++) values[i] = one | ((next() * 65536) & mask);
  } else {
    const values = new Uint8Array(buffer, address, size);
    for (let i = 0; i < values.length; i++) values[i] = next() * 256;
  }
}

/** The limits of this machine: operations per second in registers, and bytes per second from memory. @param {string} variant @param {number} accumulators */
async function measurePeak(variant, accumulators) {
  const { instance } = await WebAssembly.instantiate(partBytes(`peak-${variant}`));
  const { multiply, read } = /** @type {{ multiply: (n: number) => number, read: (end: number) => number }} */ (/** @type {unknown} */ (instance.exports));
  const best = (/** @type {() => void} */ call) => {
    let least = Infinity;
    for (let i = 0; i < 5; i++) {
      const start = performance.now();
      call();
      least = Math.min(least, performance.now() - start);
    }
    return least / 1000;
  };
  for (let i = 0; i < 20; i++) multiply(1000); // so that the engine optimises it
  const loops = PEAK_LOOPS / 4;
  const flops = (loops * accumulators * 4 * 2) / best(() => multiply(loops));
  const bytes = PEAK_BYTES / best(() => read(PEAK_BYTES));
  return { flops, bytes };
}

// The package in whose folder this page is served is measured on the GPU too, and with threads.

/** @typedef {string | number | (string | number)[]} Size */

const PROFILES = 5; // the fastest of these profiles counts, step by step
const LONGEST = 20_000; // milliseconds after which no further profile begins
const ARRAYS = /** @type {Record<string, any>} */ ({
  float32: Float32Array, float64: Float64Array, int8: Int8Array, int16: Int16Array, uint16: Uint16Array,
  int32: Int32Array, uint32: Uint32Array, int64: BigInt64Array, uint64: BigUint64Array,
});

/** True if the folder of this page holds the package of the report. @param {Data} data */
export async function findPackage(data) {
  if (!location.protocol.startsWith("http")) return false;
  try {
    const manifest = await (await fetch("./manifest.json")).json();
    return manifest.format === "webmlc" && manifest.name === data.name && manifest.compiler === data.compiler;
  } catch {
    return false;
  }
}

/** @param {Data} data @param {"wasm" | "webgpu"} device @param {(share: number) => void} onProgress @returns {Promise<Times>} */
export async function measurePackage(data, device, onProgress) {
  const { load } = await import(new URL("./webmlc.js", location.href).href);
  const model = await load("./", { device, onProgress: (/** @type {any} */ { loaded, total }) => onProgress(loaded / total / 2) });
  try {
    const inputs = Object.fromEntries(model.inputs.map((/** @type {any} */ port) => [port.name, tensor(port, data.symbols)]));
    const count = /** @type {any} */ (data.programs)[device].steps.length;
    /** @type {(number | undefined)[]} */
    const times = Array(count).fill(undefined);
    let whole = Infinity;
    const begin = performance.now();
    for (let round = 0; round < PROFILES && performance.now() - begin < LONGEST; round++) {
      const start = performance.now();
      await model.run(inputs);
      whole = Math.min(whole, performance.now() - start);
      const profile = await model.profile(inputs);
      if (profile.length !== count) throw new Error("the package beside this page is of another build: write the report again");
      for (const [i, { milliseconds }] of profile.entries()) if (milliseconds) times[i] = Math.min(times[i] ?? Infinity, milliseconds);
      onProgress(0.5 + round / PROFILES / 2);
    }
    const total = times.reduce((/** @type {number} */ sum, ms) => sum + (ms ?? 0), 0);
    const cpu = model.variant ? `, ${model.threads} thread${model.threads === 1 ? "" : "s"}, module ${model.variant}` : "";
    return { steps: times, total, whole, how: `${device === "wasm" ? "CPU" : "GPU"}${cpu}, the package beside this page` };
  } finally {
    model.dispose();
  }
}

/** Random floats, and zeros for integers, which are indices. @param {{ dtype: string, shape: Size[] }} port @param {Record<string, number>} symbols */
function tensor({ dtype, shape }, symbols) {
  const sizes = shape.map((size) => (typeof size === "number" ? size : symbols[/** @type {string} */ (size)] ?? 1));
  const count = sizes.reduce((a, b) => a * b, 1);
  const data = new (ARRAYS[dtype] ?? (dtype.endsWith("float16") ? Uint16Array : Uint8Array))(count);
  if (dtype === "float32" || dtype === "float64") for (let i = 0; i < count; i++) data[i] = Math.random() - 0.5;
  return { dtype, shape: sizes, data };
}
