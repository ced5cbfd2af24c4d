// The GPU adapter of this machine.

import { AdapterError } from "./errors.js";

/**
 * Throws `AdapterError` where there is none.
 * @param {boolean} mustBeHardware  one that computes on the CPU is none
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

/** True for adapters that compute on the CPU. @param {GPUAdapter} adapter */
function isSoftware({ info }) {
  return info?.isFallbackAdapter || /swiftshader|llvmpipe|lavapipe/i.test(`${info?.architecture} ${info?.description}`);
}
