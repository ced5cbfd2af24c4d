// Choose the next token from its logits.
//
// The twin of webmlc/generate/sampling.py, which explains the steps. Both choose the same tokens: every step is defined to the
// last bit.

import { InputError } from "../errors.js";

/** @typedef {import("./options.js").Options} Options */
/** @typedef {import("./random_numbers.js").RandomNumbers} RandomNumbers */

const LOG2_E = 1.4426950408889634;
const LN2_HIGH = 0.6931471803691238; // the first 32 bits of ln 2
const LN2_LOW = 1.9082149292705877e-10; // the rest of ln 2
const SMALLEST_EXPONENT = -700; // below this, `exponential` is 0
const EXPONENTIAL_DEGREE = 13;
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
  if (!Number.isFinite(largest)) throw new InputError(`the largest logit is ${largest}: the model's result cannot be sampled`);
  if (!options.do_sample) return best;
  let tokens = likeliest(scores, options.top_k);
  let weights = Float64Array.from(tokens, (token) => exponential((scores[token] - largest) / options.temperature));
  const keep = (/** @type {number[]} */ indices) => {
    tokens = indices.map((i) => tokens[i]);
    weights = Float64Array.from(indices, (i) => weights[i]);
  };
  if (options.top_p < 1) keep(nucleus(weights, options.top_p));
  if (options.min_p > 0) keep([...weights.keys()].filter((i) => weights[i] >= options.min_p));
  let sum = 0;
  const sums = weights.map((weight) => (sum += weight));
  const drawn = random.next() * sum;
  const chosen = sums.findIndex((end) => end > drawn);
  return tokens.at(chosen) ?? best; // the last token, if rounding leaves none
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
 * The `count` tokens with the largest scores, and others with the same score as the last of them, in order. All for a count of 0.
 * @param {Float32Array | Float64Array} scores
 * @param {number} count
 * @returns {number[]}
 */
function likeliest(scores, count) {
  if (!(count > 0 && count < scores.length)) return [...scores.keys()];
  const limit = scores.slice().sort()[scores.length - count];
  const tokens = [];
  for (let token = 0; token < scores.length; token++) if (scores[token] >= limit) tokens.push(token);
  return tokens;
}

/**
 * The indices, in order, of the fewest largest weights whose sum is `share` of the total. Weights below `floor` need no sorting:
 * all of them together are less than the rest of the total.
 * @param {Float64Array} weights
 * @param {number} share
 */
function nucleus(weights, share) {
  const total = weights.reduce((sum, weight) => sum + weight, 0);
  const floor = ((1 - share) * total) / weights.length;
  const large = [...weights.keys()].filter((i) => weights[i] >= floor);
  large.sort((a, b) => weights[b] - weights[a] || a - b);
  let sum = 0;
  const last = large.findIndex((i) => (sum += weights[i]) >= share * total);
  return large.slice(0, last < 0 ? undefined : last + 1).sort((a, b) => a - b);
}

/**
 * e to the power of x ≤ 0, by operations that have the same result in every language.
 * @param {number} x
 */
export function exponential(x) {
  if (!(x >= SMALLEST_EXPONENT)) return 0;
  const n = Math.floor(x * LOG2_E + 0.5);
  const r = x - n * LN2_HIGH - n * LN2_LOW;
  let result = 1;
  for (let divisor = EXPONENTIAL_DEGREE; divisor > 0; divisor--) result = (result * r) / divisor + 1;
  return result * HALVES[-n];
}
