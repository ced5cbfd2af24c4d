// A thread that measures trials, or that takes part in trials as a helper, one after the other.
//
//   in:  a trial
//   out: { progress } while it measures; then { measurement } or { error }
//
//   in:  what a helper needs (see `Help` in types.d.ts)
//   out: {} when it listens for calls

import { help } from "./helpers.js";
import { measure } from "./measure.js";
import { answer, onData, openThread } from "./threads.js";

/** @import { Thread } from "./threads.js" */
/** @import { Help } from "./types.d.ts" */

/** A thread, and the function that takes in its answer: nothing, or why it failed. @typedef {{ thread: Thread, settle: (error?: Error) => void }} Helper */

/** @type {Map<number, Helper>} The helpers, by thread number. */
const helpers = new Map();

/** Let a thread take part in a trial. @param {Help} help @returns {Promise<void>} */
function startHelper(help) {
  const helper = helpers.get(help.tid) ?? openHelper();
  helpers.set(help.tid, helper);
  return new Promise((resolve, reject) => {
    helper.settle = (error) => (error ? reject(error) : resolve());
    helper.thread.post(help);
  });
}

/** @returns {Helper} */
function openHelper() {
  /** @type {Helper} */
  const helper = {
    settle: () => {},
    thread: openThread(() => helper.settle(), (message) => helper.settle(new Error(message))),
  };
  return helper;
}

/** Measure a trial, and answer. @param {any} trial */
async function measureTrial(trial) {
  try {
    answer({ measurement: await measure(trial, startHelper, (progress) => answer({ progress })) });
  } catch (error) {
    answer({ error: String(/** @type {Partial<Error>} */ (error)?.message ?? error) });
  }
}

onData((data) => ("tid" in data ? help(data, () => answer({})) : measureTrial(data)));
