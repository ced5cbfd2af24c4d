// feature-extraction: texts in, embeddings out.

import { InputError } from "../errors.js";
import { warnOfOthers } from "./pipeline_options.js";
import { Tensor } from "./tensor.js";
import { Encoder } from "./tokens.js";

/** @typedef {import("../webmlc.js").Model} Model */
/** @typedef {{ pooling?: "none" | "mean" | "cls", normalize?: boolean }} Options */

/** The outputs that hold embeddings, the best first; without one of these names, the first output. */
const OUTPUTS = ["last_hidden_state", "token_embeddings", "logits", "sentence_embedding"];
const POOLINGS = ["none", "mean", "cls"];

/** @param {Model} model */
export async function featureExtraction(model) {
  const encoder = await Encoder.open(model);
  const output = OUTPUTS.find((name) => model.outputs.some((port) => port.name === name)) ?? model.outputs[0].name;
  /** @param {string | string[]} texts @param {Options} [options] */
  return async (texts, options = {}) => {
    const { pooling = "none", normalize = false } = options;
    warnOfOthers("feature-extraction", options, ["pooling", "normalize"], { quantize: false, precision: "binary" });
    if (!POOLINGS.includes(pooling)) throw new InputError(`pooling is ${pooling}, expected ${POOLINGS.join(", ")}`);
    const list = Array.isArray(texts) ? texts : [texts];
    if (!list.length) throw new InputError("there are no texts");
    const size = encoder.rows ?? list.length;
    /** @type {Tensor[]} */
    const parts = [];
    // Without pooling, texts of one result have one number of tokens, so that a fixed batch must not pad them on its own.
    const columns = encoder.rows && pooling === "none" ? encoder.encode(list).columns : undefined;
    for (let begin = 0; begin < list.length; begin += size) {
      const some = list.slice(begin, begin + size);
      while (some.length < size) some.push("");
      const batch = encoder.encode(some, columns);
      const { dtype, shape, data } = (await model.run(batch.inputs))[output];
      if (dtype !== "float32") throw new InputError(`the output ${output} is ${dtype}, not float32`);
      const embeddings = /** @type {Float32Array} */ (data);
      const pooled = shape.length === 3 ? pool(embeddings, shape, batch.mask, pooling) : new Tensor(embeddings, shape);
      parts.push(pooled);
    }
    const result = joined(parts, list.length);
    return normalize ? normalised(result) : result;
  };
}

/**
 * One vector for each text, of its tokens. Padding does not count.
 * @param {Float32Array} data  [texts, tokens, width]
 * @param {number[]} shape
 * @param {Uint8Array} mask  [texts, tokens]
 * @param {string} pooling
 */
function pool(data, [texts, tokens, width], mask, pooling) {
  if (pooling === "none") return new Tensor(data, [texts, tokens, width]);
  const result = new Float32Array(texts * width);
  for (let text = 0; text < texts; text++) {
    const used = pooling === "cls" ? [0] : [...Array(tokens).keys()].filter((token) => mask[text * tokens + token]);
    for (const token of used) {
      for (let i = 0; i < width; i++) result[text * width + i] += data[(text * tokens + token) * width + i] / used.length;
    }
  }
  return new Tensor(result, [texts, width]);
}

/** The first `count` rows of tensors, one after the other. @param {Tensor[]} parts @param {number} count */
function joined(parts, count) {
  const [, ...sizes] = parts[0].dims;
  const length = sizes.reduce((product, size) => product * size, count);
  const data = new Float32Array(length);
  parts.forEach((part, i) => data.set(part.data.subarray(0, length - i * part.size), i * part.size));
  return new Tensor(data, [count, ...sizes]);
}

/** Vectors of the length 1, along the last axis. @param {Tensor} tensor */
function normalised(tensor) {
  const width = tensor.dims[tensor.dims.length - 1];
  for (let begin = 0; begin < tensor.data.length; begin += width) {
    const vector = tensor.data.subarray(begin, begin + width);
    const length = Math.hypot(...vector) || 1;
    for (let i = 0; i < width; i++) vector[i] /= length;
  }
  return tensor;
}
