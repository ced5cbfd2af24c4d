// Derived buffers, made beside the thread that receives the weights: while that made them itself, the download would wait.
//
//   leader:  announce(words, ready)          tell how many steps can be made; after each part of the weights
//            done = finish(words, leave)     wait for the deriver: steps from `done` on are the leader's
//   deriver: derive(run, words, steps)       make them in order; returns when told to leave, or when all are made

/** @typedef {import("./types.d.ts").Layout} Layout */
/** @typedef {import("./types.d.ts").ModuleRun} ModuleRun */
/** @typedef {import("./types.d.ts").Program} Program */

const READY_STEPS = 0; // steps whose constants have come; or that the deriver shall leave
const MADE = 1; // steps that are made
const ENDED = 2; // 1 once the deriver has left
const LEAVE = -1;
export const DERIVING_WORDS = 16;

/** Bytes of a memory's buffers that are made at load. @param {Program} program @param {Layout} layout */
export function derivedBytes({ buffers }, { constants, sizes }) {
  const derived = buffers.filter(({ name, kind }) => kind === "derived" && constants.has(name));
  return derived.reduce((sum, { name }) => sum + (sizes.get(name) ?? 0), 0);
}

/** @param {Int32Array} words @param {number} ready */
export function announce(words, ready) {
  if (Atomics.exchange(words, READY_STEPS, ready) !== ready) Atomics.notify(words, READY_STEPS);
}

/**
 * Wait until the deriver has made all steps, or (`leave`) the one that it has begun.
 * @param {Int32Array} words
 * @param {boolean} leave
 * @returns {number} steps that are made
 */
export function finish(words, leave) {
  if (leave) announce(words, LEAVE);
  while (!Atomics.load(words, ENDED)) Atomics.wait(words, ENDED, 0);
  return Atomics.load(words, MADE);
}

/** @param {ModuleRun} run @param {Int32Array} words @param {number[]} steps */
export function derive(run, words, steps) {
  try {
    for (let done = 0; done < steps.length; ) {
      const ready = Atomics.load(words, READY_STEPS);
      if (ready === LEAVE) break;
      if (ready === done) {
        Atomics.wait(words, READY_STEPS, ready);
      } else {
        run(steps[done], steps[done] + 1, 0, 1);
        Atomics.store(words, MADE, ++done);
      }
    }
  } finally {
    Atomics.store(words, ENDED, 1); // where a step trapped, it does so again in the leader, which tells the page
    Atomics.notify(words, ENDED);
  }
}
