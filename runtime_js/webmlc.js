// The one module to import:  import { load } from "./webmlc.js";
//
// In a package this file also contains the modules that only pages need (see webmlc/package/runtime_files.py). Pages may use
// only the names that webmlc.d.ts declares.

export { AdapterError, DeviceLostError, HostError, InputError, InternalError, PackageError, WebmlcError } from "./errors.js";
export { load } from "./model.js";
