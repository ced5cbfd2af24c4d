// Open a package: choose a program, a variant and threads, and load the program on the devices that it uses.

import { unlessAborted } from "./abort_load.js";
import { codeOf, fromData, InputError, PackageError, toData } from "./errors.js";
import { described, kindOf } from "./kinds.js";
import { withSchedules } from "./machine_class.js";
import { fetchManifest } from "./manifest.js";
import { runs } from "./memory_plan.js";
import { dispose, Model } from "./model.js";
import { here, isNode, sharingObstacle } from "./platform.js";
import { hasStates, neededFiles } from "./sizes.js";
import { chooseVariant, VARIANT_NAMES } from "./variants.js";
import { WasmDevice } from "./wasm_device.js";

/** @import { Base, Chosen, Device, Loading, Manifest, Program, Texts } from "./types.d.ts" */
/** @import { Executors, Loaded } from "./model.js" */
/** @import { LoadOptions } from "./webmlc.js" */
/**
 * The options of `load` after they were checked.
 * @typedef {Omit<LoadOptions, "device"> & {
 *   device: "auto" | Device, gpu: GPUDevice | null, reason?: string, threads: number, threadsReason: string, inlineMilliseconds: number,
 * }} Options  `gpu` is a device of the caller, `reason` why the device was chosen
 */
/** A program and the reason why it was chosen. @typedef {{ device: Device, deviceReason: string }} Choice */

const MAX_DEFAULT_THREADS = 8;

/**
 * The folder of a package. Throws InputError if `url` is none.
 * @param {string | URL} url
 * @returns {URL} ends in "/"
 */
export function folderAt(url) {
  if (!["String", "URL"].includes(kindOf(url))) {
    throw new InputError(`load takes the URL of a package's folder, not ${described(url)}: pages compile no models, \`webmlc build\` does`);
  }
  if (!URL.canParse(url, here())) throw new InputError(`${JSON.stringify(url)} is no URL of a package's folder`);
  const folder = new URL(url, here());
  if (!folder.pathname.endsWith("/")) folder.pathname += "/";
  return folder;
}

/**
 * Open a model, and keep the files of its package if an option says so.
 * @param {Base} base
 * @param {LoadOptions} options
 * @param {(manifest: Manifest, base: Base) => void} [onManifest]  called before the download of the weights, with the base that keeps files
 */
export function openModel(base, options, onManifest) {
  return unlessAborted(base, options, async (abortable, { keepFiles, ...others }) => {
    const open = (/** @type {Base} */ from) => openFrom(from, others, onManifest);
    return keepFiles ? (await base.fileCache()).withKeptFiles(abortable, open) : open(abortable);
  });
}

/**
 * Check the options of `load`, and open the program of a device. If the package has typed values, runs take and return these.
 * @param {Base} base
 * @param {LoadOptions} options
 * @param {(manifest: Manifest, base: Base) => void} [onManifest]
 */
