// A thread of a model, which works on messages. The first one decides which thread it is: the leader (see wasm_leader.js), a
// helper, or the caller, which wakes helpers for a leader that must not be slowed down (see threads.js).
//
//   in:  { id, type: "open" | "start" | "take" | "execute" | "memory" | "profile", bell, ... } from wasm_device.js, for the leader
//        { type: "help", port }     become a helper; the leader sends its data through the port
//        { type: "wake", control }  become the caller
//   out: { runtime } when the script runs; then { id, result } or { id, error } for each message of the leader;
//        { id: FAILURE, error } if a repeated request or a helper fails
//
// After its first "execute", the leader waits on shared words between messages, through which the page may ask it to repeat a request
// (see repeats.js). It runs the module's loops a few more times first, because engines optimise code that has run often.

import { toData } from "./errors.js";
import { canShareMemory, RUNTIME_VERSION } from "./platform.js";
import { FAILURE, serve } from "./repeats.js";
import { help, passOnCalls } from "./threads.js";
import { Leader } from "./wasm_leader.js";

/** @import { Execute, Help, MessageDoor } from "./types.d.ts" */
/** @typedef {{ result?: any, transfer?: Transferable[] } | void} Answer */

export class ModelThread {
  /** @type {Leader} */
  leader = /** @type {any} */ (undefined);
  /** @type {Help} */
  helper = /** @type {any} */ (undefined);
  /** @type {Int32Array | null} */
  words = null; // the shared words through which the page asks for repeats
  /** @type {Execute[]} The requests that the page may repeat, by slot, without uploads: the page writes inputs into shared memory. */
  requests = [];
  /** Settles when all chunks of weights received so far are taken, with the hash of the last. @type {Promise<Uint8Array | null>} */
  lastTake = Promise.resolve(null);
  /** Counts the chunks that were taken, for the page. @type {Int32Array | null} */
  counter = null;

  /**
   * Work on the messages of the page.
   * @param {MessageDoor} parent
   * @param {boolean} [mayWarm]  false in the page's own thread, which has other work between messages
   */
  constructor(parent, mayWarm = true) {
    this.parent = parent;
    this.mayWarm = mayWarm;
    parent.listen((message) => this.#answer(message));
    parent.post({ runtime: RUNTIME_VERSION });
  }

  /** @param {any} message */
  async #answer({ id, type, bell, ...request }) {
    try {
      const { result, transfer } = (await HANDLERS[type](this, request)) ?? {};
      this.parent.post({ id, result }, transfer);
    } catch (error) {
      this.parent.post({ id, error: toData(error) });
    }
    if (!this.requests.length) return;
    if (this.words) serve(this.words, bell, (slot) => this.#repeat(slot), () => this.leader.warm());
    else if (this.mayWarm) this.#warm();
  }

  /** Let the engine optimise loops between messages. */
  #warm() {
    if (this.leader.warm()) setTimeout(() => this.#warm());
  }

  /** Repeat a request. Returns false if it fails. It needs no more memory than before, so the page's views stay valid. @param {number} slot */
  #repeat(slot) {
    return this.attempt(() => this.leader.execute(this.requests[slot]));
  }

  /**
   * Run the work and return whether it succeeded. An error is posted at once, because another thread may wait for this one.
   * @param {() => void} work
   */
  attempt(work) {
    try {
      work();
      return true;
    } catch (error) {
      this.parent.post({ id: FAILURE, error: toData(error) });
      return false;
    }
  }
}

/** The bytes of the memory, or 0 if the page cannot see it. @param {Leader} leader */
function sharedBytes({ memory }) {
  return canShareMemory ? memory.buffer.byteLength : 0;
}

/** @type {Record<string, (thread: ModelThread, request: any) => Answer | Promise<Answer>>} The functions that handle messages, by type. */
const HANDLERS = {
  open(thread, request) {
    thread.words = request.words;
    thread.counter = request.counter;
    thread.leader = new Leader(request);
  },
  start({ leader }, { module }) {
    leader.start(module);
  },
  async take(thread, { file, chunk, begin, isHashed }) {
    thread.lastTake = thread.lastTake.then(() => thread.leader.take(file, chunk, begin, isHashed));
    const hash = await thread.lastTake;
    if (thread.counter) Atomics.add(thread.counter, 0, 1);
    return { result: { buffer: chunk.buffer, hash }, transfer: [chunk.buffer] };
  },
  profile({ leader }, request) {
    return { result: leader.profile(request) };
  },
  readStates({ leader }, { states }) {
    return { result: leader.readStates(states).map(([name, rows]) => [name, rows.slice()]) };
  },
  writeStates({ leader }, { symbols, states, rows }) {
    leader.writeStates(symbols, states, rows);
    return { result: sharedBytes(leader) };
  },
  release({ leader }, { states }) {
    leader.release(states);
  },
  execute({ leader, requests }, { slot, ...request }) {
    const { memory: oldMemory, moves } = leader;
    const downloads = leader.execute(request);
    const places = canShareMemory ? leader.places(request) : [];
    requests[slot] = { ...request, uploads: [] };
    const result = { downloads, places, memoryBytes: sharedBytes(leader), isNew: leader.memory !== oldMemory, haveMoved: leader.moves !== moves };
    return { result, transfer: canShareMemory ? [] : downloads.map(([, data]) => data.buffer) };
  },
  memory({ leader }) {
    return { result: leader.memory };
  },
  help(thread, { port }) {
    port.onmessage = (/** @type {MessageEvent} */ { data }) => {
      thread.helper = { ...thread.helper, ...data }; // the first message brings everything, later ones a new memory
      thread.attempt(() => help(thread.helper));
    };
  },
  wake(_, { control }) {
    passOnCalls(control);
  },
};
