// The worker in which a model's WebAssembly runs: takes the page's messages, has wasm_leader.js do the work.
//
//   in:  { id, type: "open" | "start" | "take" | "execute" | "profile", ... } from wasm_device.js
//   out: { id, result } or { id, error }
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

/** @type {Record<string, (request: any) => { result?: any, transfer?: Transferable[] } | void>} What a message asks for. */
const ANSWERS = {
  open(request) {
    words = request.words;
    leader = new Leader(request);
    return { result: leader.stages };
  },
  start({ module }) {
    leader.start(module);
  },
  take({ file, chunk, begin }) {
    leader.take(file, chunk, begin);
    return { result: chunk.buffer, transfer: [chunk.buffer] };
  },
  profile(request) {
    return { result: leader.profile(request) };
  },
  execute({ slot, ...request }) {
    const before = leader.memory;
    const downloads = leader.execute(request);
    const places = canShareMemory ? leader.places(request) : [];
    const memory = canShareMemory ? leader.memory : null;
    made[slot] = { ...request, uploads: [] };
    const result = { downloads, places, memory, moved: leader.memory !== before };
    return { result, transfer: canShareMemory ? [] : downloads.map(([, data]) => data.buffer) };
  },
};

parent.listen(({ id, type, bell, ...request }) => {
  try {
    const { result, transfer } = ANSWERS[type](request) ?? {};
    parent.post({ id, result }, transfer);
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
