// The thread that measures: each message is a trial, each answer its measurement or an error.

import { measure } from "./measure.js";
import { answer, onData, openThread } from "./threads.js";

/** Start a thread that helps with parallel loops. @type {import("./types.d.ts").StartHelper} */
function startHelper(tid, module, memory, threads) {
  const control = new Int32Array(new SharedArrayBuffer(4)); // how often it was called
  const thread = openThread("./helper_worker.js", import.meta.url);
  thread.post({ tid, module, memory, threads, control });
  return {
    help() {
      Atomics.add(control, 0, 1);
      Atomics.notify(control, 0);
    },
    stop: thread.stop,
  };
}

onData(async (trial) => {
  try {
    answer({ measurement: await measure(trial, startHelper) });
  } catch (error) {
    answer({ error: String(/** @type {any} */ (error)?.message ?? error) });
  }
});
