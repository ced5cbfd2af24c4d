// One engine with one model, ready to be timed.
//
//   in:  ?engine=webmlc|onnxruntime|tfjs & model=<folder> & device=wasm|webgpu & threads=<n> [& variant=relaxed|simd128]
//   out: globalThis.bench = { load, first, error, version, variant, run, profile }, once the first result is there; `variant` is what runs
//
// The model's folder holds model.onnx, package/ (webmlc's), and data.json, which names raw little-endian files
// of inputs and of the outputs that native onnxruntime gives for them.

import { fetchData } from "./data.js";

/**
 * @typedef {{ dtype: string, shape: number[], data: any }} Tensor
 * @typedef {{ version: string, variant?: string | null, run: (inputs: Record<string, Tensor>) => Promise<Record<string, ArrayLike<number | bigint>>>, profile?: (inputs: Record<string, Tensor>) => Promise<any[]> }} Engine
 * @typedef {{ model: string, device: "wasm" | "webgpu", threads: number, variant?: "relaxed" | "simd128" }} Options
 */

/** Largest difference of all outputs, relative to each output's largest magnitude. */
function relativeError(/** @type {Record<string, any>} */ found, /** @type {Record<string, Tensor>} */ expected) {
  let worst = 0;
  for (const [name, { data }] of Object.entries(expected)) {
    let scale = 0;
    let difference = 0;
    if (found[name]?.length !== data.length) throw new Error(`output ${name} has ${found[name]?.length} elements, not ${data.length}`);
    for (let i = 0; i < data.length; i++) {
      scale = Math.max(scale, Math.abs(Number(data[i])));
      const d = Math.abs(Number(data[i]) - Number(found[name][i]));
      if (!(d <= difference)) difference = d; // written so that NaN is the worst
    }
    const relative = difference / (scale || 1);
    if (!(relative <= worst)) worst = relative;
  }
  return worst;
}

async function start() {
  const query = new URLSearchParams(location.search);
  const model = query.get("model") ?? "";
  const device = /** @type {"wasm" | "webgpu"} */ (query.get("device"));
  const threads = Number(query.get("threads"));
  const variant = query.get("variant") ?? undefined;
  const inputsToCome = fetchData(model, "inputs"); // a page's data and its engine do not wait for each other
  const { create } = await import(`./engines/${query.get("engine")}.js`);
  const loading = performance.now();
  /** @type {Engine} */
  const engine = await create({ model, device, threads, variant });
  const load = performance.now() - loading;
  const inputs = await inputsToCome;
  const outputs = await engine.run(inputs);
  const first = performance.now(); // since navigation began
  const error = relativeError(outputs, await fetchData(model, "outputs"));

  async function run() {
    const begin = performance.now();
    await engine.run(inputs);
    return performance.now() - begin;
  }
  return { load, first, error, version: engine.version, variant: engine.variant, run, profile: () => engine.profile?.(inputs) };
}

/** @type {any} */ (globalThis).bench = start();
