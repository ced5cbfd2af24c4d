// Open a model that generates text, if its package holds a tokenizer.

import { unlessAborted } from "../abort_load.js";
import { openModel } from "../open_model.js";
import { fetchFile } from "../weights.js";
import { TextGenerator } from "./generate.js";
import { LANGUAGE_FILES, TextCodec } from "./prompt.js";

/** @import { Libraries } from "./libraries.js" */

/**
 * Open a model. If its package holds a tokenizer, add `generate`. The tokenizer is read while the weights arrive.
 * @param {import("../types.d.ts").Base} base
 * @param {Libraries} libraries
 * @param {import("../webmlc.js").LoadOptions} options
 */
export function openLanguageModel(base, libraries, options) {
  return unlessAborted(base, options, (from, others) => openWithTokenizer(from, libraries, others));
}

/**
 * @param {import("../types.d.ts").Base} base
 * @param {Libraries} libraries
 * @param {import("../webmlc.js").LoadOptions} options
 */
async function openWithTokenizer(base, libraries, options) {
  /** @type {Promise<TextCodec> | undefined} */
  let codec;
  let hasChatTemplate = false;
  /** @type {any} */
  const model = await openModel(base, options, (manifest, from) => {
    if (!manifest.files[LANGUAGE_FILES.config]) return; // an encoder has only a tokenizer
    hasChatTemplate = LANGUAGE_FILES.template in manifest.files;
    codec = TextCodec.open((path) => fetchFile({ base: from, manifest }, path), libraries, hasChatTemplate);
    codec.catch(() => {}); // reported below, if the model opens
  });
  if (!codec) return model;
  try {
    const generator = new TextGenerator(model, await codec);
    return Object.assign(model, { hasChatTemplate, generate: generator.generate.bind(generator) });
  } catch (error) {
    model.dispose();
    throw error;
  }
}
