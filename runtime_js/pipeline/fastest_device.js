// Choose the device by measuring: run a sample on each of the devices that a package has, and remember the faster one.
//
//   in:  how to open the model on a device, and how to run a sample
//   out: the opened model. The next time, on the same adapter, only the faster device is opened.
//
// Small models are often faster on the CPU, because every run on a GPU waits for it. No rule of sizes knows where that ends.

/** @typedef {{ model: any, call: (sample: any) => Promise<unknown> }} Opened */
/** @typedef {{ getItem(key: string): string | null, setItem(key: string, value: string): void }} Storage */

const TIMED_RUNS = 3;
const LONGEST_MILLISECONDS = 1000; // no further run on a device starts after this time

/**
 * Open the model on the faster device.
 * @template {Opened} O
 * @param {(device: "auto" | "wasm" | "webgpu") => Promise<O>} open
 * @param {any} sample
 * @param {string} key  of the package and the adapter
 * @param {Storage | null} storage
 * @returns {Promise<{ opened: O, reason: string }>}
 */
export async function openFastest(open, sample, key, storage) {
  const memory = recall(key, storage);
  if (memory) {
    const opened = await open(memory.device);
    if (opened.model.resources.download === memory.download) return { opened, reason: memory.reason };
    opened.model.dispose(); // another package is at this address now
  }
  const gpu = await open("auto");
  if (gpu.model.device !== "webgpu") return { opened: gpu, reason: gpu.model.deviceReason };
  const cpu = await open("wasm").catch(() => null); // a package may be built for the GPU only
  if (!cpu) return { opened: gpu, reason: gpu.model.deviceReason };
  const times = { webgpu: await timeOf(gpu, sample), wasm: await timeOf(cpu, sample) };
  const [faster, slower] = times.wasm <= times.webgpu ? [cpu, gpu] : [gpu, cpu];
  if (!Number.isFinite(Math.min(times.wasm, times.webgpu))) return { opened: gpu, reason: gpu.model.deviceReason };
  slower.model.dispose();
  const reason = `measured: webgpu ${times.webgpu.toFixed(1)} ms, wasm ${times.wasm.toFixed(1)} ms`;
  const { device, resources } = faster.model;
  try {
    storage?.setItem(key, JSON.stringify({ device, download: resources.download, reason }));
  } catch {} // the storage is full, or may not be used
  return { opened: faster, reason };
}

/** The median milliseconds of a few runs after the first; Infinity if one fails. @param {Opened} opened @param {any} sample */
async function timeOf({ call }, sample) {
  const times = [];
  try {
    await call(sample);
    for (const begin = performance.now(); times.length < TIMED_RUNS && performance.now() - begin < LONGEST_MILLISECONDS; ) {
      const start = performance.now();
      await call(sample);
      times.push(performance.now() - start);
    }
  } catch {
    return Infinity;
  }
  return times.sort((a, b) => a - b)[times.length >> 1];
}

/** What was measured before. @param {string} key @param {Storage | null} storage */
function recall(key, storage) {
  try {
    const memory = JSON.parse(storage?.getItem(key) ?? "null");
    return ["wasm", "webgpu"].includes(memory?.device) ? memory : null;
  } catch {
    return null;
  }
}

/** The key of a package on this adapter. Null without a GPU: then there is nothing to measure. @param {string} url */
export async function measurementKey(url) {
  const adapter = await globalThis.navigator?.gpu?.requestAdapter().catch(() => null);
  if (!adapter) return null;
  const { vendor, architecture, device, description } = adapter.info ?? {};
  return `webmlc device: ${[url, vendor, architecture, device, description].join(" | ")}`;
}

/** The storage of the page, if it has one and may use it. @returns {Storage | null} */
export function pageStorage() {
  try {
    return globalThis.localStorage ?? null;
  } catch {
    return null;
  }
}
