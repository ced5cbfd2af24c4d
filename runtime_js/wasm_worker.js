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
/** @type {Execute[]} Requests that the page may repeat, by slot: their bytes are in place by then. */
const made = [];
/** @type {WebAssembly.Memory | null} What the answers until now are views of. */
let memory = null;

parent.listen(async ({ id, type, slot, bell, ...request }) => {
  try {
    if (type === "load") {
      leader = await Leader.load(request, (bytes) => parent.post({ bytes }));
      ({ memory } = leader);
      words = request.words;
      parent.post({ id, result: leader.stages });
    } else if (type === "profile") {
      parent.post({ id, result: leader.profile(request) });
    } else {
      const result = execute(request);
      const places = canShareMemory ? leader.places(request) : [];
      made[slot] = { ...request, uploads: [] };
      parent.post({ id, result: { ...result, places } }, canShareMemory ? [] : result.downloads.map(([, data]) => data.buffer));
    }
  } catch (error) {
    parent.post({ id, error: toData(error) });
  }
  if (words) serve(words, bell, repeat);
});

/** The downloads, and whether they and all places lie in another memory than before. @param {Execute} request */
function execute(request) {
  const downloads = leader.execute(request);
  const moved = leader.memory !== memory;
  ({ memory } = leader);
  return { downloads, moved };
}

/** Whether the answer is the same views as before; else posts it. @param {number} slot */
function repeat(slot) {
  try {
    const result = execute(made[slot]);
    if (!result.moved) return true;
    parent.post({ id: ANSWER, result });
  } catch (error) {
    parent.post({ id: ANSWER, error: toData(error) });
  }
  return false;
}
