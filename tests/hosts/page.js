// The code that every host runs. Pages in browsers import it, and so do Node, Deno and Bun.

const ARRAYS = { float32: Float32Array, int64: BigInt64Array };

const PAUSE_MS = 250; // the time in which the runtime opens all of its workers
const TICKS = 20; // ticks of the clock in one round, so that its resolution adds at most 5 %

/** Turn JSON into tensors. @param {Record<string, { dtype: string, shape: number[], data: number[] }>} feeds */
function toTensors(feeds) {
  const convert = { float32: Number, int64: BigInt };
  return Object.fromEntries(
    Object.entries(feeds).map(([name, { dtype, shape, data }]) => [name, { dtype, shape, data: ARRAYS[dtype].from(data, convert[dtype]) }]),
  );
}

/** Run all inputs, and return the outputs as JSON. */
async function runAll(model, inputs) {
  const results = [];
  for (const tensors of inputs) {
    const outputs = Object.entries(await model.run(tensors));
    results.push(Object.fromEntries(outputs.map(([name, { dtype, shape, data }]) => [name, { dtype, shape, data: Array.from(data, Number) }])));
  }
  return results;
}

/** The smallest step of the clock, in milliseconds. It is 1 in some pages that are not isolated. */
function clockResolution() {
  const begin = performance.now();
  for (;;) {
    const now = performance.now();
    if (now > begin) return now - begin;
  }
}

/** Run for `milliseconds`, and return the mean time of a run. */
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

/**
 * The median latency of a warm model, in milliseconds. Rounds are short, so that a busy machine interrupts few of them.
 * @param {number} milliseconds  of the runs in which an engine optimises the code, and of those that are measured
 */
async function measure(model, tensors, milliseconds) {
  await new Promise((resolve) => setTimeout(resolve, PAUSE_MS));
  await timeRuns(model, tensors, milliseconds);
  const round = TICKS * median(Array.from({ length: TICKS }, clockResolution));
  const times = [];
  for (const begin = performance.now(); performance.now() - begin < milliseconds; ) times.push(await timeRuns(model, tensors, round));
  return median(times);
}

/** True if threads can share memory, according to the host and not to the runtime. */
function sharesMemory() {
  try {
    new MessageChannel().port1.postMessage(new SharedArrayBuffer(1));
    return true;
  } catch {
    return false;
  }
}

/** Load with one setting, run everything twice (cold and warm), and return the choices of the runtime. */
async function runSetting(load, url, { measured, ...options }, inputs) {
  try {
    const model = await load(url, options);
    const { device, deviceReason, variant, threads, threadsReason } = model;
    const cold = await runAll(model, inputs);
    const milliseconds = measured ? await measure(model, inputs.at(-1), measured) : null;
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
 * `name` is the folder of the package, beside this file. `url` is another address of its data, or undefined. A setting consists of
 * the options of `load`, and of `measured`, the milliseconds in which the latency of the last run is measured.
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

/** Wait until the status of a package's page matches. @param {RegExp} pattern */
async function untilStatus(pattern) {
  const status = document.getElementById("status");
  while (!pattern.test(status.textContent)) {
    if (status.className === "error") throw new Error(`the page says: ${status.textContent}`);
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
}

/** Use the page of a package as a person would. Returns the facts and the outputs that it shows. */
export async function usePackagePage() {
  await untilStatus(/^Loaded/);
  document.querySelector("#form [type=submit]").click();
  await untilStatus(/^Ran/);
  return { facts: document.getElementById("facts").textContent, outputs: document.getElementById("outputs").innerText };
}
