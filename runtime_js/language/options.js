// The options of a generation, with the names that Hugging Face's transformers uses. webmlc.d.ts documents them.
//
// The twin of webmlc/generate/options.py.

import { InputError } from "../errors.js";

/** @typedef {import("../webmlc.js").GenerateOptions} GenerateOptions */
/** @typedef {Record<string, any>} Config */
/**
 * The options after they were checked.
 * @typedef {{ max_new_tokens: number, do_sample: boolean, temperature: number, top_k: number, top_p: number, min_p: number, repetition_penalty: number, seed: number, stop: string[], capacity: number | undefined, template_arguments: Record<string, unknown>, signal: AbortSignal | undefined, streamer: ((piece: string) => void) | undefined }} Options
 */

/** The defaults of transformers, but for the tokens of an answer. */
const DEFAULTS = { max_new_tokens: 512, do_sample: false, temperature: 1, top_k: 50, top_p: 1, min_p: 0, repetition_penalty: 1, seed: undefined, stop: [] };
const OTHERS = ["capacity", "template_arguments", "signal", "streamer"];

/**
 * Fill in the defaults: those of generation_config.json, then those of transformers. Check every value. Throws InputError.
 * @param {Config} config
 * @param {GenerateOptions} given
 * @returns {Options}
 */
export function readOptions(config, given) {
  const names = [...Object.keys(DEFAULTS), ...OTHERS];
  for (const name of Object.keys(given)) {
    if (!names.includes(name)) throw new InputError(`generate has no option "${name}"; it has ${names.join(", ")}`);
  }
  const { capacity, template_arguments = {}, signal, streamer } = given;
  const source = /** @type {Config} */ (given);
  /** @type {Config} */
  const options = { capacity, template_arguments, signal, streamer };
  for (const [name, value] of Object.entries(DEFAULTS)) options[name] = source[name] ?? config[name] ?? value;
  const isSampling = given.do_sample ?? (given.temperature === undefined ? options.do_sample : true);
  options.do_sample = Boolean(isSampling) && options.temperature !== 0;
  options.seed ??= crypto.getRandomValues(new Uint32Array(1))[0];
  if (typeof options.stop === "string") options.stop = [options.stop];
  checkOptions(options);
  return /** @type {Options} */ (options);
}

/** Throw InputError for the first value that is out of range. @param {Config} options */
function checkOptions(options) {
  const expect = (/** @type {boolean} */ fits, /** @type {string} */ name, /** @type {string} */ expected) => {
    if (!fits) throw new InputError(`${name} is ${JSON.stringify(options[name])}, expected ${expected}`);
  };
  for (const [name, least] of Object.entries({ max_new_tokens: 1, top_k: 0, seed: 0, capacity: 1 })) {
    if (name === "capacity" && options[name] === undefined) continue;
    expect(Number.isInteger(options[name]) && options[name] >= least, name, `a whole number of at least ${least}`);
  }
  const { seed, temperature, top_p, min_p, repetition_penalty, stop } = options;
  expect(seed < 2 ** 32, "seed", "a number below 2³²");
  expect(temperature >= 0, "temperature", "a number of at least 0");
  expect(top_p > 0 && top_p <= 1, "top_p", "a number above 0, and at most 1");
  expect(min_p >= 0 && min_p <= 1, "min_p", "a number from 0 to 1");
  expect(repetition_penalty > 0, "repetition_penalty", "a number above 0");
  const isList = Array.isArray(stop) && stop.every((text) => typeof text === "string" && text !== "");
  expect(isList, "stop", "strings that are not empty");
}
