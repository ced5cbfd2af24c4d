// The worker in which a model's WebAssembly runs: takes the page's messages, has wasm_leader.js do the work.
//
//   in:  { id, type: "load" | "execute" | "profile", ... } from wasm_device.js
//   out: { id, result } or { id, error }, and { bytes } while downloading

// One level of imports, as in webmlc.js.
import "./dtypes.js";
import { toData } from "./errors.js";
import "./memory_plan.js";
import { canShareMemory, parentPort } from "./platform.js";
import "./sizes.js";
import "./threads.js";
import { Leader } from "./wasm_leader.js";
import "./weights.js";

const parent = parentPort();
/** @type {Leader} */
let leader;

parent.listen(async ({ id, type, ...request }) => {
  try {
    if (type === "load") {
      leader = await Leader.load(request, (bytes) => parent.post({ bytes }));
      parent.post({ id, result: leader.stages });
    } else if (type === "profile") {
      parent.post({ id, result: leader.profile(request) });
    } else {
      const result = leader.execute(request);
      parent.post({ id, result }, canShareMemory ? [] : result.map(([, data]) => data.buffer));
    }
  } catch (error) {
    parent.post({ id, error: toData(error) });
  }
});
