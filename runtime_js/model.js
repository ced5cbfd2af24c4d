// Load a package and run it: the twin of webmlc/host/load.py.

import { AdapterError, InputError, InternalError, PackageError } from "./errors.js";
import { arrayOf } from "./dtypes.js";
import { bind, bindFromMemory, fetchManifest, shapeOf } from "./manifest.js";
import { runs } from "./memory_plan.js";
import { canShareMemory, isNode } from "./platform.js";
import { neededFiles } from "./sizes.js";
import { chooseVariant, WasmDevice } from "./wasm_device.js";

/** @typedef {import("./types.d.ts").Device} Device */
/** @typedef {import("./types.d.ts").Executor} Executor */
/** @typedef {import("./types.d.ts").Manifest} Manifest */
/** @typedef {import("./types.d.ts").Program} Program */
/** @typedef {import("./types.d.ts").Transfers} Transfers */
/** @typedef {import("./webmlc.js").LoadOptions} LoadOptions */
/** @typedef {import("./webmlc.js").Tensor} Tensor */
/** @typedef {import("./webmlc.js").TypedArray} TypedArray */
/** @typedef {{ device: Device, deviceReason: string, threads: number, threadsReason: string, variant?: import("./wasm_device.js").Variant | null }} Choice */

const MAX_DEFAULT_THREADS = 8;

/**
 * Load the package at `url` (its folder). See webmlc.d.ts.
 * @param {string | URL} url
 * @param {LoadOptions} [options]
 * @returns {Promise<Model>}
 */
export async function load(url, { device = "auto", threads, variant, onProgress } = {}) {
  if (!["auto", "wasm", "webgpu"].includes(device)) {
    throw new InputError(`device is ${JSON.stringify(device)}, expected "auto", "wasm" or "webgpu"`);
  }
  if (variant !== undefined && !["dot", "relaxed", "simd128"].includes(variant)) {
    throw new InputError(`variant is ${JSON.stringify(variant)}, expected "dot", "relaxed" or "simd128"`);
  }
  const base = new URL(url, globalThis.location?.href ?? import.meta.url);
  if (!base.pathname.endsWith("/")) base.pathname += "/";
  // The worker starts while the manifest is on its way, where it is likely to be needed.
  const wasm = device === "webgpu" ? null : new WasmDevice();
  try {
    const manifest = await fetchManifest(base);
    const { own, reason, adapter } = await chooseDevice(manifest, device);
    const choice = { device: own, deviceReason: reason, ...chooseThreads(threads), variant };
    return await openModel(base, manifest, choice, adapter, wasm, onProgress);
  } catch (error) {
    wasm?.dispose();
    throw error;
  }
}

/**
 * @param {URL} base
 * @param {Manifest} manifest
 * @param {Choice} choice
 * @param {GPUAdapter | null} adapter
 * @param {WasmDevice | null} started
 * @param {LoadOptions["onProgress"]} onProgress
 */
async function openModel(base, manifest, choice, adapter, started, onProgress) {
  const own = choice.device;
  const program = /** @type {Program} */ (manifest.programs[own]);
  const uses = usedDevices(manifest, own);
  const modules = (uses.has("wasm") && program.modules) || {};
  const variant = chooseVariant(modules, choice.variant);
  const module = variant ? modules[variant] : "";
  const download = downloadBytes(manifest, program, module);
  const progress = { loaded: 0, total: download };
  const onBytes = (/** @type {number} */ bytes) => {
    progress.loaded += bytes;
    onProgress?.({ ...progress });
  };
  const wasm = uses.has("wasm") ? (started ?? new WasmDevice()) : null;
  if (started && !wasm) started.dispose();
  /** @type {Partial<Record<Device, Executor>>} */
  const devices = {};
  const tasks = [];
  if (wasm) {
    devices.wasm = wasm;
    tasks.push(wasm.load(base, manifest, own, choice.threads, module, onBytes));
  }
  if (uses.has("webgpu")) {
    const load = async () => {
      const { WebGpuDevice } = await import("./webgpu_device.js");
      devices.webgpu = await WebGpuDevice.load(/** @type {GPUAdapter} */ (adapter), base, manifest, own, onBytes);
    };
    tasks.push(load());
  }
  try {
    await Promise.all(tasks);
  } catch (error) {
    await Promise.allSettled(tasks);
    for (const item of Object.values(devices)) item.dispose();
    throw error;
  }
  return new Model(manifest, { ...choice, variant }, devices, download);
}

