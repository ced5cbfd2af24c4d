// Read tensors from the raw files that data.json names, and compare them.

/** @type {Record<string, any>} */
const ARRAYS = {
  float32: Float32Array,
  float64: Float64Array,
  int8: Int8Array,
  uint8: Uint8Array,
  bool: Uint8Array,
  int32: Int32Array,
  int64: BigInt64Array,
};

export function arrayOf(/** @type {string} */ dtype, /** @type {ArrayBuffer} */ buffer) {
  const type = ARRAYS[dtype];
  if (!type) throw new Error(`no typed array for ${dtype}`);
  return new type(buffer);
}

/**
 * The inputs or the outputs of a model.
 * @param {"inputs" | "outputs"} side
 * @param {(file: string) => Promise<ArrayBuffer>} read  reads a file of the model's folder
 * @returns {Promise<Record<string, import("./bench.js").Tensor>>}
 */
export async function readData(side, read) {
  const entries = JSON.parse(new TextDecoder().decode(await read("data.json")))[side];
  const tensors = entries.map(async (/** @type {any} */ { name, dtype, shape, file }) => {
    return [name, { dtype, shape, data: arrayOf(dtype, await read(file)) }];
  });
  return Object.fromEntries(await Promise.all(tensors));
}

/** Fetch the inputs or the outputs of the model in a folder. */
export function fetchData(/** @type {string} */ model, /** @type {"inputs" | "outputs"} */ side) {
  return readData(side, async (file) => (await fetch(model + file)).arrayBuffer());
}

/** The largest difference of an output, relative to the largest magnitude of that output. */
export function relativeError(/** @type {Record<string, any>} */ actual, /** @type {Record<string, import("./bench.js").Tensor>} */ expected) {
  let worst = 0;
  for (const [name, { data }] of Object.entries(expected)) {
    let scale = 0;
    let difference = 0;
    if (actual[name]?.length !== data.length) throw new Error(`output ${name} has ${actual[name]?.length} elements, not ${data.length}`);
    for (let i = 0; i < data.length; i++) {
      scale = Math.max(scale, Math.abs(Number(data[i])));
      const d = Math.abs(Number(data[i]) - Number(actual[name][i]));
      if (!(d <= difference)) difference = d; // NaN counts as the largest difference
    }
    const relative = difference / (scale || 1);
    if (!(relative <= worst)) worst = relative;
  }
  return worst;
}
