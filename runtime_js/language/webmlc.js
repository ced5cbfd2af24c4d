// The one module to import from the package of a language model:  import { load } from "./webmlc.js";
//
// Such a package holds this file in the place of ../webmlc.js. Its models also generate text.

import { openModel } from "../model.js";
import { keepAlive } from "../platform.js";
import { TextGenerator } from "./generate.js";
import { TextCodec } from "./prompt.js";

export { AdapterError, DeviceLostError, HostError, InputError, InternalError, PackageError, WebmlcError } from "../errors.js";

/**
 * Load the package in the folder at `url`. See webmlc.d.ts.
 * @param {string | URL} url
 * @param {import("../webmlc.js").LoadOptions} [options]
 */
export function load(url, options = {}) {
  return keepAlive(openLanguageModel(url, options));
}

/** Open a model. If its package holds a tokenizer, add `generate`. @param {string | URL} url @param {import("../webmlc.js").LoadOptions} options */
async function openLanguageModel(url, options) {
  const model = /** @type {any} */ (await openModel(url, options));
  if (!model.files.includes("tokenizer.json")) return model;
  const generator = new TextGenerator(model, await TextCodec.open((path) => model.file(path)));
  return Object.assign(model, { generate: generator.generate.bind(generator) });
}
