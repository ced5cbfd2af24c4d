// Load a program onto a GPU: a device with the limits that it needs, its constants, and a pipeline for each kernel.
//
//   in:  an adapter, or a device of the caller; the package; the target of the program
//   out: a device; the place of each constant; pipelines by kernel

import { AdapterError, InternalError } from "./errors.js";
import { BINDING_MULTIPLE } from "./gpu_buffers.js";
import { CONSTANT_ALIGNMENT } from "./manifest_records.js";
import { align, memoryOf, placeInOrder } from "./memory_plan.js";
import { bufferBytes, evaluate, neededFiles } from "./sizes.js";
import { fetchFile, scatter, streamWeights } from "./weights.js";

/** @import { Control, Loading, Program, Step, Symbols } from "./types.d.ts" */
/** @import { GpuBuffers } from "./gpu_buffers.js" */
/** @typedef {{ buffer: GPUBuffer, offset: number }} GpuPlace */
/**
 * A kernel, and for each of its optional sections, if the pipeline contains it.
 * @typedef {{ pipeline: GPUComputePipeline, layout: GPUBindGroupLayout, sections: boolean[] }} Kernel
 */

const LIMITS = /** @type {const} */ (["maxStorageBufferBindingSize", "maxBufferSize"]);
const DEFAULT_BYTES = [2 ** 27, 2 ** 28]; // the values of LIMITS that every adapter offers
const BYTE_PRODUCTS = "packed_4x8_integer_dot_product"; // the feature of WGSL, the language, that has these functions
const DOT4 = /** @type {const} */ ([
  [
    "dot4I8Packed(",
    "\nfn dot4I8Packed(a: u32, b: u32) -> i32 { return dot(signed_bytes(a), signed_bytes(b)); }" +
      "\nfn signed_bytes(word: u32) -> vec4i { return bitcast<vec4i>(vec4u(word) << vec4u(24u, 16u, 8u, 0u)) >> vec4u(24u); }\n",
  ],
  [
    "dot4U8Packed(",
    "\nfn dot4U8Packed(a: u32, b: u32) -> u32 { return dot(unsigned_bytes(a), unsigned_bytes(b)); }" +
      "\nfn unsigned_bytes(word: u32) -> vec4u { return (vec4u(word) >> vec4u(0u, 8u, 16u, 24u)) & vec4u(255u); }\n",
  ],
]);

/**
 * The limits that the program needs beyond the defaults. If its sizes depend on symbols, it gets all that the adapter offers.
 * @param {Program} program
 * @param {GPUSupportedLimits} offered
 */
function largerLimits({ resources: { largest_binding: largest, arena } }, offered) {
  const needs = [largest, largest === null ? null : Math.max(largest, arena.webgpu ?? 0)];
  /** @type {Record<string, number>} */
  const limits = {};
  for (const [i, name] of LIMITS.entries()) {
    const need = needs[i];
    const size = need === null ? offered[name] : align(need, BINDING_MULTIPLE);
    if (size > offered[name]) throw new AdapterError(`the model needs a ${name} of ${size} bytes; this GPU adapter offers ${offered[name]}`);
    if (size > DEFAULT_BYTES[i]) limits[name] = size;
  }
  return limits;
}

/**
 * The features that the program needs. Throws AdapterError if one is missing.
 * @param {Program} program
 * @param {GPUSupportedFeatures} offered
 * @param {string} owner  who offers them, for the error
 */
function requiredFeatures({ resources }, offered, owner) {
  const required = resources.features.filter((feature) => feature !== "relaxed" && feature !== "simd128");
  const missing = required.filter((feature) => !offered.has(feature));
  if (missing.length) throw new AdapterError(`this GPU ${owner} lacks ${missing.join(", ")}, which the package needs`);
  return required;
}

/**
 * Request a device with the features and limits of the program; or check those of a device of the caller.
 * @param {GPUAdapter | GPUDevice} source
 * @param {Program} program
 * @returns {Promise<GPUDevice>}
 */
export async function openDevice(source, program) {
  if ("createBuffer" in source) {
    requiredFeatures(program, source.features, "device");
    largerLimits(program, source.limits);
    return source;
  }
  const required = requiredFeatures(program, source.features, "adapter");
  if (source.features.has("timestamp-query")) required.push("timestamp-query");
  const requiredLimits = largerLimits(program, source.limits);
  try {
    return await source.requestDevice({ requiredFeatures: /** @type {GPUFeatureName[]} */ (required), requiredLimits });
  } catch (error) {
    throw new AdapterError(`the GPU adapter gives no device (${error})`);
  }
}

/**
 * Allocate resident buffers, in as few buffers of the GPU as its limits allow. Returns the place of each.
 * @param {GpuBuffers} buffers
 * @param {Program} program
 * @param {number[]} numbers
 * @param {boolean} isMapped
 * @returns {Map<string, GpuPlace>}
 */
