// The one module to import:  import { load } from "./webmlc.js";
//
// In a package it holds all the modules that a page and its workers share, so that they come in one request (see
// webmlc/package/runtime_files.py). What webmlc.d.ts does not name is theirs.

export { AdapterError, DeviceLostError, HostError, InputError, InternalError, PackageError, WebmlcError } from "./errors.js";
export { load } from "./model.js";
