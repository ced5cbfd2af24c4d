// Join a search from Node: `node join.mjs URL`. The twin of the page, without anything to look at.

import { describe, Session } from "./join.js";
import { openThread } from "./threads.js";

/** @typedef {import("./join.js").Outcome} Outcome */

const [, , server] = /** @type {any} */ (globalThis).process.argv;
/** @type {(outcome: Outcome) => void} */
let settle = () => {};
const thread = openThread(
  "./measure_worker.js",
  import.meta.url,
  (outcome) => settle(outcome),
  (error) => settle({ error }),
);

/** @param {import("./types.d.ts").Trial} trial @returns {Promise<Outcome>} */
function measureTrial(trial) {
  return new Promise((resolve) => {
    settle = resolve;
    thread.post(trial);
  });
}

const session = new Session(new URL(server), measureTrial, ({ phase, message }) => {
  if (phase === "refused") console.error(message);
});
await session.run(await describe());
thread.stop();
