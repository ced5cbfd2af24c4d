// The page by which a device joins a search. It shows what the device is, and what it measures.

import { Session } from "./join.js";
import { Measurer } from "./measurer.js";
import { describe } from "./platform.js";

/** @import { Gain, Platform, State } from "./types.d.ts" */

const SHOWN_KERNELS = 12; // the kernels measured last, which the table shows
const SMALLEST_GAIN = 1.005; // a smaller gain reads 1.00, and is noise

/** @type {Record<State["phase"], string>} The headline of each phase. */
const HEADLINES = {
  joining: "Joining the search…",
  measuring: "Measuring",
  waiting: "Waiting for the next kernel…",
  retrying: "The search does not answer. Trying again…",
  done: "All done, thank you!",
  refused: "This device cannot take part",
};

/** @param {string} id @returns {any} */
const element = (id) => document.getElementById(id);

/** @param {number} gain */
const gainText = (gain) => (gain < SMALLEST_GAIN ? "–" : `${gain.toFixed(2)}×`);

/** @param {State} state */
function show({ phase, title, progress, candidates, gains, message }) {
  element("status").dataset.phase = phase;
  element("headline").textContent = HEADLINES[phase];
  element("kernel").textContent = phase === "measuring" ? title : phase === "done" ? "You can close this page." : "";
  element("progress").hidden = phase !== "measuring";
  element("progress").value = progress.done;
  element("racing").textContent = phase === "measuring" ? `${progress.candidates} candidates race` : "";
  element("candidates").textContent = candidates.toLocaleString("en");
  element("kernels").textContent = gains.length.toLocaleString("en");
  element("best").textContent = gainText(Math.max(1, ...gains.map(({ gain }) => gain)));
  element("message").textContent = message;
  element("message").hidden = !message;
  showGains(gains.slice(0, SHOWN_KERNELS));
}

/** Fill the table of kernels. @param {Gain[]} gains */
function showGains(gains) {
  element("table").hidden = !gains.length;
  const largest = Math.max(2, ...gains.map(({ gain }) => gain)); // a bar of this gain fills its cell
  const rows = gains.map(({ title, gain, candidates }) => {
    const row = element("row").content.cloneNode(true);
    row.querySelector(".title").textContent = title;
    row.querySelector(".count").textContent = candidates.toLocaleString("en");
    row.querySelector(".gain").textContent = gainText(gain);
    row.querySelector(".bar").style.setProperty("--share", String((gain - 1) / (largest - 1)));
    return row;
  });
  element("rows").replaceChildren(...rows);
}

/** Show what this device is. @param {Platform} platform */
function showPlatform({ engine, cpu, adapter, threads }) {
  const [name, version] = engine.split(" ");
  element("engine").textContent = `${name[0].toUpperCase()}${name.slice(1)} ${version.split(".")[0]}`;
  element("cpu").textContent = `${cpu.architecture}, ${cpu.cores} cores, ${cpu.features.join(", ")}`;
  element("gpu").textContent = adapter ? [adapter.vendor, adapter.architecture, adapter.description || adapter.device].filter(Boolean).join(", ") : "no WebGPU";
  element("threads").textContent = threads ? "may share memory" : "one: pages share memory only on localhost, or over HTTPS";
}

/** Keep the screen on while the page is visible: a device that sleeps measures nothing. */
async function stayAwake() {
  if (document.visibilityState !== "visible") return;
  await navigator.wakeLock?.request("screen").catch(() => {}); // refused when the battery is low
}

async function main() {
  element("notice").remove(); // this script runs
  element("page").hidden = false;
  const platform = await describe();
  showPlatform(platform);
  document.addEventListener("visibilitychange", stayAwake);
  await stayAwake();
  await new Session(new URL("./", location.href), new Measurer(), show).run(platform);
}

main().catch((error) => {
  element("status").dataset.phase = "refused";
  element("headline").textContent = HEADLINES.refused;
  element("message").textContent = String(error);
  element("message").hidden = false;
});
