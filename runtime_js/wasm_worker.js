// A worker of a model. What it is, the first message says: the leading thread, in which the model's WebAssembly runs
// (wasm_leader.js does the work), or one beside it.
//
//   in:  { id, type: "open" | "start" | "take" | "execute" | "profile", ... } from wasm_device.js
//        { type: "help", port }     help with runs, as the leader says through the port, for ever or until memory is another
//        { type: "wake", control }  wake the helpers
//   out: anything, once it runs; then { id, result } or { id, error }
//
// Once there are requests to repeat, the leader sleeps after each message on shared words, where the page does so (see
// repeats.js). Before it first sleeps it has the engine optimise what it will run again.

import { toData } from "./errors.js";
import { canShareMemory, parentPort } from "./platform.js";
import { FAILURE, serve } from "./repeats.js";
import { help, passOnCalls } from "./threads.js";
import { Leader } from "./wasm_leader.js";

/** @typedef {import("./types.d.ts").Execute} Execute */

const parent = parentPort();
/** @type {Leader} */
let leader;
/** @type {import("./types.d.ts").Help} */
let helping;
/** @type {Int32Array | null} */
let words = null;
/** @type {Execute[]} Requests that the page may repeat, by slot: their bytes are in place by then. */
const made = [];

/** Of the last chunk of weights, and those before it. @type {Promise<void>} */
let taken = Promise.resolve();
/** Counts the chunks; the page reads it. @type {Int32Array | null} */
let count = null;

/** @typedef {{ result?: any, transfer?: Transferable[] } | void} Answer */
/** @type {Record<string, (request: any) => Answer | Promise<Answer>>} What a message asks for. */
const ANSWERS = {
  open(request) {
    words = request.words;
    count = request.taken;
    leader = new Leader(request);
    return { result: leader.stages };
  },
  start({ module }) {
    leader.start(module);
  },
  async take({ file, chunk, begin, verified }) {
    taken = taken.then(() => leader.take(file, chunk, begin, verified));
    await taken;
    if (count) Atomics.add(count, 0, 1);
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
  help({ port }) {
    port.onmessage = (/** @type {MessageEvent} */ { data }) => {
      helping = { ...helping, ...data }; // later messages bring a new memory
      attempt(() => help(helping));
    };
  },
  wake({ control }) {
    passOnCalls(control);
  },
};

parent.listen(async ({ id, type, bell, ...request }) => {
  try {
    const { result, transfer } = (await ANSWERS[type](request)) ?? {};
    parent.post({ id, result }, transfer);
  } catch (error) {
    parent.post({ id, error: toData(error) });
  }
  if (!made.length) return;
  if (words) serve(words, bell, repeat, () => leader.warm());
  else warm();
});
parent.post({});

/** Between messages. */
function warm() {
  if (leader.warm()) setTimeout(warm);
}

/** False where it failed. The memory is as large as it was then: all views stay. @param {number} slot */
function repeat(slot) {
  return attempt(() => leader.execute(made[slot]));
}

/** False where it failed: the page is told at once, for another thread may be waiting for this one's work. @param {() => void} work */
function attempt(work) {
  try {
    work();
    return true;
  } catch (error) {
    parent.post({ id: FAILURE, error: toData(error) });
    return false;
  }
}