export function allocateBuffers(buffers, program, numbers, isMapped) {
  const sizes = bufferBytes(program, {});
  const { addresses, end } = placeInOrder(program, numbers, sizes);
  const limit = Math.floor(buffers.device.limits.maxBufferSize / CONSTANT_ALIGNMENT) * CONSTANT_ALIGNMENT;
  const usage = GPUBufferUsage.STORAGE | GPUBufferUsage.COPY_SRC;
  /** @type {{ buffer: GPUBuffer, start: number, end: number }[]} */
  const parts = [];
  /** @type {Map<string, GpuPlace>} */
  const places = new Map();
  for (const [name, address] of addresses) {
    let part = parts.at(-1);
    if (!part || address + Math.max(sizes.get(name) ?? 0, 1) > part.end) {
      const last = Math.min(end, address + limit);
      part = { buffer: buffers.create("weights", last - address, usage, isMapped), start: address, end: last };
      parts.push(part);
    }
    places.set(name, { buffer: part.buffer, offset: address - part.start });
  }
  return places;
}

/**
 * Stream constants into mapped buffers. Constants that only loading reads have buffers of their own. Returns the place of each constant.
 * @param {GpuBuffers} buffers
 * @param {Loading} loading
 * @returns {Promise<Map<string, GpuPlace>>}
 */
export async function loadConstants(buffers, loading) {
  const { program } = loading.manifest;
  const { constants: lasting, temporary } = memoryOf(program, "webgpu");
  const constants = new Map([lasting, temporary].flatMap((numbers) => [...allocateBuffers(buffers, program, numbers, true)]));
  const weights = new Set([...constants.values()].map(({ buffer }) => buffer));
  const bytes = new Map([...weights].map((buffer) => [buffer, new Uint8Array(buffer.getMappedRange())]));
  const tensors = new Map(program.buffers.map(({ name, tensor }) => [name, tensor]));
  const owners = new Map([...constants].map(([name, place]) => [tensors.get(name), place]));
  const downloads = neededFiles(loading.manifest, program.buffers).map((file) => {
    const destinations = Object.entries(file.tensors).flatMap(([tensor, [begin, end]]) => {
      const place = owners.get(tensor);
      return place ? [{ begin, end, view: /** @type {Uint8Array} */ (bytes.get(place.buffer)).subarray(place.offset, place.offset + end - begin) }] : [];
    });
    const onChunk = (/** @type {Uint8Array} */ data, /** @type {number} */ start) => scatter(data, start, destinations);
    return destinations.length ? streamWeights(loading, file, onChunk) : undefined;
  });
  await Promise.all(downloads);
  for (const buffer of weights) buffer.unmap();
  return constants;
}

/**
 * The steps of the GPU whose kernels every run needs as a whole. Runs decide about those in the branches of an `if`, and about
 * sections.
 * @param {Program} program
 */
export function certainSteps({ steps }) {
  let end = 0; // of the branches of the latest `if`
  return steps.filter((step, index) => {
    const { device, control } = step;
    const isCertain = index >= end;
    if (isCertain && control?.kind === "if") end = /** @type {Control} */ (steps[control.target - 1].control).target; // `else`
    return isCertain && device === "webgpu" && !control && !launchOf(step).sections.length;
  });
}

/**
 * The kernels of a program. Kernels that differ in numbers only share an entry point. A pipeline contains the optional sections that
 * runs have needed so far: compiling one takes a software adapter longer than running it.
 */
export class Kernels {
  /** @type {Map<string, Kernel>} By entry point. */
  #kernels = new Map();
  /** @type {Promise<void> | null} */
  #compiling = null;

  /**
   * @param {GPUDevice} device
   * @param {Program} program
   * @param {string} text  of all shaders
   */
  constructor(device, program, text) {
    this.device = device;
    this.modules = splitShaders(text);
    this.constants = new Set(program.buffers.filter((b) => b.kind === "constant").map((b) => b.name));
  }

  /** The kernel of a step, if it was compiled. @param {Step} step */
  of(step) {
    return this.#kernels.get(entryOf(step));
  }

  /** The steps that a run with these values of symbols cannot execute yet. @param {Step[]} steps @param {Symbols} values */
  missing(steps, values) {
    return steps.filter((step) => {
      const { sections } = this.of(step) ?? {};
      return !sections || neededSections(step, values).some((isNeeded, i) => isNeeded && !sections[i]);
    });
  }

  /**
   * Compile what runs with these values of symbols need to execute these steps, all at the same time; or wait until what another run
   * needs is compiled, because each pipeline contains the sections of the one that it replaces.
   * @param {Step[]} steps
   * @param {Symbols} values
   * @param {(compiled: number, total: number) => void} [onPipeline]
   */
  compile(steps, values, onPipeline) {
    this.#compiling ??= this.#compile(steps, values, onPipeline).finally(() => (this.#compiling = null));
    return this.#compiling;
  }

