// The worker in which a model's WebAssembly runs: takes the page's messages, has wasm_leader.js do the work.
//
//   in:  { id, type: "load" | "execute" | "profile", ... } from wasm_device.js
//   out: { id, result } or { id, error }, and { bytes } while downloading
//
// After each message it sleeps on shared words, where the page can repeat requests (see repeats.js).

import { toData } from "./errors.js";
import { canShareMemory, parentPort } from "./platform.js";
import { ANSWER, serve } from "./repeats.js";
import { Leader } from "./wasm_leader.js";

/** @typedef {import("./types.d.ts").Execute} Execute */

const parent = parentPort();
/** @type {Leader} */
let leader;
/** @type {Int32Array | null} */
let words = null;
/** @type {{ request: Execute, memory: WebAssembly.Memory }[]} By slot; the memory that their answers are views of. */
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
      const result = leader.execute(request);
      made[slot] = { request, memory: leader.memory };
      parent.post({ id, result }, canShareMemory ? [] : result.map(([, data]) => data.buffer));
    }
  } catch (error) {
    parent.post({ id, error: toData(error) });
  }
  if (words) serve(words, bell, repeat);
});

/** Whether the answer is what it was: the same views; else posts it. @param {number} slot */
function repeat(slot) {
  try {
    const before = made[slot];
    const result = leader.execute(before.request);
    if (leader.memory === before.memory) return true;
    before.memory = leader.memory;
    parent.post({ id: ANSWER, result });
  } catch (error) {
    parent.post({ id: ANSWER, error: toData(error) });
  }
  return false;
}
