// Requests that the page makes again: told by a number in shared words, where a message each way would take longer than
// a small model.
//
//   page:   ring(words, MESSAGE)                 after posting a message: it must carry `bell`, the count to come
//           await repeat(words, slot, answer)    true where the answer is what it was before
//   worker: serve(words, bell, again)            after each message: sleeps, repeats, returns when one waits

const BELL = 0; // counts requests
const SLOT = 1; // which; or that a message waits
const DONE = 2; // counts answers to repeated requests
const SAME = 3; // whether the last answer is what it was; else a message has it
export const MESSAGE = -1;
export const ANSWER = -1; // the id of a message that answers a repeated request

const { waitAsync } = /** @type {any} */ (Atomics);

/** @param {boolean} canShareMemory @returns {Int32Array | null} null where a page cannot wait without blocking */
export function repeatWords(canShareMemory) {
  return canShareMemory && waitAsync ? new Int32Array(new SharedArrayBuffer(16)) : null;
}

/** The count after the next ring. @param {Int32Array} words */
export function nextBell(words) {
  return Atomics.load(words, BELL) + 1;
}

/** Wake the worker. @param {Int32Array} words @param {number} slot */
export function ring(words, slot) {
  Atomics.store(words, SLOT, slot);
  Atomics.add(words, BELL, 1);
  Atomics.notify(words, BELL);
}

/**
 * Have a request repeated.
 * @param {Int32Array} words
 * @param {number} slot
 * @param {Promise<any>} answer resolves or rejects by message
 * @returns {Promise<boolean>} whether the answer is what it was; else `answer` has it
 */
export async function repeat(words, slot, answer) {
  const done = Atomics.load(words, DONE);
  ring(words, slot);
  const { async, value } = waitAsync.call(Atomics, words, DONE, done);
  if (async) await Promise.race([value, answer]);
  return Atomics.load(words, SAME) === 1;
}

/**
 * The worker's part: sleep until the page rings, and repeat what it asks; returns when a message waits.
 * @param {Int32Array} words
 * @param {number} seen the count that the message before carried
 * @param {(slot: number) => boolean} again whether the answer is what it was; else it is posted already
 */
export function serve(words, seen, again) {
  for (;;) {
    while (Atomics.load(words, BELL) === seen) Atomics.wait(words, BELL, seen);
    seen = Atomics.load(words, BELL);
    const slot = Atomics.load(words, SLOT);
    if (slot === MESSAGE) return;
    Atomics.store(words, SAME, again(slot) ? 1 : 0);
    Atomics.add(words, DONE, 1);
    Atomics.notify(words, DONE);
  }
}
