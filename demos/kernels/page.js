// The page that measures the steps of two lessons. `build.py` writes a package for each step, and steps.json beside this file.

import { create, createBar, element } from "../shared/elements.js";
import { showBytes } from "../shared/figures.js";
import { workOffline } from "../shared/work_offline.js";
import { load } from "./limit_wasm/webmlc.js";

const WARM = { runs: 3, ms: 400 }; // runs that do not count, until either is reached: engines optimise code meanwhile
const TIMED = { runs: 60, ms: 900 }; // runs that count, until either is reached
const FEW_MS = 1; // browsers round clocks to about 0.1 ms, so the mean of shorter runs counts, and not the fastest
const TABS = ["schedule", "program", "code"];
const LIMIT_OF = { wasm: "one thread", threads: "threads", webgpu: "GPU" };

/** @typedef {{ package: string, device: "wasm" | "webgpu", flops: number, files: string[] }} Package */
/** @typedef {Package & { name: string, about: string, parallel: boolean, schedule: string, program: string, code: string, traffic: Record<string, number> }} Step */
/** @typedef {Step & { button: HTMLButtonElement, bar: HTMLProgressElement, figure: HTMLElement, gflops: number, ms: number }} Row */

/** @type {{ limits: Record<string, Package>, steps: Step[] }} */
const { limits, steps } = await (await fetch("./steps.json")).json();
const hasGpu = Boolean(await navigator.gpu?.requestAdapter().catch(() => null));
const rows = steps.map(createRow);
/** @type {Record<string, number>} The limits that were measured, in GFLOPS. */
const measured = {};
let threads = 1;
let isMeasuring = false;
let tab = TABS[0];
let shown = rows[0];

/** @param {Step} step @returns {Row} */
function createRow(step) {
  const bar = createBar(`${step.name}: share of the limit`, 0);
  const figure = create("span", "figure", "–");
  const button = /** @type {HTMLButtonElement} */ (create("button", "", create("span", "title", step.name), bar, figure));
  button.type = "button";
  const row = { ...step, button, bar, figure, gflops: 0, ms: 0 };
  button.addEventListener("click", () => show(row));
  button.addEventListener("keydown", (event) => moveFocus(event, rows.map((other) => other.button), button, "ArrowUp", "ArrowDown"));
  return row;
}

/** Move the focus between buttons with the arrow keys, and press the next. */
function moveFocus(/** @type {KeyboardEvent} */ event, /** @type {HTMLElement[]} */ buttons, /** @type {HTMLElement} */ from, back = "ArrowLeft", forth = "ArrowRight") {
  const step = event.key === back ? -1 : event.key === forth ? 1 : 0;
  const next = step && buttons[buttons.indexOf(from) + step];
  if (!next) return;
  event.preventDefault();
  next.focus();
  next.click();
}

/** The name of the limit that a step is compared with. @param {Step} step */
const limitOf = (step) => (step.device === "webgpu" ? "webgpu" : step.parallel ? "threads" : "wasm");

/** @param {number} value */
const showSpeed = (value) => value.toFixed(value < 9.95 ? 2 : 1);

/** Show the text and the traffic of a step. @param {Row} row */
function show(row) {
  shown = row;
  for (const other of rows) other.button.setAttribute("aria-current", String(other === row));
  element("details").hidden = false;
  element("name").textContent = `${row.device === "wasm" ? "CPU" : "GPU"}: ${row.name}`;
  element("about").textContent = row.about;
  const limit = measured[limitOf(row)];
  element("result").textContent = row.gflops
    ? `${row.ms.toFixed(row.ms < 10 ? 2 : 0)} ms, ${showSpeed(row.gflops)} GFLOPS, ${((100 * row.gflops) / limit).toFixed(0)} % of the limit`
    : "";
  const most = Math.max(...rows.flatMap((other) => (other.device === row.device ? Object.values(other.traffic) : [])));
  element("traffic").replaceChildren(...Object.entries(row.traffic).flatMap(([level, bytes]) => [
    create("dt", "", level),
    createBar(`${level}: share of the largest`, Math.log2(1 + bytes) / Math.log2(1 + most)),
    create("dd", "", showBytes(bytes)),
  ]));
  showText();
}

function showText() {
  for (const name of TABS) {
    const button = element(`tab_${name}`);
    button.setAttribute("aria-selected", String(name === tab));
    button.tabIndex = name === tab ? 0 : -1;
  }
  const text = element("text");
  text.setAttribute("aria-labelledby", `tab_${tab}`);
  text.textContent = shown[/** @type {"schedule" | "program" | "code"} */ (tab)];
  text.scrollTop = 0;
}

/** The milliseconds of one run of a kernel, without the copies around it where the GPU has a clock. */
async function timeOf(/** @type {any} */ model, /** @type {Record<string, any>} */ feeds) {
  try {
    return (await model.profile(feeds)).reduce((/** @type {number} */ sum, /** @type {any} */ step) => sum + step.milliseconds, 0);
  } catch (error) {
    if (/** @type {Error} */ (error).name !== "AdapterError") throw error;
    const begin = performance.now();
    await model.run(feeds);
    return performance.now() - begin;
  }
}

