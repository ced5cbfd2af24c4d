// The worker in which a model's WebAssembly runs: takes the page's messages, has wasm_leader.js do the work.
//
//   in:  { id, type: "load" | "execute" | "profile", ... } from wasm_device.js
//   out: { id, result } or { id, error }, and { bytes } while downloading
//
// After each message it sleeps on shared words, where the page can repeat requests (see repeats.js).

import { toData } from "./errors.js";
import { canShareMemory, parentPort } from "./platform.js";
import { FAILURE, serve } from "./repeats.js";
import { Leader } from "./wasm_leader.js";

/** @typedef {import("./types.d.ts").Execute} Execute */

const parent = parentPort();
/** @type {Leader} */
let leader;
/** @type {Int32Array | null} */
let words = null;
/** @type {Execute[]} Requests that the page may repeat, by slot: their bytes are in place by then. */
const made = [];

parent.listen(async ({ id, type, slot, bell, ...request }) => {
  try {
    if (type === "load") {
      leader = await Leader.load(request, (bytes) => parent.post({ bytes }));
      words = request.words;
      parent.post({ id, result: leader.stages });
    } else if (type === "profile") {
      parent.post({ id, result: leader.profile(request) });
    } else {
      const { memory } = leader;
      const downloads = leader.execute(request);
      const places = canShareMemory ? leader.places(request) : [];
      const shared = canShareMemory && leader.module ? { module: leader.module, memory: leader.memory } : null;
      made[slot] = { ...request, uploads: [] };
      const result = { downloads, places, shared, moved: leader.memory !== memory };
      parent.post({ id, result }, canShareMemory ? [] : downloads.map(([, data]) => data.buffer));
    }
  } catch (error) {
    parent.post({ id, error: toData(error) });
  }
  if (words) serve(words, bell, repeat);
});

/** False where it failed. The memory is as large as it was then: all views stay. @param {number} slot */
function repeat(slot) {
  try {
    leader.execute(made[slot]);
    return true;
  } catch (error) {
    parent.post({ id: FAILURE, error: toData(error) });
    return false;
  }
}
