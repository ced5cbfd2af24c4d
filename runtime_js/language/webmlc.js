// The one module to import from the package of a language model:  import { load } from "./webmlc.js";
//
// Such a package holds this file in the place of ../webmlc.js. Its models also generate text.

import { baseAt } from "../folder.js";
import { keepAlive } from "../platform.js";
import { LIBRARIES } from "./libraries.js";
import { openLanguageModel } from "./open_language_model.js";

export { AdapterError, DeviceLostError, DisposedError, HostError, InputError, InternalError, PackageError, WebmlcError } from "../errors.js";

/**
 * Load the package in the folder at `url`. See webmlc.d.ts.
 * @param {string | URL} url
 * @param {import("../webmlc.js").LoadOptions} [options]
 */
export async function load(url, options = {}) {
  return keepAlive(openLanguageModel(baseAt(url), LIBRARIES, options));
}
