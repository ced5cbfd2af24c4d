// The one module to import:  import { load } from "./webmlc.js";

export { AdapterError, DeviceLostError, InputError, InternalError, PackageError, WebmlcError } from "./errors.js";
export { load } from "./model.js";
