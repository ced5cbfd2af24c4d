// Choose the next token from its logits.
//
// The twin of webmlc/generate/sampling.py, which explains the steps. Both choose the same tokens: every step is defined to the
// last bit.

import { InputError } from "../errors.js";

/** @import { Options } from "./options.js" */
/** @import { RandomNumbers } from "./random_numbers.js" */

const LOG2_E = 1.4426950408889634;
const LN2_HIGH = 0.6931471803691238; // the first 32 bits of ln 2
const LN2_LOW = 1.9082149292705877e-10; // the rest of ln 2
const SMALLEST_EXPONENT = -700; // below this, `exponential` is 0
/** 1 / n!, the coefficients of the Taylor polynomial. */
const COEFFICIENTS = new Float64Array(14);
for (let n = 0, factorial = 1; n < COEFFICIENTS.length; factorial *= ++n) COEFFICIENTS[n] = 1 / factorial;
/** 2⁻ⁿ for every n that `exponential` needs. */
const HALVES = new Float64Array(1023);
HALVES[0] = 1;
for (let n = 1; n < HALVES.length; n++) HALVES[n] = HALVES[n - 1] / 2;

/**
 * Choose a token: draw one if `do_sample`, else take the most likely one. Of equal logits, the first wins.
 * @param {Float32Array} logits  one per token of the vocabulary
 * @param {number[]} history  the tokens of the prompt and of the answer so far
 * @param {Options} options
 * @param {RandomNumbers} random
 */
export function sample(logits, history, options, random) {
  let scores = /** @type {Float32Array | Float64Array} */ (logits);
  if (options.repetition_penalty !== 1) scores = penalised(logits, history, options.repetition_penalty);
  let best = 0;
  for (let token = 1; token < scores.length && !Number.isNaN(scores[best]); token++) {
    if (!(scores[token] <= scores[best])) best = token;
  }
  const largest = scores[best];
  if (!Number.isFinite(largest)) throw notFinite();
  if (!options.do_sample) return best;
  let tokens = atLeast(scores, options.top_k > 0 && options.top_k < scores.length ? largestOf(scores, options.top_k) : -Infinity);
  let weights = new Float64Array(tokens.length);
  for (let i = 0; i < tokens.length; i++) weights[i] = exponential((scores[tokens[i]] - largest) / options.temperature);
  const keep = (/** @type {Uint32Array} */ indices) => {
    tokens = indices.map((i) => tokens[i]);
    weights = pick(weights, indices);
  };
  if (options.top_p < 1) keep(nucleus(weights, options.top_p));
  if (options.min_p > 0) keep(atLeast(weights, options.min_p)); // the largest weight is 1
  const drawn = random.next() * sumOf(weights);
  let chosen = 0;
  for (let sum = weights[0]; sum <= drawn && chosen < weights.length - 1; ) sum += weights[++chosen];
  return tokens[chosen];
}

/** The most likely token, which the model has found. It is -1 if its logit is not finite. @param {number} token */
export function checked(token) {
  if (token < 0) throw notFinite();
  return token;
}

function notFinite() {
  return new InputError("the largest logit is not finite: the model's result cannot be sampled");
}

/**
 * Make the tokens of the history less likely: divide positive scores, multiply others.
 * @param {Float32Array} logits
 * @param {number[]} history
 * @param {number} penalty
 */
function penalised(logits, history, penalty) {
  const scores = Float64Array.from(logits);
  for (const token of new Set(history)) scores[token] = scores[token] > 0 ? scores[token] / penalty : scores[token] * penalty;
  return scores;
}

/**
 * The smallest of the `count` largest values.
 * @param {Float32Array | Float64Array} values
 * @param {number} count
 */
function largestOf(values, count) {
  const largest = new Float64Array(count).fill(-Infinity); // in ascending order
  let limit = -Infinity;
  for (let i = 0; i < values.length; i++) {
    const value = values[i];
    if (value <= limit) continue;
    let place = 1;
    for (; place < count && largest[place] < value; place++) largest[place - 1] = largest[place];
    largest[place - 1] = value;
    limit = largest[0];
  }
  return limit;
}

/**
 * The indices of values that are at least `limit`, in order.
 * @param {Float32Array | Float64Array} values
 * @param {number} limit
 */
function atLeast(values, limit) {
  const indices = new Uint32Array(values.length);
  let count = 0;
  for (let i = 0; i < values.length; i++) if (values[i] >= limit) indices[count++] = i;
  return indices.slice(0, count);
}

/**
 * The indices, in order, of the fewest largest weights whose sum is `share` of the total. Weights below `floor` need no sorting:
 * all of them together are less than the rest of the total.
 * @param {Float64Array} weights
 * @param {number} share
 */
function nucleus(weights, share) {
  const total = sumOf(weights);
  const floor = ((1 - share) * total) / weights.length;
  const large = atLeast(weights, floor).sort((a, b) => weights[b] - weights[a] || a - b);
  let sum = 0;
  const last = large.findIndex((i) => (sum += weights[i]) >= share * total);
  return large.slice(0, last < 0 ? undefined : last + 1).sort();
}

/** The weights at some indices. @param {Float64Array} weights @param {Uint32Array} indices */
function pick(weights, indices) {
  const result = new Float64Array(indices.length);
  for (let i = 0; i < indices.length; i++) result[i] = weights[indices[i]];
  return result;
}

/** The sum, in order. @param {Float64Array} weights */
function sumOf(weights) {
  let sum = 0;
  for (let i = 0; i < weights.length; i++) sum += weights[i];
  return sum;
}

/**
 * e to the power of x ≤ 0, by operations that have the same result in every language.
 * @param {number} x
 */
export function exponential(x) {
  if (!(x >= SMALLEST_EXPONENT)) return 0;
  const n = Math.floor(x * LOG2_E + 0.5);
  const r = x - n * LN2_HIGH - n * LN2_LOW;
  let result = 0;
  for (let degree = COEFFICIENTS.length - 1; degree >= 0; degree--) result = result * r + COEFFICIENTS[degree];
  return result * HALVES[-n];
}
