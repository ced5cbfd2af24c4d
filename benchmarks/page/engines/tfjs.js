// TensorFlow.js on its WASM backend (XNNPACK), only for the matrix product, because it does not read ONNX.

import { fetchData } from "../data.js";

function loadScript(/** @type {string} */ src) {
  return new Promise((resolve, reject) => {
    const script = Object.assign(document.createElement("script"), { src, onload: resolve, onerror: reject });
    document.head.append(script);
  });
}

/** @param {import("../bench.js").Options} options */
export async function create({ model, threads }) {
  await loadScript("/tfjs-core/tf-core.min.js");
  await loadScript("/tfjs-backend-wasm/tf-backend-wasm.min.js");
  const tf = /** @type {any} */ (globalThis).tf;
  tf.wasm.setWasmPaths("/tfjs-backend-wasm/");
  tf.wasm.setThreadsCount(threads);
  await tf.setBackend("wasm");
  // The constant operand. For other engines it is part of the model.
  const constants = await fetchData(model, /** @type {any} */ ("constants"));
  const b = constants.b && tf.tensor(constants.b.data, constants.b.shape);
  return {
    version: tf.version_core,
    async run(/** @type {any} */ inputs) {
      const left = tf.tensor(inputs.a.data, inputs.a.shape);
      const right = b ?? tf.tensor(inputs.b.data, inputs.b.shape);
      const product = tf.matMul(left, right);
      const data = await product.data();
      tf.dispose([left, product, ...(b ? [] : [right])]);
      return { y: data };
    },
  };
}
