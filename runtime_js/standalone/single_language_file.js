// A language model in one script:  import { load } from "./model.js";

import { openLanguageModel } from "../language/open_language_model.js";
import { keepAlive } from "../platform.js";
import { embeddedBase } from "./embedded.js";
import { IMPORTED_LIBRARIES } from "./libraries.js";

export { AdapterError, DeviceLostError, DisposedError, HostError, InputError, InternalError, PackageError, WebmlcError } from "../errors.js";

/** Load the model. See webmlc.d.ts. @param {import("../webmlc.js").LoadOptions} [options] */
export function load(options = {}) {
  return keepAlive(openLanguageModel(embeddedBase(), IMPORTED_LIBRARIES, options));
}
