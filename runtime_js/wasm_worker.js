// The script of each worker of a model. Its first message decides which thread it is: the leader (see wasm_leader.js), a helper, or
// the caller, which wakes helpers for a leader that must not be slowed down (see threads.js).
//
//   in:  { id, type: "open" | "start" | "take" | "execute" | "profile", bell, ... } from wasm_device.js, for the leader
//        { type: "help", port }     become a helper; the leader sends its data through the port
//        { type: "wake", control }  become the caller
//   out: {} when the script runs; then { id, result } or { id, error } for each message of the leader;
//        { id: FAILURE, error } if a repeated request or a helper fails
//
// After its first "execute", the leader waits on shared words between messages, through which the page may ask it to repeat a request
// (see repeats.js). It runs the module's loops a few more times first, because engines optimise code that has run often.

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
let helper;
/** @type {Int32Array | null} */
let words = null; // the shared words through which the page asks for repeats
/** @type {Execute[]} The requests that the page may repeat, by slot, without uploads: the page writes inputs into shared memory. */
const requests = [];

/** Settles when all chunks of weights received so far are taken. @type {Promise<void>} */
let lastTake = Promise.resolve();
/** Counts the chunks that were taken, for the page. @type {Int32Array | null} */
let counter = null;

/** @typedef {{ result?: any, transfer?: Transferable[] } | void} Answer */
/** @type {Record<string, (request: any) => Answer | Promise<Answer>>} The functions that handle messages, by type. */
const HANDLERS = {
  open(request) {
    words = request.words;
    counter = request.counter;
    leader = new Leader(request);
    return { result: leader.stages };
  },
  start({ module }) {
    leader.start(module);
  },
  async take({ file, chunk, begin, verified }) {
    lastTake = lastTake.then(() => leader.take(file, chunk, begin, verified));
    await lastTake;
    if (counter) Atomics.add(counter, 0, 1);
    return { result: chunk.buffer, transfer: [chunk.buffer] };
  },
  profile(request) {
    return { result: leader.profile(request) };
  },
  readStates({ states }) {
    return { result: leader.readStates(states).map(([name, rows]) => [name, rows.slice()]) };
  },
  writeStates({ symbols, states, rows }) {
    leader.writeStates(symbols, states, rows);
  },
  release({ states }) {
    leader.release(states);
  },
  execute({ slot, ...request }) {
    const oldMemory = leader.memory;
    const downloads = leader.execute(request);
    const places = canShareMemory ? leader.places(request) : [];
    const memory = canShareMemory ? leader.memory : null;
    requests[slot] = { ...request, uploads: [] };
    const result = { downloads, places, memory, isNew: leader.memory !== oldMemory };
    return { result, transfer: canShareMemory ? [] : downloads.map(([, data]) => data.buffer) };
  },
  help({ port }) {
    port.onmessage = (/** @type {MessageEvent} */ { data }) => {
      helper = { ...helper, ...data }; // the first message brings everything, later ones a new memory
      attempt(() => help(helper));
    };
  },
  wake({ control }) {
    passOnCalls(control);
  },
};

parent.listen(async ({ id, type, bell, ...request }) => {
  try {
    const { result, transfer } = (await HANDLERS[type](request)) ?? {};
    parent.post({ id, result }, transfer);
  } catch (error) {
    parent.post({ id, error: toData(error) });
  }
  if (!requests.length) return;
  if (words) serve(words, bell, repeat, () => leader.warm());
  else warm();
});
parent.post({});

/** Let the engine optimise loops between messages. */
function warm() {
  if (leader.warm()) setTimeout(warm);
}

/** Repeat a request. Returns false if it fails. It needs no more memory than before, so the page's views stay valid. @param {number} slot */
function repeat(slot) {
  return attempt(() => leader.execute(requests[slot]));
}

/**
 * Run the work and return whether it succeeded. An error is posted at once, because another thread may wait for this one.
 * @param {() => void} work
 */
function attempt(work) {
  try {
    work();
    return true;
  } catch (error) {
    parent.post({ id: FAILURE, error: toData(error) });
    return false;
  }
}
