// The one module to import:  import { load } from "./webmlc.js";
//
// In a package it holds the modules that only pages need (see webmlc/package/runtime_files.py). What webmlc.d.ts does not name is
// not for pages.

export { AdapterError, DeviceLostError, HostError, InputError, InternalError, PackageError, WebmlcError } from "./errors.js";
export { load } from "./model.js";
