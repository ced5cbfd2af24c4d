// The one module to import:  import { load } from "./webmlc.js";

// One level of imports: all files are requested at once, after a single round trip.
import "./dtypes.js";
import "./manifest.js";
import "./memory_plan.js";
import "./platform.js";
import "./wasm_device.js";
import "./sizes.js";

export { AdapterError, DeviceLostError, InputError, InternalError, PackageError, WebmlcError } from "./errors.js";
export { load } from "./model.js";
