// The one module to import from the package of a language model:  import { load } from "./webmlc.js";
//
// Such a package holds this file in the place of ../webmlc.js. Its models also generate text.

import { openModel } from "../open_model.js";
import { keepAlive } from "../platform.js";
import { fetchFile } from "../weights.js";
import { TextGenerator } from "./generate.js";
import { LANGUAGE_FILES, TextCodec } from "./prompt.js";

export { AdapterError, DeviceLostError, HostError, InputError, InternalError, PackageError, WebmlcError } from "../errors.js";

/**
 * Load the package in the folder at `url`. See webmlc.d.ts.
 * @param {string | URL} url
 * @param {import("../webmlc.js").LoadOptions} [options]
 */
export function load(url, options = {}) {
  return keepAlive(openLanguageModel(url, options));
}

/**
 * Open a model. If its package holds a tokenizer, add `generate`. The tokenizer is read while the weights arrive.
 * @param {string | URL} url
 * @param {import("../webmlc.js").LoadOptions} options
 */
async function openLanguageModel(url, options) {
  /** @type {Promise<TextCodec> | undefined} */
  let codec;
  let hasChatTemplate = false;
  /** @type {any} */
  const model = await openModel(url, options, (base, manifest) => {
    if (!manifest.files[LANGUAGE_FILES.tokenizer]) return;
    hasChatTemplate = LANGUAGE_FILES.template in manifest.files;
    codec = TextCodec.open((path) => fetchFile(base, manifest, path, () => {}), hasChatTemplate);
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
