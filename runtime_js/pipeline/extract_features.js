// feature-extraction: texts in, embeddings out.

import { InputError } from "../errors.js";
import { warnOfOthers } from "./pipeline_options.js";
import { Tensor } from "./tensor.js";
import { Encoder } from "./tokens.js";

/** @import { Model } from "../webmlc.js" */
/** @import { FeatureOptions as Options } from "./pipeline.js" */

/** The names of outputs that hold embeddings, in the order in which transformers.js looks for them. */
const OUTPUTS = ["last_hidden_state", "token_embeddings", "logits", "sentence_embedding"];
/** The tokens of a text whose mean is its vector, by pooling. The last token is the last one that is no padding. */
const POOLINGS = {
  mean: (/** @type {number[]} */ tokens) => tokens,
  cls: () => [0],
  first_token: () => [0],
  last_token: (/** @type {number[]} */ tokens) => tokens.slice(-1),
  eos: (/** @type {number[]} */ tokens) => tokens.slice(-1),
};

/** @param {Model} model */
export async function featureExtraction(model) {
  const encoder = await Encoder.open(model);
  const output = OUTPUTS.find((name) => model.outputs.some((port) => port.name === name)) ?? model.outputs[0].name;
  /** @param {string | string[]} input @param {Options} [options] */
  return async (input, options = {}) => {
    const { pooling = "none", normalize = false } = options;
    warnOfOthers("feature-extraction", { ...options }, ["pooling", "normalize"], { quantize: false, precision: "binary" });
    if (pooling !== "none" && !Object.hasOwn(POOLINGS, pooling)) {
      throw new InputError(`pooling is ${pooling}, expected none, ${Object.keys(POOLINGS).join(", ")}`);
    }
    const list = Array.isArray(input) ? input : [input];
    if (!list.length) throw new InputError("there are no texts");
    const batchSize = encoder.rows ?? list.length;
    /** @type {Tensor[]} */
    const parts = [];
    // Batches that are joined token by token must all be as long as the longest text of the whole list.
    const columns = encoder.rows && pooling === "none" ? encoder.encode(list).columns : undefined;
    for (let begin = 0; begin < list.length; begin += batchSize) {
      const texts = list.slice(begin, begin + batchSize);
      while (texts.length < batchSize) texts.push(""); // joining leaves these out
      const batch = encoder.encode(texts, columns);
      const { dtype, shape, data } = (await model.run(batch.inputs))[output];
      if (dtype !== "float32") throw new InputError(`the output ${output} is ${dtype}, not float32`);
      const embeddings = /** @type {Float32Array} */ (data);
      // An output of two dimensions is pooled by the model.
      parts.push(shape.length === 3 ? pool(embeddings, shape, batch.mask, pooling) : new Tensor(embeddings, shape));
    }
    const result = joinRows(parts, list.length);
    return normalize ? result.normalize_(2, -1) : result;
  };
}

/**
 * One vector for each text, from its tokens without padding. With "none", the vectors of all tokens, and of padding.
 * @param {Float32Array} data  [texts, tokens, width]
 * @param {number[]} shape
 * @param {Uint8Array} mask  [texts, tokens]
 * @param {"none" | keyof typeof POOLINGS} pooling
 */
function pool(data, [texts, tokens, width], mask, pooling) {
  if (pooling === "none") return new Tensor(data, [texts, tokens, width]);
  const result = new Float32Array(texts * width);
  for (let text = 0; text < texts; text++) {
    const places = POOLINGS[pooling]([...Array(tokens).keys()].filter((token) => mask[text * tokens + token]));
    for (const token of places) {
      for (let i = 0; i < width; i++) result[text * width + i] += data[(text * tokens + token) * width + i] / places.length;
    }
  }
  return new Tensor(result, [texts, width]);
}

/** A copy of the first `count` rows of tensors of one shape, one after the other. @param {Tensor[]} parts @param {number} count */
function joinRows(parts, count) {
  const [, ...sizes] = parts[0].dims;
  const length = sizes.reduce((product, size) => product * size, count);
  const data = new Float32Array(length);
  parts.forEach((part, i) => data.set(part.data.subarray(0, length - i * part.size), i * part.size));
  return new Tensor(data, [count, ...sizes]);
}
