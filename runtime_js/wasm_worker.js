// The worker in which a model's WebAssembly runs: the first one leads (wasm_leader.js) and answers the page, the others
// help (spmd.js).
//
//   in:  { id, type: "load" | "execute" | "profile", ... } from wasm_device.js; "help" and "memory" from the leader
//   out: { id, result } or { id, error }, and { bytes } while downloading

import { toData } from "./errors.js";
import { parentPort } from "./platform.js";
import { help } from "./spmd.js";
import { Leader } from "./wasm_leader.js";

const parent = parentPort();
/** @type {Leader} */
let leader;
/** @type {import("./spmd.js").Help} */
let helping;

parent.listen(async (message) => {
  const { type, id } = message;
  if (type === "help" || type === "memory") {
    helping = { ...helping, ...message };
    if (type === "help") parent.post("ready");
    return help(helping);
  }
  try {
    if (type === "load") {
      leader = await Leader.load(message, (bytes) => parent.post({ bytes }));
      parent.post({ id, result: null });
    } else if (type === "profile") {
      parent.post({ id, result: leader.profile(message) });
    } else {
      const result = leader.execute(message);
      parent.post(
        { id, result },
        result.map(([, data]) => data.buffer),
      );
    }
  } catch (error) {
    parent.post({ id, error: toData(error) });
  }
});
