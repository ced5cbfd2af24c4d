// The page: a device without Python joins the search, and shows what it does.

import { describe, Session } from "./join.js";
import { openThread } from "./threads.js";

/** @typedef {import("./join.js").Outcome} Outcome */
/** @typedef {import("./join.js").State} State */

const element = (/** @type {string} */ id) => /** @type {HTMLElement} */ (document.getElementById(id));

/** @type {(outcome: Outcome) => void} */
let settle = () => {};
const thread = openThread(
  "./measure_worker.js",
  import.meta.url,
  (outcome) => settle(outcome),
  (error) => settle({ error }),
);

/** Measure in a worker, so that this page stays alive. @param {import("./types.d.ts").Trial} trial @returns {Promise<Outcome>} */
function measureTrial(trial) {
  return new Promise((resolve) => {
    settle = resolve;
    thread.post(trial);
  });
}

/** The sentence for each phase. @param {State} state */
function sentence({ phase, message }) {
  switch (phase) {
    case "joining":
      return "Joining the search…";
    case "measuring":
      return "Measuring…";
    case "waiting":
      return "Waiting for the next kernel…";
    case "done":
      return "Done, thank you. You can close this page.";
    case "refused":
      return `This device cannot take part: ${message}.`;
  }
}

/** @param {State} state */
function show(state) {
  const { phase, title, candidates, trials, best } = state;
  element("phase").textContent = sentence(state);
  element("phase").className = phase;
  element("kernel").textContent = title ?? "–";
  element("candidates").textContent = String(candidates);
  element("trials").textContent = String(trials);
  element("best").textContent = best > 1 ? `${best.toFixed(2)}× as fast` : "–";
}

/** Keep the screen on, where that is possible: a phone that sleeps measures nothing. */
async function stayAwake() {
  try {
    await navigator.wakeLock?.request("screen");
  } catch {
    // Not visible, or the battery is low: measuring goes on anyway.
  }
}

const platform = await describe();
const { engine, cpu, adapter } = platform;
const gpu = adapter ? `; GPU: ${[adapter.vendor, adapter.architecture, adapter.description].filter(Boolean).join(" ")}` : "";
element("device").textContent = `${engine}, ${cpu.architecture}, ${cpu.cores} cores${gpu}`;
document.addEventListener("visibilitychange", stayAwake);
void stayAwake();
await new Session(new URL("/", location.href), measureTrial, show).run(platform);
