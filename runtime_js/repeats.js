// Requests that the page makes again: told by a number in shared words, where a message each way would take longer than
// a small model.
//
//   page:   const bell = ring(words, MESSAGE)    before posting a message, which must carry it
//           await repeat(words, slot, failure)   done
//   worker: serve(words, bell, again, idle)      after each message: sleeps, repeats, returns when one comes

import { canShareMemory } from "./platform.js";

const BELL = 0; // counts requests
const SLOT = 1; // which; or that a message comes
const DONE = 2; // counts requests that were repeated
const FAILED = 3; // 1 where the last one failed: a message says why
export const MESSAGE = -1;
export const FAILURE = -1; // the id of that message

const { waitAsync } = /** @type {any} */ (Atomics);

/** @returns {Int32Array | null} null where a page cannot wait without blocking */
export function repeatWords() {
  return canShareMemory && waitAsync ? new Int32Array(new SharedArrayBuffer(16)) : null;
}

/**
 * Wake the worker. Not after its message: that may be answered by then, and this would look like the next.
 * @param {Int32Array} words
 * @param {number} slot
 * @returns {number} the count
 */
export function ring(words, slot) {
  Atomics.store(words, SLOT, slot);
  const bell = Atomics.add(words, BELL, 1) + 1;
  Atomics.notify(words, BELL);
  return bell;
}

/**
 * Have a request repeated; resolves when it is done.
 * @param {Int32Array} words
 * @param {number} slot
 * @param {Promise<any>} failure rejects by message
 */
export async function repeat(words, slot, failure) {
  const done = Atomics.load(words, DONE);
  ring(words, slot);
  // The notification of the request before may come only now: what counts is that the count has changed.
  for (let wait; (wait = waitAsync(words, DONE, done)).async; ) await Promise.race([wait.value, failure]);
  if (Atomics.load(words, FAILED)) await failure;
}

/**
 * The worker's part: sleep until the page rings, and repeat what it asks; returns when a message comes.
 * @param {Int32Array} words
 * @param {number} seen the count that the message before carried
 * @param {(slot: number) => boolean} again false where it failed and has posted why
 * @param {() => boolean} idle what to do before it sleeps, a little at a time; false where there is nothing
 */
export function serve(words, seen, again, idle) {
  for (;;) {
    while (Atomics.load(words, BELL) === seen) if (!idle()) Atomics.wait(words, BELL, seen);
    seen = Atomics.load(words, BELL);
    const slot = Atomics.load(words, SLOT);
    if (slot === MESSAGE) return;
    Atomics.store(words, FAILED, again(slot) ? 0 : 1);
    Atomics.add(words, DONE, 1);
    Atomics.notify(words, DONE);
  }
}
