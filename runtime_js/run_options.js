// Read the options of a run: the outputs that it returns, what receives them, and the signal that ends it.

import { arrayOf, asStored, isArrayOf, isGpuBuffer } from "./dtypes.js";
import { InputError } from "./errors.js";
import { described } from "./kinds.js";

/** @import { RunOptions, TypedArray } from "./webmlc.js" */
/** @typedef {{ name: string, dtype: string }} Output */

const OPTIONS = ["outputs", "results", "signal"];

/** Throw the reason of a signal that is aborted. @param {AbortSignal} [signal] */
export function throwIfAborted(signal) {
  if (signal?.aborted) throw signal.reason;
}

/** Throw InputError if the option `signal` is none. @param {AbortSignal} [signal] */
export function checkSignal(signal) {
  if (signal && typeof signal.aborted !== "boolean") throw new InputError(`signal is ${described(signal)}, expected an AbortSignal`);
}

/** True if an output is to stay on the GPU. @param {unknown} result */
const staysOnGpu = (result) => result === "gpu" || isGpuBuffer(result);

/** True if outputs are to stay on the GPU. @param {RunOptions["results"]} results */
export function hasGpuResults(results = {}) {
  return results === "gpu" || Object.values(results).some(staysOnGpu);
}

/**
 * Check the options of a run, and return the outputs that it returns, in the order of the model.
 * @template {Output} P
 * @param {P[]} ports  of all outputs
 * @param {RunOptions} options
 */
export function chosenOutputs(ports, options) {
  const unknown = Object.keys(options).find((key) => !OPTIONS.includes(key));
  if (unknown !== undefined) throw new InputError(`no option of a run is named "${unknown}"; there are ${OPTIONS.join(", ")}`);
  const { outputs, signal } = options;
  if (outputs !== undefined && !Array.isArray(outputs)) throw new InputError("outputs is no list of names");
  checkSignal(signal);
  const names = new Set(outputs ?? ports.map(({ name }) => name));
  const { results = {} } = options.results === "gpu" ? {} : options;
  for (const name of [...names, ...Object.keys(results)]) {
    if (!ports.some((port) => port.name === name)) {
      const all = ports.map((port) => `"${port.name}"`).join(", ") || "none";
      throw new InputError(`no output is named "${name}"; the model returns ${all}`);
    }
    if (!names.has(name)) throw new InputError(`results has an array for "${name}", which is not one of outputs`);
  }
  const chosen = ports.filter(({ name }) => names.has(name));
  for (const port of chosen) checkResult(port, /** @type {Record<string, unknown>} */ (results)[port.name]);
  return chosen;
}

/**
 * Check the type of an array that is to receive an output.
 * @param {Output} port
 * @param {unknown} result
 */
function checkResult({ name, dtype }, result) {
  if (result === undefined || isArrayOf(result, dtype) || staysOnGpu(result)) return;
  throw new InputError(`the array in results for "${name}" is ${described(result)}, expected ${dtype} as ${arrayOf(dtype).name}`);
}

/**
 * Copy an output to the start of the array that is to receive it. Returns that part of the array.
 * @param {Output} port
 * @param {TypedArray} data
 * @param {TypedArray} result
 * @returns {TypedArray}
 */
export function received({ name, dtype }, data, result) {
  if (result.length < data.length) {
    throw new InputError(`the array in results for "${name}" has ${result.length} elements, but the output has ${data.length}`);
  }
  asStored(result, dtype).set(/** @type {any} */ (data));
  return result.length === data.length ? result : result.subarray(0, data.length);
}
