// Measure the package in whose folder this page is served: on the GPU too, and with threads.

/** @typedef {import("./types.d.ts").Data} Data */
/** @typedef {import("./types.d.ts").Times} Times */
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
