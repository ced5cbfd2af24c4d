// Ask the browser for a GPU adapter.

import { AdapterError } from "./errors.js";
import { isSoftware } from "./machine_class.js";

/**
 * The machine's GPU adapter. Throws `AdapterError` if there is none.
 * @param {boolean} mustBeHardware  also throw if the adapter computes on the CPU
 * @returns {Promise<GPUAdapter>}
 */
export async function findAdapter(mustBeHardware) {
  const gpu = globalThis.navigator?.gpu;
  if (!gpu) throw new AdapterError('this host offers no WebGPU; load with device: "wasm"');
  let reason = "";
  let adapter = null;
  try {
    adapter = await gpu.requestAdapter({ powerPreference: "high-performance" });
  } catch (error) {
    reason = ` (${error})`;
  }
  if (!adapter) throw new AdapterError(`no GPU adapter is available${reason}; load with device: "wasm"`);
  if (mustBeHardware && isSoftware(adapter)) throw new AdapterError("the only GPU adapter is software");
  return adapter;
}