  /** @param {Step[]} steps @param {Symbols} values @param {(compiled: number, total: number) => void} [onPipeline] */
  async #compile(steps, values, onPipeline) {
    /** @type {Map<string, { step: Step, sections: boolean[] }>} By entry point. */
    const pipelines = new Map();
    for (const step of this.missing(steps, values)) {
      const entry = entryOf(step);
      const sections = pipelines.get(entry)?.sections ?? this.of(step)?.sections ?? [];
      pipelines.set(entry, { step, sections: neededSections(step, values).map((isNeeded, i) => isNeeded || Boolean(sections[i])) });
    }
    let compiled = 0;
    const compile = [...pipelines].map(async ([entry, { step, sections }]) => {
      const kernel = this.of(step);
      const layout = kernel?.layout ?? this.#layout(step);
      const pipeline = await this.#pipeline(entry, layout, sections);
      if (kernel) Object.assign(kernel, { pipeline, sections }); // dispatches refer to it
      else this.#kernels.set(entry, { pipeline, layout, sections });
      onPipeline?.(++compiled, pipelines.size);
    });
    await Promise.all(compile);
  }

  /** A layout that binds the arguments of a step, constants read-only, and then its symbols and integers. @param {Step} step */
  #layout(step) {
    /** @type {GPUBufferBindingType[]} */
    const types = step.arguments.map((name) => (this.constants.has(name) ? "read-only-storage" : "storage"));
    if (hasUniform(step)) types.push("uniform");
    const entries = types.map((type, binding) => ({ binding, visibility: GPUShaderStage.COMPUTE, buffer: { type } }));
    return this.device.createBindGroupLayout({ entries });
  }

  /**
   * Compile a pipeline that contains some of the optional sections. Kernels that multiply words of bytes get a function for it where
   * the browser's WGSL has none.
   * @param {string} entryPoint
   * @param {GPUBindGroupLayout} layout
   * @param {boolean[]} sections
   * @returns {Promise<GPUComputePipeline>}
   */
  async #pipeline(entryPoint, layout, sections) {
    const { device } = this;
    const text = withSections(this.modules.get(entryPoint) ?? "", sections);
    const isComplete = globalThis.navigator?.gpu?.wgslLanguageFeatures?.has(BYTE_PRODUCTS);
    const missing = isComplete ? [] : DOT4.filter(([call]) => text.includes(call));
    const code = missing.reduce((code, [, definition]) => code + definition, text);
    const module = device.createShaderModule({ code });
    return device
      .createComputePipelineAsync({
        label: entryPoint,
        layout: device.createPipelineLayout({ bindGroupLayouts: [layout] }),
        compute: { module, entryPoint },
      })
      .catch(async (error) => {
        const { messages } = await module.getCompilationInfo();
        const { message, lineNum } = messages.find(({ type }) => type === "error") ?? error;
        const line = code.split("\n")[lineNum - 1]?.trim() ?? "";
        throw new InternalError(`WebGPU rejects kernel ${entryPoint}: ${message.split("\n")[0]} ${line}`.trim());
      });
  }
}

/**
 * The text of a kernel without the optional sections that a pipeline does not contain. An override alone would leave the workgroup
 * memory of code that never runs, which engines clear behind a barrier.
 * @param {string} text
 * @param {boolean[]} sections
 */
function withSections(text, sections) {
  const names = [...text.matchAll(/^override (\w+)/gm)].map(([, name]) => name);
  const absent = names.filter((_, i) => sections[i] === false);
  return absent.reduce((rest, name) => rest.replace(new RegExp(`^ if \\(${name}\\) \\{\n[^]*?^ \\}\n`, "m"), ""), text);
}

/** The launch of a step of the GPU: `withSchedules` leaves one of its launches. @param {Step} step */
export function launchOf({ launches }) {
  return Object.values(launches)[0];
}

/** The entry point that a step launches. @param {Step} step */
function entryOf(step) {
  return launchOf(step).entry || step.kernel;
}

/** For each optional section of a step, if it has workgroups. @param {Step} step @param {Symbols} values */
function neededSections(step, values) {
  return launchOf(step).sections.map((size) => evaluate(size, values) > 0);
}

/** True if a step binds a uniform, of symbols and integers. @param {Step} step */
export function hasUniform(step) {
  return step.symbols.length + launchOf(step).integers.length > 0;
}

/** Download the shaders of a program, or "" if it has none. @param {Loading} loading */
export async function fetchShaders(loading) {
  const [path] = Object.values(loading.manifest.program.shaders);
  return path === undefined ? "" : new TextDecoder().decode(await fetchFile(loading, path));
}

/**
 * Divide the shaders into one module per entry point, because browsers translate the whole module again for every pipeline.
 * Each kernel begins with a comment at the start of a line. The text before the first kernel belongs to all modules.
 * @param {string} code
 * @returns {Map<string, string>}
 */
function splitShaders(code) {
  const parts = code.split(/^(?=\/\/ )/m);
  const common = code.startsWith("// ") ? "" : parts.shift();
  return new Map(parts.map((part) => [/^fn (\w+)\(/m.exec(part)?.[1] ?? "", common + part]));
}