async function openFrom(base, { device = "auto", threads, variant, shaders, inlineMilliseconds = 5, onProgress }, onManifest) {
  const expect = (/** @type {boolean} */ holds, /** @type {Record<string, unknown>} */ option, /** @type {string} */ values) => {
    const [[name, value]] = Object.entries(option);
    if (!holds) throw new InputError(`${name} is ${JSON.stringify(value)}, expected ${values}`);
  };
  const expectOneOf = (/** @type {string[]} */ names, /** @type {Record<string, string | undefined>} */ option) => {
    const [name] = Object.values(option);
    expect(name === undefined || names.includes(name), option, names.map((known) => `"${known}"`).join(" or "));
  };
  /** @type {GPUDevice | null} */
  const gpu = /** @type {any} */ (device)?.createBuffer ? /** @type {any} */ (device) : null;
  const kind = gpu ? "webgpu" : /** @type {"auto" | Device} */ (device);
  expect(["auto", "wasm", "webgpu"].includes(kind), { device }, '"auto", "wasm", "webgpu" or a GPUDevice');
  const kinds = ["gpu", "software", "software-subgroups", "subgroups", "f16", "f16-subgroups"];
  expectOneOf(VARIANT_NAMES, { variant });
  expectOneOf(kinds, { shaders });
  expect(typeof inlineMilliseconds === "number" && inlineMilliseconds >= 0, { inlineMilliseconds }, "a number of at least 0");
  const options = { device: kind, gpu, variant, shaders, inlineMilliseconds, onProgress, ...chooseThreads(threads, base) };
  // If a worker is likely to be needed, it starts while the manifest is downloaded.
  const cpu = kind === "webgpu" ? null : new WasmDevice(base);
  if (kind === "webgpu") for (const script of [base.adapter(), base.webgpuDevice()]) script.catch(() => {}); // reported where it is used
  try {
    const manifest = await fetchManifest(base);
    base.files?.use(manifest);
    onManifest?.(manifest, base);
    // The parts for texts and for values of the page arrive beside the weights. Their errors are reported below, if the model opens.
    const texts = manifest.texts && base.texts();
    const typedValues = Object.keys(manifest.typed).length && base.typedValues();
    for (const part of [texts, typedValues]) if (part) part.catch(() => {});
    if (hasStates(manifest) || manifest.carried.length) base.session().catch(() => {}); // arrives beside the weights, not during the first run
    let spare = cpu;
    const open = async (/** @type {"auto" | Device} */ on, reason = "") => {
      const choice = { ...options, device: on, reason };
      const wasm = spare;
      spare = null;
      const loaded = await openProgram(base, manifest, choice, wasm);
      const model = new Model(base, manifest, options, () => openProgram(base, manifest, choice, null), loaded);
      return { model, explain: (/** @type {string} */ text) => void (loaded.deviceReason = choice.reason = text) };
    };
    const { wasm, webgpu } = manifest.programs;
    const model = kind === "auto" && wasm && webgpu ? await (await base.fastestDevice()).openFastest(base, manifest, open) : (await open(kind)).model;
    try {
      if (texts) await (await texts).withTexts(model, /** @type {Texts} */ (manifest.texts));
      return typedValues ? await (await typedValues).withTypedValues(model, base) : model;
    } catch (error) {
      model.dispose();
      throw error;
    }
  } catch (error) {
    cpu?.dispose();
    throw error;
  }
}

/**
 * Open the program for the GPU or for the CPU. With `auto`, if the program for the GPU fails to open, open that for the CPU.
 * @param {Base} base
 * @param {Manifest} manifest
 * @param {Options} options
 * @param {WasmDevice | null} cpu  the CPU, if its worker starts already
 * @returns {Promise<Loaded>}
 */
async function openProgram(base, manifest, options, cpu) {
  const { wasm, webgpu } = manifest.programs;
  const { device } = options;
  if (device !== "auto" && !manifest.programs[device]) {
    const devices = Object.keys(manifest.programs);
    throw new PackageError(`the package was built for ${devices} only; build it with --target ${device} or --target both`);
  }
  if (device === "wasm" || !webgpu) {
    const deviceReason = options.reason || (webgpu || device === "wasm" ? "requested" : "the package has no webgpu program");
    return openExecutors(base, manifest, options, { device: "wasm", deviceReason }, null, cpu);
  }
  const mayFallBack = device === "auto" && wasm !== undefined;
  let spare = cpu;
  try {
    /** @type {Choice} */
    const choice = { device: "webgpu", deviceReason: options.reason || (mayFallBack ? "the GPU adapter is hardware" : "requested") };
    /** @type {GPUAdapter | GPUDevice | null} */
    let adapter = options.gpu;
    if (adapter) choice.deviceReason = "the GPUDevice of the page";
    else if (mayFallBack || usedDevices(webgpu, "webgpu").has("webgpu")) {
      const { findAdapter } = await base.adapter();
      adapter = await findAdapter(mayFallBack);
    } else choice.deviceReason += "; every step runs on the CPU";
    spare = null;
    return await openExecutors(base, manifest, options, choice, adapter, cpu);
  } catch (cause) {
    const error = /** @type {Error} */ (codeOf(cause) ? cause : fromData(toData(cause)));
    if (!mayFallBack) throw error;
    return openExecutors(base, manifest, options, { device: "wasm", deviceReason: error.message }, null, spare);
  }
}

/**
 * Load the chosen program on each of the devices that it uses.
 * @param {Base} base
 * @param {Manifest} full
 * @param {Options} options
 * @param {Choice} choice
 * @param {GPUAdapter | GPUDevice | null} adapter
 * @param {WasmDevice | null} cpu  the CPU, if its worker starts already
 * @returns {Promise<Loaded>}
 */