/** Load a package, and measure it: the milliseconds of its fastest run. @param {Package} step @param {boolean} parallel */
async function measure(step, parallel) {
  const url = new URL(`./${step.package}/`, location.href).href;
  const model = await load(url, { device: step.device, threads: parallel ? undefined : 1 });
  try {
    if (parallel) {
      threads = model.threads;
      if (threads === 1) element("reasons").textContent = `Threads: ${model.threadsReason}.`;
    }
    const feeds = Object.fromEntries(model.inputs.map((/** @type {any} */ { name, shape }) => {
      const count = shape.reduce((/** @type {number} */ a, /** @type {number} */ b) => a * b, 1);
      return [name, { dtype: "float32", shape, data: Float32Array.from({ length: count }, Math.random) }];
    }));
    const times = /** @type {number[]} */ ([]);
    for (const { runs, ms } of [WARM, TIMED]) {
      times.length = 0;
      const begin = performance.now();
      do times.push(await timeOf(model, feeds));
      while (times.length < runs && performance.now() - begin < ms);
    }
    const fastest = Math.min(...times);
    return fastest < FEW_MS ? times.reduce((sum, time) => sum + time, 0) / times.length : fastest;
  } finally {
    model.dispose();
  }
}

/** Show the figures of a step, and its share of the limit. @param {Row} row */
function showResult(row) {
  const share = row.gflops / measured[limitOf(row)];
  row.bar.value = Math.min(1, share);
  row.bar.setAttribute("aria-valuenow", share.toFixed(3));
  row.figure.replaceChildren(create("b", "", showSpeed(row.gflops)), ` GFLOPS · ${(100 * share).toFixed(0)} %`);
}

/** Show the limits that were measured. */
function showLimits() {
  const speed = (/** @type {string} */ name) => `${showSpeed(measured[name])} GFLOPS`;
  const several = threads > 1 && measured.threads ? `; ${speed("threads")}, ${threads} threads` : "";
  if (measured.wasm) element("limit_wasm").textContent = `Limit: ${speed("wasm")}, 1 thread${several}`;
  if (measured.webgpu) element("limit_webgpu").textContent = `Limit: ${speed("webgpu")}`;
}

/** Measure the limits and all steps, one by one. */
async function measureAll() {
  isMeasuring = true;
  element("measure").textContent = "Stop";
  const jobs = [...Object.entries(limits), ...rows.map((row) => /** @type {const} */ (["", row]))];
  const wanted = jobs.filter(([, { device }]) => device === "wasm" || hasGpu);
  element("progress").max = wanted.length;
  for (const [count, [limit, job]] of wanted.entries()) {
    if (!isMeasuring) break;
    const row = limit ? null : /** @type {Row} */ (job);
    element("progress").value = count;
    element("state").textContent = `${count + 1} of ${wanted.length}: ${row ? row.name : `the limit, ${LIMIT_OF[/** @type {keyof typeof LIMIT_OF} */ (limit)]}`}`;
    row?.button.classList.add("running");
    try {
      const ms = await measure(job, limit === "threads" || Boolean(row?.parallel));
      const gflops = job.flops / ms / 1e6;
      if (!row) {
        measured[limit] = gflops;
        showLimits();
        continue;
      }
      Object.assign(row, { ms, gflops });
      showResult(row);
      show(row);
    } finally {
      row?.button.classList.remove("running");
    }
  }
  element("state").textContent = isMeasuring ? `Measured ${rows.filter(({ gflops }) => gflops).length} steps, the fastest run of each. A bar's right end is the limit.` : "Stopped.";
  element("progress").value = isMeasuring ? wanted.length : 0;
}

async function start() {
  try {
    await measureAll();
  } catch (error) {
    element("state").textContent = error instanceof Error ? error.message : String(error);
    element("state").className = "problem";
  } finally {
    isMeasuring = false;
    element("measure").textContent = "Measure again";
  }
}

for (const row of rows) {
  element(`steps_${row.device}`).append(create("li", "", row.button));
}
for (const device of ["wasm", "webgpu"]) {
  element(`steps_${device}`).after(create("p", "scale", create("span", "", "0", create("b", "", "limit"))));
}
if (!hasGpu) element("limit_webgpu").textContent = "This browser has no WebGPU adapter, so only the steps of the CPU run.";
for (const name of TABS) {
  const button = element(`tab_${name}`);
  button.addEventListener("click", () => {
    tab = name;
    showText();
  });
  button.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => moveFocus(event, TABS.map((other) => element(`tab_${other}`)), button));
}
element("measure").addEventListener("click", () => {
  if (!isMeasuring) return void start();
  isMeasuring = false;
  element("state").textContent = "Stopping…";
});
show(rows[0]);
element("state").textContent = "Ready. The measurement takes about half a minute; a software GPU takes longer.";
element("measure").disabled = false;
const packages = [...Object.values(limits), ...steps];
const worker = new URL("../offline.js", import.meta.url);
await workOffline(worker, packages.map((step) => `./${step.package}/manifest.json`)); // first: it has the hashes of the other files
const offline = await workOffline(worker, packages.flatMap((step) => step.files.map((file) => `./${step.package}/${file}`)));
element("reasons").append(` Works offline: ${offline}.`);
