// Repeat a request without a message.
//
// A message to the worker and its answer take longer than a run of a small model. If the worker has executed a request before,
// the page writes the number of its slot to words of shared memory, and wakes the worker.
//
//   page:   const bell = ring(words, MESSAGE)      before it posts a message, which must contain `bell`
//           await repeat(words, slot, failure)     resolves after the worker has executed the request
//   worker: serve(words, bell, execute, idleWork)  after each message: execute requests until the next message

import { canShareMemory } from "./platform.js";

// Indices of the words.
const BELL = 0; // counts how often the page rang
const SLOT = 1; // the slot of the request to repeat, or MESSAGE
const REPEATS = 2; // counts the requests that the worker has repeated
const ERROR = 3; // 1 if the last of them failed; a message says why

export const MESSAGE = -1; // in SLOT: the worker is to read a message
export const FAILURE = -1; // the id of the message that says why a request failed

const { waitAsync } = /** @type {any} */ (Atomics);

/** The shared words, or null if a page cannot wait for a word without blocking. @returns {Int32Array | null} */
export function repeatWords() {
  return canShareMemory && waitAsync ? new Int32Array(new SharedArrayBuffer(16)) : null;
}

/**
 * Wake the worker. The page calls this before it posts a message. Otherwise the worker could read the message first, and take
 * this ring for that of another message.
 * @param {Int32Array} words
 * @param {number} slot
 * @returns {number} how often the page has rung
 */
export function ring(words, slot) {
  Atomics.store(words, SLOT, slot);
  const bell = Atomics.add(words, BELL, 1) + 1;
  Atomics.notify(words, BELL);
  return bell;
}

/**
 * Let the worker repeat a request, and wait until it has done so.
 * @param {Int32Array} words
 * @param {number} slot
 * @param {Promise<any>} failure  rejects when a message reports an error
 */
export async function repeat(words, slot, failure) {
  const count = Atomics.load(words, REPEATS);
  ring(words, slot);
  // The notification of an earlier request may arrive late, so wait until the count has changed.
  for (let wait; (wait = waitAsync(words, REPEATS, count)).async; ) await Promise.race([wait.value, failure]);
  if (Atomics.load(words, ERROR)) await failure;
}

/** Let go of the words of a worker that has ended: engines keep what waits for a word. @param {Int32Array} words */
export function abandon(words) {
  Atomics.notify(words, REPEATS);
}

/**
 * Called in the worker: sleep until the page rings, and repeat the request that it asks for. Returns when a message comes.
 * @param {Int32Array} words
 * @param {number} bell  the count in the last message
 * @param {(slot: number) => boolean} execute  returns false after it has posted an error
 * @param {() => boolean} idleWork  does a small piece of work before the worker sleeps; returns false if no work remains
 */
export function serve(words, bell, execute, idleWork) {
  for (;;) {
    while (Atomics.load(words, BELL) === bell) if (!idleWork()) Atomics.wait(words, BELL, bell);
    bell = Atomics.load(words, BELL);
    const slot = Atomics.load(words, SLOT);
    if (slot === MESSAGE) return;
    Atomics.store(words, ERROR, execute(slot) ? 0 : 1);
    Atomics.add(words, REPEATS, 1);
    Atomics.notify(words, REPEATS);
  }
}