export class Model {
  #manifest;
  #stages;
  #devices;
  /** @type {Promise<unknown>} */
  #queue = Promise.resolve();
  #disposed = false;

  /**
   * @param {Manifest} manifest
   * @param {Choice} choice
   * @param {Partial<Record<Device, Executor>>} devices
   * @param {number} download bytes, besides the runtime
   */
  constructor(manifest, choice, devices, download) {
    const program = /** @type {Program} */ (manifest.programs[choice.device]);
    const { weights, arena, memory, largest_binding: largestBinding, features } = program.resources;
    this.#manifest = manifest;
    this.#stages = Object.values(devices)[0].stages;
    this.#devices = devices;
    this.name = manifest.name;
    this.inputs = manifest.inputs.map(({ name, dtype, shape }) => ({ name, dtype, shape }));
    this.outputs = manifest.outputs.map(({ name, dtype, shape }) => ({ name, dtype, shape }));
    this.sequences = manifest.sequences ?? {};
    this.device = choice.device;
    this.deviceReason = choice.deviceReason;
    this.variant = choice.variant ?? null;
    this.threads = choice.threads;
    this.threadsReason = choice.threadsReason;
    this.resources = { weights, arena, memory, largestBinding, features, download };
  }

  /**
   * The outputs by name. Runs queue up: they share one memory.
   * @param {Record<string, Tensor | TypedArray>} inputs
   * @returns {Promise<Record<string, Tensor>>}
   */
  run(inputs) {
    return this.#enqueue(async () => {
      const { symbols, values, taken } = await this.#execute(inputs);
      const outputs = this.#manifest.outputs.map((port) => {
        const bytes = /** @type {Uint8Array} */ (values.get(port.buffer));
        const type = arrayOf(port.dtype);
        // A buffer may be two outputs, or the caller's input: each result owns its bytes.
        const data = new type(/** @type {ArrayBuffer} */ ((taken.has(bytes) ? bytes.slice() : bytes).buffer));
        taken.add(bytes);
        return [port.name, { dtype: port.dtype, shape: shapeOf(port, symbols), data }];
      });
      return Object.fromEntries(outputs);
    });
  }

  /**
   * Milliseconds of every step, measured one by one after its segment ran; 0 for those that belong to loading.
   * @param {Record<string, Tensor | TypedArray>} inputs
   * @returns {Promise<import("./webmlc.js").StepTime[]>}
   */
  profile(inputs) {
    return this.#enqueue(async () => {
      const { times } = await this.#execute(inputs, true);
      return this.#program.steps.map(({ kernel, device, origin }, i) => ({ kernel, device, origin, milliseconds: times[i] }));
    });
  }

  /** Free memory, workers and GPU buffers; the model cannot run afterwards. */
  dispose() {
    this.#disposed = true;
    for (const device of Object.values(this.#devices)) device.dispose();
    this.#devices = {};
  }

  /**
   * Run the segments in order: all symbols, the bytes of the inputs (`taken`: the caller's) and of what was downloaded,
   * and (if `measure`) the milliseconds of every step.
   * @param {Record<string, Tensor | TypedArray>} inputs
   * @param {boolean} [measure]
   */
  async #execute(inputs, measure = false) {
    const bound = bind(this.#manifest, inputs);
    const { values } = bound;
    let { symbols } = bound;
    const taken = new Set(values.values());
    /** @type {number[]} */
    const times = [];
    for (const [i, { segment, uploads: names }] of this.#stages.entries()) {
      if ("bind" in segment) {
        const bytes = /** @type {Uint8Array} */ (values.get(segment.bind));
        symbols = { ...symbols, ...bindFromMemory(this.#program, segment, bytes) };
        continue;
      }
      if (segment.once) {
        times.push(...Array(segment.last - segment.first).fill(0)); // done at load
        continue;
      }
      const device = this.#devices[segment.device];
      if (!device) throw new InternalError("the model was disposed of during a run");
      /** @type {Transfers} */
      const uploads = names.map((name) => [name, /** @type {Uint8Array} */ (values.get(name))]);
      for (const [name, bytes] of await device.execute(i, symbols, uploads)) values.set(name, bytes);
      if (measure) times.push(...(await device.profile(i, symbols, uploads)));
    }
    return { symbols, values, taken, times };
  }

  get #program() {
    return /** @type {Program} */ (this.#manifest.programs[this.device]);
  }

  /** @template T @param {() => Promise<T>} task @returns {Promise<T>} */
  #enqueue(task) {
    const result = this.#queue.then(() => {
      if (this.#disposed) throw new InputError("this model was disposed of; load it again");
      return task();
    });
    this.#queue = result.catch(() => {});
    return result;
  }
}

/**
 * @param {Manifest} manifest
 * @param {string} wanted
 * @returns {Promise<{ own: Device, reason: string, adapter: GPUAdapter | null }>}
 */
async function chooseDevice(manifest, wanted) {
  const has = Object.keys(manifest.programs);
  if (wanted !== "auto" && !has.includes(wanted)) {
    throw new PackageError(`the package was built for ${has} only; build it with --target ${wanted} or --target both`);
  }
  if (wanted === "wasm") return { own: "wasm", reason: "requested", adapter: null };
  if (!manifest.programs.webgpu) return { own: "wasm", reason: "the package has no webgpu program", adapter: null };
  if (wanted === "webgpu" && !usedDevices(manifest, "webgpu").has("webgpu")) {
    return { own: "webgpu", reason: "requested; every step runs on the CPU", adapter: null };
  }
  try {
    const { findAdapter, isSoftware } = await import("./adapter.js");
    const adapter = await findAdapter();
    if (wanted === "webgpu" || !manifest.programs.wasm) return { own: "webgpu", reason: "requested", adapter };
    if (!isSoftware(adapter)) return { own: "webgpu", reason: "the GPU adapter is hardware", adapter };
    return { own: "wasm", reason: "the only GPU adapter is software", adapter: null };
  } catch (error) {
    if (wanted === "webgpu" || !manifest.programs.wasm || !(error instanceof AdapterError)) throw error;
    return { own: "wasm", reason: error.message, adapter: null };
  }
}

/** @param {number | undefined} wanted @returns {{ threads: number, threadsReason: string }} */
function chooseThreads(wanted) {
  if (wanted !== undefined && !(Number.isInteger(wanted) && wanted >= 1)) {
    throw new InputError(`threads is ${wanted}, expected a whole number of at least 1`);
  }
  if (wanted === 1) return { threads: 1, threadsReason: "requested" };
  if (!canShareMemory) {
    return {
      threads: 1,
      threadsReason:
        "the page is not cross-origin isolated: serve it with Cross-Origin-Opener-Policy: same-origin and " +
        "Cross-Origin-Embedder-Policy: require-corp to use more",
    };
  }
  if (wanted !== undefined) return { threads: wanted, threadsReason: "requested" };
  const cores = globalThis.navigator?.hardwareConcurrency ?? (isNode ? 2 : 1);
  return { threads: Math.max(1, Math.min(cores, MAX_DEFAULT_THREADS)), threadsReason: `the machine has ${cores} logical cores` };
}

/** The devices that the steps run on; the program's own, too, where a constant is an output or nothing runs. @param {Manifest} manifest @param {Device} own */
function usedDevices(manifest, own) {
  const program = /** @type {Program} */ (manifest.programs[own]);
  const constants = new Set(program.buffers.filter((b) => b.kind === "constant").map((b) => b.name));
  const uses = new Set(runs(program).map((run) => run.device));
  return manifest.outputs.some((o) => constants.has(o.buffer)) || !uses.size ? uses.add(own) : uses;
}

/** Bytes that running `program` with a module downloads besides the runtime. @param {Manifest} manifest @param {Program} program @param {string} module */
function downloadBytes(manifest, program, module) {
  const weights = neededFiles(manifest, program.buffers).reduce((sum, file) => sum + file.bytes, 0);
  const paths = [module, program.shaders].filter((path) => path !== undefined);
  return paths.reduce((sum, path) => sum + (manifest.files[path]?.bytes ?? 0), weights);
}
