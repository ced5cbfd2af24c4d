// The one module to import from a package that takes pictures, or returns labels:  import { load } from "./webmlc.js";
//
// Such a package holds this file in the place of ../webmlc.js.

import { baseAt } from "../folder.js";
import { openModel } from "../open_model.js";
import { keepAlive } from "../platform.js";
import { withTypedValues } from "./typed_model.js";

export { AdapterError, DeviceLostError, HostError, InputError, InternalError, PackageError, WebmlcError } from "../errors.js";

/**
 * Load the package in the folder at `url`. See webmlc.d.ts and typed.d.ts.
 * @param {string | URL} url
 * @param {import("../webmlc.js").LoadOptions} [options]
 */
export function load(url, options = {}) {
  return keepAlive(openTypedModel(url, options));
}

/** @param {string | URL} url @param {import("../webmlc.js").LoadOptions} options */
async function openTypedModel(url, options) {
  return withTypedValues(await openModel(baseAt(url), options));
}
