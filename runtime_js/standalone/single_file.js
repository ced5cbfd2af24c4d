// A model in one script:  import { load } from "./model.js";

import { openModel } from "../open_model.js";
import { keepAlive } from "../platform.js";
import { embeddedBase } from "./embedded.js";

export { AdapterError, DeviceLostError, DisposedError, HostError, InputError, InternalError, PackageError, WebmlcError } from "../errors.js";

/** Load the model. See webmlc.d.ts. @param {import("../webmlc.js").LoadOptions} [options] */
export function load(options = {}) {
  return keepAlive(openModel(embeddedBase(), options));
}
