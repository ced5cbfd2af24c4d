// TensorFlow.js on its WASM backend (XNNPACK). It does not read ONNX: `benchmarks/tfjs_graph.py` writes the model as calls of TF.js,
// which this engine makes. Feature maps are NHWC, and arrive in that layout, as pictures do.

import { fetchData } from "../data.js";

/**
 * @typedef {{ op: string, inputs: string[], output: string, strides?: number[], pad?: any, dilations?: number[], size?: number[],
 *   value?: number, axis?: number, shape?: number[], isSpatial?: boolean, activation?: string }} Step
 */

function loadScript(/** @type {string} */ src) {
  return new Promise((resolve, reject) => {
    const script = Object.assign(document.createElement("script"), { src, onload: resolve, onerror: reject });
    document.head.append(script);
  });
}

/** The elements of an NCHW feature map in the order of NHWC, or back. */
function moveChannels(/** @type {ArrayLike<number>} */ data, /** @type {number[]} */ [batch, channels, ...spatial], toLast = true) {
  const pixels = spatial.reduce((product, n) => product * n, 1);
  const moved = new Float32Array(data.length);
  for (let n = 0; n < batch; n++) {
    const base = n * channels * pixels;
    for (let c = 0; c < channels; c++) {
      for (let p = 0; p < pixels; p++) {
        const [first, last] = [base + c * pixels + p, base + p * channels + c];
        if (toLast) moved[last] = data[first];
        else moved[first] = data[last];
      }
    }
  }
  return moved;
}

/**
 * The functions of the steps, by their `op`.
 * @type {Record<string, (tf: any, step: Step, ...operands: any[]) => any>}
 */
const CALLS = {
  conv2d: (tf, { strides, pad, dilations, activation }, x, filter, bias) => tf.fused.conv2d({ x, filter, strides, pad, dilations, bias, activation }),
  depthwiseConv2d: (tf, { strides, pad, dilations, activation }, x, filter, bias) =>
    tf.fused.depthwiseConv2d({ x, filter, strides, pad, dilations, bias, activation }),
  matMul: (tf, { activation }, a, b, bias) => tf.fused.matMul({ a, b, bias, activation }),
  relu: (tf, _, x) => tf.relu(x),
  relu6: (tf, _, x) => tf.relu6(x),
  sigmoid: (tf, _, x) => tf.sigmoid(x),
  maxPool: (tf, { size, strides, pad }, x) => tf.maxPool(x, size, strides, pad),
  avgPool: (tf, { size, strides, pad }, x) => tf.avgPool(x, size, strides, pad),
  pad: (tf, { pad, value }, x) => tf.pad(x, pad, value),
  mean: (tf, _, x) => tf.mean(x, [1, 2], true),
  add: (tf, _, x, y) => tf.add(x, y),
  mul: (tf, _, x, y) => tf.mul(x, y),
  concat: (tf, { axis }, ...operands) => tf.concat(operands, axis),
  reshape: (tf, { shape, isSpatial }, x) => tf.reshape(isSpatial ? tf.transpose(x, [0, 3, 1, 2]) : x, shape),
  softmax: (tf, _, x) => tf.softmax(x),
};

/** @param {import("../bench.js").Options} options */
export async function create({ model, threads }) {
  await loadScript("/tfjs-core/tf-core.min.js");
  await loadScript("/tfjs-backend-wasm/tf-backend-wasm.min.js");
  const tf = /** @type {any} */ (globalThis).tf;
  tf.wasm.setWasmPaths("/tfjs-backend-wasm/");
  tf.wasm.setThreadsCount(threads);
  await tf.setBackend("wasm");
  const response = await fetch(`${model}tfjs.json`);
  /** @type {{ steps: Step[], outputs: Record<string, string>, images: string[] }} */
  const { steps, outputs, images } = await response.json();
  const constants = await fetchData(model, /** @type {any} */ ("constants"));
  const weights = Object.fromEntries(Object.entries(constants).map(([name, { data, shape }]) => [name, tf.tensor(data, shape)]));
  const isImage = new Set(images);
  /** @type {Map<object, Float32Array>} */
  const moved = new Map(); // by the array of an input, so that only its first run moves channels

  function inputTensor(/** @type {string} */ name, /** @type {any} */ { data, shape }) {
    if (!isImage.has(name)) return tf.tensor(data, shape);
    if (!moved.has(data)) moved.set(data, moveChannels(data, shape));
    const [batch, channels, height, width] = shape;
    return tf.tensor(moved.get(data), [batch, height, width, channels]);
  }

  /** Run the steps, and return the tensors of the outputs. Others are disposed of after their last reader. */
  function compute(/** @type {any} */ inputs) {
    const values = { ...weights, ...Object.fromEntries(Object.entries(inputs).map(([name, input]) => [name, inputTensor(name, input)])) };
    for (const step of steps) {
      const operands = step.inputs.map((name) => values[name]);
      values[step.output] = CALLS[step.op](tf, step, ...operands);
    }
    return Object.values(outputs).map((name) => values[name]);
  }

  return {
    version: tf.version_core,
    async run(/** @type {any} */ inputs) {
      const tensors = tf.tidy(() => compute(inputs));
      /** @type {Record<string, Float32Array>} */
      const results = {};
      for (const [i, name] of Object.keys(outputs).entries()) {
        const [batch, height, width, channels] = tensors[i].shape;
        const data = await tensors[i].data();
        results[name] = isImage.has(name) ? moveChannels(data, [batch, channels, height, width], false) : data;
      }
      tf.dispose(tensors);
      return results;
    },
  };
}
