// The GPU adapter of this machine.

import { AdapterError } from "./errors.js";

/**
 * Throws `AdapterError` where there is none.
 * @returns {Promise<GPUAdapter>}
 */
export async function findAdapter() {
  const gpu = globalThis.navigator?.gpu;
  if (!gpu) throw new AdapterError('this browser offers no WebGPU here; load with device: "wasm"');
  const adapter = await gpu.requestAdapter({ powerPreference: "high-performance" });
  if (!adapter) throw new AdapterError('no GPU adapter is available; load with device: "wasm"');
  return adapter;
}

/** True for adapters that compute on the CPU. @param {GPUAdapter} adapter */
export function isSoftware({ info }) {
  return info.isFallbackAdapter || /swiftshader|llvmpipe|lavapipe/i.test(`${info.architecture} ${info.description}`);
}
