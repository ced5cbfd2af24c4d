// Run the models of test_own_memory.py with inputs that are parts of larger arrays, and change the inputs while the model runs.

/** @param {number[] | boolean} value */
function tensorOf(value) {
  if (typeof value === "boolean") return { dtype: "bool", shape: [], data: Uint8Array.of(Number(value)) };
  return { dtype: "float32", shape: [value.length], data: Float32Array.of(7, ...value, 7).subarray(1, -1) };
}

/**
 * @param {import("../../runtime_js/webmlc.js").Model} model
 * @param {Record<string, number[] | boolean>[]} runs
 * @returns {Promise<({ outputs: Record<string, number[]>, shares: boolean } | string)[]>}  `shares`: an output is in the memory of another or
 *   of an input; a string is the error of a run
 */
export async function exercise(model, runs) {
  const results = [];
  for (const run of runs) {
    const feeds = Object.fromEntries(Object.entries(run).map(([name, value]) => [name, tensorOf(value)]));
    const running = model.run(feeds);
    for (const { data } of Object.values(feeds)) data.fill(0);
    const outputs = await running.catch((/** @type {any} */ { code, message }) => `${code}: ${message}`);
    if (typeof outputs === "string") {
      results.push(outputs);
      continue;
    }
    const memory = [...Object.values(outputs), ...Object.values(feeds)].map(({ data }) => data.buffer);
    const plain = Object.fromEntries(Object.entries(outputs).map(([name, { data }]) => [name, Array.from(data, Number)]));
    results.push({ outputs: plain, shares: new Set(memory).size < memory.length });
  }
  return results;
}
