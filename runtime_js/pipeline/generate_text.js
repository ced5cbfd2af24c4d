// text-generation: a text or messages in, the text with its continuation out.

import { PackageError } from "../errors.js";
import { bindMembers } from "../members.js";
import { warnOfOthers } from "./pipeline_options.js";

/** @import { LanguageModel, Message } from "../webmlc.js" */

/** The options that `generate` has, too. */
const SAME = ["max_new_tokens", "do_sample", "temperature", "top_k", "top_p", "min_p", "repetition_penalty", "seed", "signal", "capacity"];
const OTHERS = ["streamer", "return_full_text", "stop_strings", "stop", "template_arguments"];
const NEUTRAL = { num_beams: 1, num_return_sequences: 1, add_special_tokens: true };

/**
 * Calls a function with each piece of an answer: `new TextStreamer(tokenizer, { callback_function })`. A class of the page may extend
 * it, and change `on_finalized_text`.
 */
export class TextStreamer {
  /** @param {unknown} tokenizer  which is not needed @param {{ callback_function?: (piece: string) => void }} [options] */
  constructor(tokenizer, { callback_function = (piece) => console.log(piece) } = {}) {
    this.tokenizer = tokenizer;
    this.callback_function = callback_function;
    bindMembers(this);
  }

  /** @param {string} text  a piece, or "" at the end @param {boolean} _isEnd */
  on_finalized_text(text, _isEnd) {
    if (text) this.callback_function(text);
  }
}

/** @param {LanguageModel} model */
export async function textGeneration(model) {
  if (!model.generate) throw new PackageError(`${model.name} is no language model: it has no tokenizer, or the runtime no \`generate\``);
  /** @param {any} given @param {Record<string, any>} options */
  const answer = async (given, options) => {
    const chosen = Object.fromEntries(SAME.filter((name) => options[name] !== undefined).map((name) => [name, options[name]]));
    const { streamer: receiver } = options;
    const finalise = receiver?.on_finalized_text?.bind(receiver);
    const streamer = finalise ? (/** @type {string} */ piece) => finalise(piece, false) : (receiver?.callback_function ?? receiver);
    const stop = options.stop_strings ?? options.stop;
    const { template_arguments } = options;
    const text = await model
      .generate(given, { ...chosen, ...(streamer && { streamer }), ...(stop && { stop }), ...(template_arguments && { template_arguments }) })
      .complete();
    finalise?.("", true);
    if (options.return_full_text === false) return [{ generated_text: text }];
    return [{ generated_text: typeof given === "string" ? given + text : [...given, { role: "assistant", content: text }] }];
  };
  /** @param {string | string[] | Message[] | Message[][]} prompts @param {Record<string, any>} [options] */
  return async (prompts, options = {}) => {
    warnOfOthers("text-generation", options, [...SAME, ...OTHERS], NEUTRAL);
    const isList = Array.isArray(prompts) && (typeof prompts[0] === "string" || Array.isArray(prompts[0]));
    if (!isList) return answer(prompts, options);
    const results = [];
    for (const prompt of /** @type {any[]} */ (prompts)) results.push(await answer(prompt, options));
    return results;
  };
}
