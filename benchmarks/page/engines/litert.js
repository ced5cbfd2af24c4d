// LiteRT.js, from its npm package: TensorFlow Lite's kernels (XNNPACK) in WebAssembly. It reads the model's TensorFlow Lite file.

/** The name of a tensor, as webmlc's door for TensorFlow Lite gives it. */
function portName(/** @type {{ name: string }} */ { name }) {
  return name.replace(/:0$/, "");
}

/** @param {import("../bench.js").Options} options */
export async function create({ model, device, threads }) {
  const litert = await import(/** @type {any} */ ("/litert/dist/index.js"));
  await litert.loadLiteRt("/litert/wasm/", { threads: threads > 1 });
  const compiled = await litert.loadAndCompile(`${model}model.tflite`, { accelerator: device, cpuOptions: { numThreads: threads } });
  const { version } = await (await fetch("/litert/package.json")).json();
  const inputNames = compiled.getInputDetails().map(portName);
  const outputNames = compiled.getOutputDetails().map(portName);
  return {
    version,
    async run(/** @type {any} */ inputs) {
      const tensors = inputNames.map((/** @type {string} */ name) => new litert.Tensor(inputs[name].data, inputs[name].shape));
      const results = await compiled.run(tensors);
      const arrays = await Promise.all(results.map((/** @type {any} */ tensor) => tensor.data()));
      for (const tensor of [...tensors, ...results]) tensor.delete();
      return Object.fromEntries(outputNames.map((/** @type {string} */ name, /** @type {number} */ i) => [name, arrays[i]]));
    },
  };
}