async function openExecutors(base, full, options, choice, adapter, cpu) {
  const { threads } = options;
  const manifest = withSchedules(full, choice.device, threads, adapter, options.shaders);
  const { program } = manifest;
  const devices = usedDevices(program, choice.device);
  const modules = devices.has("wasm") ? program.modules : {};
  const variant = chooseVariant(modules, options.variant);
  const module = variant ? modules[variant] : "";
  const download = downloadBytes(manifest, module);
  /** @type {Parameters<NonNullable<LoadOptions["onProgress"]>>[0]} */
  const progress = { loaded: 0, total: download };
  let hasFailed = false;
  const report = (/** @type {Partial<typeof progress>} */ change) => {
    Object.assign(progress, change);
    if (!hasFailed) options.onProgress?.({ ...progress });
  };
  /** @type {Loading} */
  const loading = {
    base,
    manifest,
    threads,
    module,
    onBytes: (bytes) => report({ loaded: progress.loaded + bytes }),
    onPipeline: (compiled, total) => report({ pipelines: { compiled, total } }),
  };
  /** @type {Executors} */
  const executors = {};
  const tasks = [];
  if (devices.has("wasm")) {
    const wasm = cpu ?? new WasmDevice(base);
    executors.wasm = wasm;
    wasm.inlineMilliseconds = options.inlineMilliseconds;
    tasks.push(wasm.load(loading));
  } else cpu?.dispose();
  if (devices.has("webgpu")) {
    const load = async () => {
      const { WebGpuDevice } = await base.webgpuDevice();
      executors.webgpu = await WebGpuDevice.load(/** @type {GPUAdapter} */ (adapter), loading);
    };
    tasks.push(load());
  }
  try {
    await Promise.all(tasks);
  } catch (error) {
    hasFailed = true;
    dispose(executors); // ends their downloads
    await Promise.allSettled(tasks);
    dispose(executors); // also those that opened meanwhile
    throw error;
  }
  const { weights, arena, memory, largest_binding: largestBinding, features, row } = program.resources;
  const resources = { weights, arena, memory, largestBinding, features, download, row };
  const overlaps = !executors.wasm && program.segments.length === 1 && !program.steps.some(({ control }) => control);
  const [shaders = null] = /** @type {import("./webmlc.js").Model["shaders"][]} */ (Object.keys(program.shaders));
  return { ...choice, variant, shaders, executors, overlaps, resources };
}

/**
 * Choose the number of threads.
 * @param {number | undefined} threads
 * @param {Base} base
 * @returns {{ threads: number, threadsReason: string }}
 */
function chooseThreads(threads, { workers }) {
  if (threads !== undefined && !(Number.isInteger(threads) && threads >= 1)) {
    throw new InputError(`threads is ${threads}, expected a whole number of at least 1`);
  }
  if (threads === 1) return { threads: 1, threadsReason: "requested" };
  const obstacle = workers.areThisThread ? "the model runs in the thread that loaded it" : sharingObstacle;
  if (obstacle) return { threads: 1, threadsReason: obstacle };
  if (threads !== undefined) return { threads, threadsReason: "requested" };
  const cores = globalThis.navigator?.hardwareConcurrency ?? (isNode ? 2 : 1);
  return { threads: Math.max(1, Math.min(cores, MAX_DEFAULT_THREADS)), threadsReason: `the machine has ${cores} logical cores` };
}

/** The devices that the program needs: those of its segments, or if it has none, its target. @param {Program} program @param {Device} target */
function usedDevices(program, target) {
  const devices = new Set(runs(program).map((run) => run.device));
  return devices.size ? devices : devices.add(target);
}

/** The bytes of the weights, the module and the shaders that a program downloads. @param {Chosen} manifest @param {string} module */
function downloadBytes(manifest, module) {
  const { program, files } = manifest;
  const weights = neededFiles(manifest, program.buffers).reduce((sum, file) => sum + file.bytes, 0);
  const paths = [module, ...Object.values(program.shaders)];
  return paths.reduce((sum, path) => sum + (files[path]?.bytes ?? 0), weights);
}
