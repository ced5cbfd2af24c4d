// The page of a report: read its data, open the views, and measure.

import { openCode } from "./code_view.js";
import { openDetails } from "./details.js";
import { openDownloads } from "./downloads_view.js";
import { openGraph } from "./graph_view.js";
import { openKernels } from "./kernels_view.js";
import { findPackage, measureHere, measurePackage } from "./measure.js";
import { openMemory } from "./memory_view.js";
import { build, byId, byteText, countText, inflate, partBytes, timeText } from "./parts.js";
import { openSearch } from "./search.js";
import { State } from "./state.js";

const DEVICES = /** @type {Record<string, string>} */ ({ wasm: "CPU: WebAssembly", webgpu: "GPU: WebGPU" });

async function main() {
  const data = JSON.parse(new TextDecoder().decode(await inflate(partBytes("data"))));
  const state = new State(data);
  byId("name").textContent = data.name;
  for (const device of Object.keys(data.programs)) byId("program").append(build("option", { value: device }, DEVICES[device]));
  byId("program").addEventListener("change", () => state.choose(byId("program").value));
  openGraph(state);
  openDetails(state);
  openCode(state);
  openTabs({ graph: () => {}, kernels: openKernels(state), memory: openMemory(state), downloads: openDownloads(state) });
  openSearch(state, () => byId("drawing").focus({ preventScroll: true }));
  listenToKeys();
  const summarise = () => {
    const { steps, kernels, weights } = state.program;
    const code = data.downloads.filter((/** @type {any} */ { kind, path, devices }) => kind === "code" && devices.includes(state.device) && !/simd128|dot|pairs/.test(path));
    const bytes = code.reduce((/** @type {number} */ sum, /** @type {any} */ file) => sum + file.bytes, 0);
    byId("summary").textContent = [countText(data.nodes.length, "node"), countText(kernels.length, "kernel"), countText(steps.length, "step"), `${byteText(bytes)} of code`, `${byteText(weights)} of weights`].join(" · ");
  };
  state.listen(summarise);
  summarise();
  byId("measure").addEventListener("click", () => measure(state));
  document.documentElement.dataset.ready = String(Math.round(performance.now()));
}

/** Measure the current program, in the package beside the page or in the page. @param {State} state */
async function measure(state) {
  const { data, device } = state;
  const status = byId("status");
  const onProgress = (/** @type {number} */ share) => (status.textContent = `Measuring… ${Math.round(100 * share)} %`);
  byId("measure").disabled = true;
  onProgress(0);
  try {
    const hasPackage = await findPackage(data);
    const serve = `Build the package and open the report in it: webmlc build ${data.model || "MODEL"} -o DIR; webmlc report DIR -o DIR/report.html; webmlc serve DIR, then /report.html.`;
    if (!hasPackage && device === "webgpu") throw new Error(`this page alone cannot run the GPU's program. ${serve}`);
    if (!hasPackage && data.run.reason) throw new Error(`this page alone cannot run the program. ${data.run.reason} ${serve}`);
    const times = hasPackage ? await measurePackage(data, device, onProgress) : await measureHere(data.run, state.program.steps, onProgress);
    state.times[device] = times;
    status.textContent = `A run takes ${timeText(times.whole)}; all steps, one by one, ${timeText(times.total)} (${times.how}).`;
    state.changed();
  } catch (error) {
    status.textContent = `Not measured: ${/** @type {Error} */ (error).message}`;
  } finally {
    byId("measure").disabled = false;
  }
}

/** @param {Record<string, () => void>} panels  called when shown */
function openTabs(panels) {
  const tabs = /** @type {HTMLElement[]} */ ([...document.querySelectorAll("[data-tab]")]);
  const show = (/** @type {string} */ name) => {
    for (const tab of tabs) {
      const isCurrent = tab.dataset.tab === name;
      tab.setAttribute("aria-selected", String(isCurrent));
      tab.tabIndex = isCurrent ? 0 : -1;
      byId(/** @type {string} */ (tab.dataset.tab)).hidden = !isCurrent;
    }
    panels[name]();
  };
  for (const [i, tab] of tabs.entries()) {
    tab.addEventListener("click", () => show(/** @type {string} */ (tab.dataset.tab)));
    tab.addEventListener("keydown", (event) => {
      const move = event.key === "ArrowRight" ? 1 : event.key === "ArrowLeft" ? -1 : 0;
      const next = tabs[(i + move + tabs.length) % tabs.length];
      if (!move) return;
      next.focus();
      show(/** @type {string} */ (next.dataset.tab));
    });
  }
  show("graph");
}

/** The slash searches, wherever the focus is. */
function listenToKeys() {
  document.addEventListener("keydown", (event) => {
    const target = /** @type {Element} */ (event.target);
    if (event.key !== "/" || target.closest("input, select")) return;
    byId("search").focus();
    event.preventDefault();
  });
}

main().catch((error) => {
  byId("status").textContent = `The report could not be shown: ${error.message}`;
  throw error;
});
