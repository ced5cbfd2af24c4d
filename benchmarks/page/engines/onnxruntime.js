// ONNX Runtime Web, from its npm package: the build for WASM, or the one for WebGPU.

/** @param {import("../bench.js").Options} options */
export async function create({ model, device, threads }) {
  const ort = await import(`/onnxruntime/ort.${device}.min.mjs`);
  ort.env.wasm.wasmPaths = new URL("/onnxruntime/", location.href).href;
  ort.env.wasm.numThreads = threads;
  ort.env.logLevel = "error";
  const session = await ort.InferenceSession.create(`${model}model.onnx`, { executionProviders: [device] });
  return {
    version: ort.env.versions.web,
    async run(/** @type {any} */ inputs) {
      const feeds = Object.entries(inputs).map(([name, { dtype, shape, data }]) => [name, new ort.Tensor(dtype, data, shape)]);
      const outputs = await session.run(Object.fromEntries(feeds));
      return Object.fromEntries(session.outputNames.map((/** @type {string} */ name) => [name, outputs[name].data]));
    },
  };
}
