// What every host runs: a page of a browser imports it, and so do Node, Deno and Bun.

const ARRAYS = { float32: Float32Array, int64: BigInt64Array };

const PAUSE_MS = 250; // after it the runtime has opened all of its workers
const WARM_MS = 300; // of runs, after which an engine has optimised what it will
const MEASURED_MS = 250;
const TICKS = 20; // of the clock in a round of runs, so that its resolution adds 5 % at most

/** @param {Record<string, { dtype: string, shape: number[], data: number[] }>} feeds */
function toTensors(feeds) {
  const convert = { float32: Number, int64: BigInt };
  return Object.fromEntries(
    Object.entries(feeds).map(([name, { dtype, shape, data }]) => [name, { dtype, shape, data: ARRAYS[dtype].from(data, convert[dtype]) }]),
  );
}

/** The outputs of each run, as JSON can say them. */
async function runAll(model, inputs) {
  const results = [];
  for (const tensors of inputs) {
    const outputs = Object.entries(await model.run(tensors));
    results.push(Object.fromEntries(outputs.map(([name, { dtype, shape, data }]) => [name, { dtype, shape, data: Array.from(data, Number) }])));
  }
  return results;
}

/** Milliseconds between two times that the clock can tell apart: 1 in some pages that are not isolated. */
function clockResolution() {
  const begin = performance.now();
  for (;;) {
    const now = performance.now();
    if (now > begin) return now - begin;
  }
}

/** Milliseconds of a run, the mean of as many as take `milliseconds`. */
async function timeRuns(model, tensors, milliseconds) {
  const begin = performance.now();
  for (let count = 1; ; count++) {
    await model.run(tensors);
    const elapsed = performance.now() - begin;
    if (elapsed >= milliseconds) return elapsed / count;
  }
}

/** @param {number[]} values */
const median = (values) => values.sort((a, b) => a - b)[values.length >> 1];

/** The median latency of a warm model, in milliseconds. Rounds are short: on a busy machine few are interrupted. */
async function measure(model, tensors) {
  await new Promise((resolve) => setTimeout(resolve, PAUSE_MS));
  await timeRuns(model, tensors, WARM_MS);
  const round = TICKS * median(Array.from({ length: TICKS }, clockResolution));
  const times = [];
  for (const begin = performance.now(); performance.now() - begin < MEASURED_MS; ) times.push(await timeRuns(model, tensors, round));
  return median(times);
}

/** True where threads can share memory: asked of the host itself, not of the runtime. */
function sharesMemory() {
  try {
    new MessageChannel().port1.postMessage(new SharedArrayBuffer(1));
    return true;
  } catch {
    return false;
  }
}

/** Load with one setting, run everything twice (cold and warm), and say what the runtime chose. */
async function runSetting(load, url, { measured, ...options }, inputs) {
  try {
    const model = await load(url, options);
    const { device, deviceReason, variant, threads, threadsReason } = model;
    const cold = await runAll(model, inputs);
    const milliseconds = measured ? await measure(model, inputs.at(-1)) : null;
    const warm = await runAll(model, inputs);
    model.dispose();
    return { device, deviceReason, variant, threads, threadsReason, milliseconds, cold, warm };
  } catch (error) {
    return { error: `${error.name}: ${error.message}`, code: error.code ?? null };
  }
}

/**
 * Run a package in several settings, one after the other.
 *
 * `name` is the package's folder beside this file; `url`, if any, where its data come from instead. A setting holds options of
 * `load`, and `measured`: whether the last run's latency matters.
 * @param {{ name: string, url?: string, settings: Record<string, unknown>[], feeds: Record<string, any>[] }} job
 */
export async function runPackage({ name, url, settings, feeds }) {
  const folder = new URL(`./${name}/`, import.meta.url);
  const { load } = await import(new URL("webmlc.js", folder).href);
  const inputs = feeds.map(toTensors);
  const adapter = await globalThis.navigator?.gpu?.requestAdapter();
  const loads = [];
  for (const setting of settings) loads.push(await runSetting(load, url ?? folder, setting, inputs));
  return { sharesMemory: sharesMemory(), hasAdapter: Boolean(adapter), loads };
}

/** Resolves once the page of a package says something that matches. @param {RegExp} pattern */
async function untilStatus(pattern) {
  const status = document.getElementById("status");
  while (!pattern.test(status.textContent)) {
    if (status.className === "error") throw new Error(`the page says: ${status.textContent}`);
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
}

/** Use the page of a package as a person would; returns what it says about the model and its outputs. */
export async function usePackagePage() {
  await untilStatus(/^Loaded/);
  document.querySelector("button").click();
  await untilStatus(/^Ran/);
  return { facts: document.getElementById("facts").innerText, outputs: document.getElementById("outputs").innerText };
}
