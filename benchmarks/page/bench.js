// Prepare one engine with one model for measurements.
//
//   in:  ?engine=webmlc|onnxruntime|tfjs|litert & model=<folder> & device=wasm|webgpu & threads=<n> [& variant=relaxed|simd128] [& folder=<of the package>]
//   out: globalThis.bench, a promise of { load, first, error, version, variant, run, series, profile } after the first result; `variant` is
//        the module that runs
//
// The folder of a model contains model.onnx, model.tflite (where it is of TensorFlow Lite), package/ (of webmlc) and data.json. That names raw little-endian files of inputs, and
// of the outputs that native onnxruntime computes from them.

import { fetchData, relativeError } from "./data.js";

/**
 * @typedef {{ dtype: string, shape: number[], data: any }} Tensor
 * @typedef {{ version: string, variant?: string | null, run: (inputs: Record<string, Tensor>) => Promise<Record<string, ArrayLike<number | bigint>>>, profile?: (inputs: Record<string, Tensor>) => Promise<any[]> }} Engine
 * @typedef {{ model: string, device: "wasm" | "webgpu", threads: number, variant?: "relaxed" | "simd128", folder?: string }} Options
 */

async function start() {
  const query = new URLSearchParams(location.search);
  const model = query.get("model") ?? "";
  const device = /** @type {"wasm" | "webgpu"} */ (query.get("device"));
  const threads = Number(query.get("threads"));
  const variant = query.get("variant") ?? undefined;
  const folder = query.get("folder") ?? undefined;
  const inputsPromise = fetchData(model, "inputs"); // not awaited: the inputs and the engine load at the same time
  const { create } = await import(`./engines/${query.get("engine")}.js`);
  const loadBegin = performance.now();
  /** @type {Engine} */
  const engine = await create({ model, device, threads, variant, folder });
  const load = performance.now() - loadBegin;
  const inputs = await inputsPromise;
  const outputs = await engine.run(inputs);
  const first = performance.now(); // since navigation began
  const error = relativeError(outputs, await fetchData(model, "outputs"));

  async function run() {
    const begin = performance.now();
    await engine.run(inputs);
    return performance.now() - begin;
  }

  /** The milliseconds of `count` runs that begin every `interval` milliseconds, as frames of a camera do; in a loop if it is 0. */
  async function series(/** @type {number} */ count, /** @type {number} */ interval) {
    const times = [];
    let next = performance.now();
    for (let i = 0; i < count; i++) {
      times.push(await run());
      next = Math.max(next + interval, performance.now());
      if (interval) await new Promise((resolve) => setTimeout(resolve, next - performance.now()));
    }
    return times;
  }
  return { load, first, error, version: engine.version, variant: engine.variant, run, series, profile: () => engine.profile?.(inputs) };
}

/** @type {any} */ (globalThis).bench = start();
