// The options of a generation, with the names that Hugging Face's transformers uses. webmlc.d.ts documents them.
//
// The twin of webmlc/generate/options.py.

import { InputError } from "../errors.js";

/** @import { GenerateOptions } from "../webmlc.js" */
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
  const capacity = given.capacity ?? undefined;
  const template_arguments = given.template_arguments ?? {};
  const [signal, streamer] = [given.signal ?? undefined, given.streamer ?? undefined];
  const source = /** @type {Config} */ (given);
  /** @type {Config} */
  const options = { capacity, template_arguments, signal, streamer };
  for (const [name, value] of Object.entries(DEFAULTS)) options[name] = source[name] ?? config[name] ?? value;
  const isSampling = given.do_sample ?? ((given.temperature ?? undefined) === undefined ? options.do_sample : true);
  if (typeof isSampling !== "boolean") throw new InputError(`do_sample is ${JSON.stringify(isSampling)}, expected true or false`);
  options.do_sample = isSampling && options.temperature !== 0;
  options.seed ??= crypto.getRandomValues(new Uint32Array(1))[0];
  if (typeof options.stop === "string") options.stop = [options.stop];
  checkOptions(options);
  return /** @type {Options} */ (options);
}

/** Throw InputError for the first value that is out of range. @param {Config} options */
function checkOptions(options) {
  const expect = (/** @type {boolean} */ fits, /** @type {string} */ name, /** @type {string} */ expected) => {
    const value = options[name];
    if (!fits) throw new InputError(`${name} is ${Number.isNaN(value) ? value : JSON.stringify(value)}, expected ${expected}`);
  };
  const expectNumber = (/** @type {string} */ name, /** @type {(x: number) => boolean} */ fits, /** @type {string} */ range) =>
    expect(Number.isFinite(options[name]) && fits(options[name]), name, `a number ${range}`);
  for (const [name, least] of Object.entries({ max_new_tokens: 1, top_k: 0, seed: 0, capacity: 1 })) {
    if (name === "capacity" && options[name] === undefined) continue;
    expect(Number.isInteger(options[name]) && options[name] >= least, name, `a whole number of at least ${least}`);
  }
  expect(options.seed < 2 ** 32, "seed", "a number below 2³²");
  expectNumber("temperature", (x) => x >= 0, "of at least 0");
  expectNumber("top_p", (x) => x > 0 && x <= 1, "above 0, and at most 1");
  expectNumber("min_p", (x) => x >= 0 && x <= 1, "from 0 to 1");
  expectNumber("repetition_penalty", (x) => x > 0, "above 0");
  const { stop, streamer, template_arguments } = options;
  const isList = Array.isArray(stop) && stop.every((text) => typeof text === "string" && text !== "");
  expect(isList, "stop", "strings that are not empty");
  expect(typeof template_arguments === "object", "template_arguments", "an object");
  expect(streamer === undefined || typeof streamer === "function", "streamer", "a function");
}
