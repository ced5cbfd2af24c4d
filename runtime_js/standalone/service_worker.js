// The module to import in a service worker:  import { load } from "webmlc/service_worker";
//
// Service workers start no workers and import nothing on demand. So the model runs in the service worker's own thread, and this
// module imports all parts of the runtime. Models with a tokenizer also generate text.

import { openLanguageModel } from "../language/open_language_model.js";
import { folderAt } from "../open_model.js";
import { keepAlive, open } from "../platform.js";
import { IMPORTED_LIBRARIES } from "./libraries.js";
import { PARTS, THIS_THREAD } from "./parts.js";

export { AdapterError, DeviceLostError, DisposedError, HostError, InputError, InternalError, PackageError, WebmlcError } from "../errors.js";

/**
 * Load the package in the folder at `url`. See webmlc.d.ts.
 * @param {string | URL} url
 * @param {import("../webmlc.js").LoadOptions} [options]
 */
export async function load(url, options = {}) {
  const folder = folderAt(url);
  /** @type {import("../types.d.ts").Base} */
  const base = { ...PARTS, url: folder, address: String(url), workers: THIS_THREAD, open: (path, signal) => open(new URL(path, folder), signal) };
  return keepAlive(openLanguageModel(base, IMPORTED_LIBRARIES, options));
}
