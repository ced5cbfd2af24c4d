// Read tensors from the raw files that data.json names.

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
 * Fetch the inputs or the outputs of a model.
 * @param {string} model  the model's folder
 * @param {"inputs" | "outputs"} side
 * @returns {Promise<Record<string, import("./bench.js").Tensor>>}
 */
export async function fetchData(model, side) {
  const entries = (await (await fetch(`${model}data.json`)).json())[side];
  const tensors = entries.map(async (/** @type {any} */ { name, dtype, shape, file }) => {
    const buffer = await (await fetch(model + file)).arrayBuffer();
    return [name, { dtype, shape, data: arrayOf(dtype, buffer) }];
  });
  return Object.fromEntries(await Promise.all(tensors));
}
