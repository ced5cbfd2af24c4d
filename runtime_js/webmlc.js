// The one module to import:  import { load } from "./webmlc.js";
//
// In a package this file also contains the modules that only pages need (see webmlc/package/runtime_files.py). Pages may use
// only the names that webmlc.d.ts declares.

import { baseAt } from "./folder.js";
import { openModel } from "./open_model.js";
import { keepAlive } from "./platform.js";

export { AdapterError, DeviceLostError, DisposedError, HostError, InputError, InternalError, PackageError, WebmlcError } from "./errors.js";

/**
 * Load the package in the folder at `url`. See webmlc.d.ts.
 * @param {string | URL} url
 * @param {import("./webmlc.js").LoadOptions} [options]
 */
export async function load(url, options = {}) {
  return keepAlive(openModel(baseAt(url), options));
}
