// Choose the device by measuring: run a sample on the GPU and on the CPU, and remember the faster one.
//
//   in:  a package, and how to open its model on a device
//   out: the model. The next time, on the same adapter, only the faster device is opened.
//
// Small models are often faster on the CPU, because every run on a GPU waits for it. No rule of sizes knows where that ends.

import { arrayOf } from "./dtypes.js";
import { shapeOf } from "./manifest.js";
import { hasStates } from "./sizes.js";

/** @import { Base, Manifest } from "./types.d.ts" */
/** A model, and how to say why it runs on its device. @typedef {{ model: any, explain: (reason: string) => void }} Opened */
/** @typedef {(device: "auto" | "wasm", reason?: string) => Promise<Opened>} Open */
/** @typedef {{ getItem(key: string): string | null, setItem(key: string, value: string): void }} Storage */

const WARMING_MILLISECONDS = 200; // before runs are timed: pipelines are compiled, and helper threads started
const TIMED_RUNS = 5;
const LONGEST_MILLISECONDS = 1000; // no further run on a device starts after this time
const MOST_BYTES = 256e6; // of a download: a larger model is not loaded twice

// The sizes of a sample where a run decides them.
const TYPICAL_LENGTH = 64; // of a sequence
const TYPICAL_SIDE = 224; // of an image
const TYPICAL_PICTURE = [480, 640]; // of pixels of the page

/**
 * Open the model on the faster device. Nothing is measured without a hardware GPU, without a storage in which to remember it, and for
 * models with states.
 * @param {Base} base
 * @param {Manifest} manifest
 * @param {Open} open
 */
export async function openFastest(base, manifest, open) {
  const storage = hasStates(manifest) ? null : pageStorage(); // how long a prompt is, no sample says
  const { findAdapter } = await base.adapter();
  const adapter = storage && (await findAdapter(true).catch(() => null));
  if (!storage || !adapter || manifest.weights.reduce((sum, { bytes }) => sum + bytes, 0) > MOST_BYTES) return (await open("auto")).model;
  const { vendor, architecture, device, description } = adapter.info ?? {};
  const key = `webmlc device: ${[base.url.href, vendor, architecture, device, description].join(" | ")}`;
  const build = Object.values(manifest.files).map(({ sha256 }) => sha256.slice(0, 8)).join("");
  return chooseFaster(open, sampleOf(manifest), { key, build, storage });
}

/**
 * @param {Open} open
 * @param {Record<string, any>} sample
 * @param {{ key: string, build: string, storage: Storage }} place  where the choice is remembered, and for which build of the package
 */
export async function chooseFaster(open, sample, { key, build, storage }) {
  const memory = recall(key, build, storage);
  if (memory) return (await open(memory.device === "wasm" ? "wasm" : "auto", memory.reason)).model;
  const gpu = await open("auto");
  if (gpu.model.device !== "webgpu") return gpu.model;
  const cpu = await open("wasm").catch(() => null);
  if (!cpu) return gpu.model;
  const times = { webgpu: await timeOf(gpu.model, sample), wasm: await timeOf(cpu.model, sample) };
  const [faster, slower] = times.wasm <= times.webgpu ? [cpu, gpu] : [gpu, cpu];
  if (!Number.isFinite(Math.min(times.wasm, times.webgpu))) {
    cpu.model.dispose(); // the sample is no input of this model
    return gpu.model;
  }
  slower.model.dispose();
  const reason = `measured: webgpu ${times.webgpu.toFixed(1)} ms, wasm ${times.wasm.toFixed(1)} ms`;
  faster.explain(reason);
  try {
    storage.setItem(key, JSON.stringify({ device: faster.model.device, build, reason }));
  } catch {
    // The storage is full.
  }
  return faster.model;
}

/** The median milliseconds of a few runs; Infinity if one fails. @param {any} model @param {Record<string, any>} sample */
async function timeOf(model, sample) {
  const times = [];
  try {
    for (const begin = performance.now(); !(performance.now() - begin > WARMING_MILLISECONDS); ) await model.run(sample);
    for (const begin = performance.now(); times.length < TIMED_RUNS && !(performance.now() - begin > LONGEST_MILLISECONDS); ) {
      const start = performance.now();
      await model.run(sample);
      times.push(performance.now() - start);
    }
  } catch {
    return Infinity;
  }
  return times.sort((a, b) => a - b)[times.length >> 1];
}

/** The earlier measurement of this build. @param {string} key @param {string} build @param {Storage} storage */
function recall(key, build, storage) {
  try {
    const memory = JSON.parse(storage.getItem(key) ?? "null");
    return memory.build === build && ["wasm", "webgpu"].includes(memory.device) ? memory : null;
  } catch {
    return null;
  }
}

/** The storage of the page, if it has one and may use it. @returns {Storage | null} */
function pageStorage() {
  try {
    return globalThis.localStorage ?? null;
  } catch {
    return null;
  }
}

/** Inputs of zeros, in typical sizes. @param {Manifest} manifest @returns {Record<string, any>} */
export function sampleOf({ inputs, symbols, typed = {} }) {
  const size = (/** @type {string} */ input, /** @type {number} */ axis) => {
    const rank = inputs.find(({ name }) => name === input)?.shape.length ?? 0;
    if (typed[input]?.kind === "pixels") return TYPICAL_PICTURE[axis];
    if (axis === 1 && typed[input]?.rate) return typed[input].rate; // a second of a sound
    if (axis === 0 && rank > 1) return 1; // of a batch
    return rank === 4 ? TYPICAL_SIDE : TYPICAL_LENGTH;
  };
  const sizes = Object.fromEntries(symbols.map(({ name, input, axis }) => [name, size(input, axis)]));
  const zeros = inputs.map((port) => {
    const shape = shapeOf(port, sizes);
    const count = shape.reduce((product, n) => product * n, 1);
    return [port.name, { dtype: port.dtype, shape, data: new (arrayOf(port.dtype))(count) }];
  });
  return Object.fromEntries(zeros);
}
