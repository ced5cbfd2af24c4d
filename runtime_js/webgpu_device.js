// Run a model on the GPU. The twin of webmlc/host/webgpu.py.
//
// All activations are in one buffer, the arena. Bind groups are built once per binding of symbols. Consecutive steps are one
// encoder, one pass and one submission, and a stage ends with one readback.

import { AdapterError, DeviceLostError, InputError, InternalError } from "./errors.js";
import {
  align,
  boundSymbols,
  checkNew,
  checkPlaces,
  CONSTANT_ALIGNMENT,
  GROWTH,
  layout,
  placeConstants,
  stages,
  stateBytes,
  statePlaces,
} from "./memory_plan.js";
import { evaluate, lengthOf, neededFiles, symbolsOf, tripCount } from "./sizes.js";
import { fetchFile, scatter, streamWeights } from "./weights.js";

/** @typedef {import("./types.d.ts").Base} Base */
/** @typedef {import("./types.d.ts").Control} Control */
/** @typedef {import("./types.d.ts").Device} Device */
/** @typedef {import("./types.d.ts").Layout} Layout */
/** @typedef {import("./types.d.ts").Manifest} Manifest */
/** @typedef {import("./types.d.ts").Program} Program */
/** @typedef {import("./types.d.ts").Run} Run */
/** @typedef {import("./types.d.ts").Size} Size */
/** @typedef {import("./types.d.ts").Stage} Stage */
/** @typedef {import("./types.d.ts").States} States */
/** @typedef {import("./types.d.ts").Symbols} Symbols */
/** @typedef {import("./types.d.ts").Transfers} Transfers */
/**
 * `sizes` are the numbers of workgroups, if they depend on the length of a session.
 * @typedef {{ pipeline: GPUComputePipeline, group: GPUBindGroup, workgroups: [number, number, number], sizes?: Size[] }} Dispatch
 */
/** @typedef {{ names: string[], buffer: GPUBuffer }} Uniform */
/** The plan of the arena for these symbols, and the uniforms and dispatches (by step) that were needed so far. */
/**
 * In a session, `symbols` has its length, and `block` its states.
 * @typedef {{ symbols: Symbols, layout: Layout, uniforms: Map<string, Uniform>, dispatches: Map<number, Dispatch>, block?: Block }} Binding
 */
/** The states of a session, and the bindings whose groups contain their buffer. */
/** @typedef {{ buffer: GPUBuffer, places: import("./types.d.ts").StatePlaces, bindings: Map<string, Binding> }} Block */
/** @typedef {{ pipeline: GPUComputePipeline, layout: GPUBindGroupLayout }} Kernel */

const BINDING_MULTIPLE = 16; // bindings have a multiple of these bytes, because kernels may read whole vec4<f32>
const LOSS_MS = 100; // if a readback fails and the device is not lost within this time, there is another reason
const MAX_BINDINGS = 16; // the number of bindings of symbols that are cached

const LIMITS = /** @type {const} */ (["maxStorageBufferBindingSize", "maxBufferSize"]);
const DEFAULT_BYTES = [2 ** 27, 2 ** 28]; // the values of LIMITS that every adapter offers

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
 * Request a device with the features and limits of the program.
 * @param {GPUAdapter} adapter
 * @param {Program} program
 * @returns {Promise<GPUDevice>}
 */
async function requestDevice(adapter, program) {
  const required = program.resources.features.filter((f) => f !== "relaxed" && f !== "simd128");
  const missing = required.filter((f) => !adapter.features.has(f));
  if (missing.length) throw new AdapterError(`this GPU adapter lacks ${missing.join(", ")}, which the package needs`);
  if (adapter.features.has("timestamp-query")) required.push("timestamp-query");
  const requiredLimits = largerLimits(program, adapter.limits);
  try {
    return await adapter.requestDevice({ requiredFeatures: /** @type {GPUFeatureName[]} */ (required), requiredLimits });
  } catch (error) {
    throw new AdapterError(`the GPU adapter gives no device (${error})`);
  }
}

export class WebGpuDevice {
  /** @type {Map<string, { buffer: GPUBuffer, offset: number }>} */
  constants = new Map();
  /** @type {Map<string, Kernel>} */
  kernels = new Map();
  /** @type {Map<string, Binding>} */
  bindings = new Map();
  /** @type {Map<number, Block>} By id of the session. */
  blocks = new Map();
  length = ""; // the symbol of the length of sessions
  /** @type {GPUBuffer | null} */
  arena = null;
  /** @type {GPUBuffer | null} */
  staging = null;
  /** @type {Symbols} */
  iterations = {}; // the symbol of each loop that runs
  /** @type {Error | null} */
  failure = null;

  /**
   * Download weights and shaders and compile every pipeline, all at the same time.
   * @param {GPUAdapter} adapter
   * @param {Base} base
   * @param {Manifest} manifest
   * @param {Device} target
   * @param {(bytes: number) => void} onBytes
   */
  static async load(adapter, base, manifest, target, onBytes) {
    const program = /** @type {Program} */ (manifest.programs[target]);
    const device = new WebGpuDevice(await requestDevice(adapter, program), manifest, target);
    try {
      await Promise.all([device.#loadShaders(base, onBytes), device.#loadConstants(base, onBytes)]);
      if (device.failure) throw device.failure;
    } catch (error) {
      const { failure } = device;
      device.dispose(); // unmaps the buffers, which ends the download of weights
      throw failure instanceof DeviceLostError ? failure : error;
    }
    return device;
  }

  /** @param {GPUDevice} device @param {Manifest} manifest @param {Device} target */
  constructor(device, manifest, target) {
    this.device = device;
    this.manifest = manifest;
    this.target = target;
    this.program = /** @type {Program} */ (manifest.programs[target]);
    this.stages = stages(manifest, target);
    this.length = lengthOf(manifest);
    device.lost.then(({ reason, message }) => {
      this.failure ??= new DeviceLostError(`the GPU device was lost (${reason}: ${message}); await model.restore(), or load it again`);
    });
    device.onuncapturederror = ({ error }) => {
      const type = error instanceof GPUOutOfMemoryError ? AdapterError : InternalError;
      this.failure ??= new type(`WebGPU: ${error.message}`);
    };
  }

  /**
   * Run a stage.
   * @param {Stage} stage
   * @param {Symbols} symbols
   * @param {Transfers} uploads
   * @param {States} [states]
   * @returns {Promise<Transfers>}
   */
  async execute({ segment, downloads }, symbols, uploads, states) {
    const binding = this.#start(symbols, uploads, states);
    const { first, last } = /** @type {Run} */ (segment);
    this.iterations = {};
    let encoder = this.device.createCommandEncoder();
    let pass = encoder.beginComputePass();
    for (let i = first; i < last; ) {
      const { control, arguments: names } = this.program.steps[i];
      if (!control) {
        encode(pass, this.#dispatch(binding, i++), binding.symbols);
        continue;
      }
      pass.end();
      let condition = true; // computed by earlier steps
      if (names.length) condition = (await this.#read(encoder, binding, names))[0][1][0] !== 0;
      else this.device.queue.submit([encoder.finish()]);
      i = this.#decide(control, i, condition, binding);
      encoder = this.device.createCommandEncoder();
      pass = encoder.beginComputePass();
    }
    pass.end();
    return this.#read(encoder, binding, downloads);
  }

  /**
   * The step that follows a control step. Updates the symbols of loops.
   * @param {Control} control
   * @param {number} index
   * @param {boolean} condition
   * @param {Binding} binding
   */
  #decide(control, index, condition, { symbols, uniforms }) {
    const { kind, target, symbol = "" } = control;
    const { iterations } = this;
    if (kind === "else") return target;
    if (kind === "if") return condition ? index + 1 : target;
    iterations[symbol] = kind === "loop" ? 0 : iterations[symbol] + 1;
    const follows = condition && iterations[symbol] < tripCount(control, symbols);
    if (follows) {
      for (const { names, buffer } of uniforms.values()) {
        if (names.includes(symbol)) this.device.queue.writeBuffer(buffer, 0, words(names, { ...symbols, ...iterations }));
      }
    }
    return follows === (kind === "next") ? target : index + 1;
  }

  /**
   * Measure the milliseconds of each step, by timestamps.
   * @param {Stage} stage
   * @param {Symbols} symbols
   * @param {Transfers} uploads
   * @param {States} [states]
   */
  async profile({ segment }, symbols, uploads, states) {
    if (!this.device.features.has("timestamp-query")) {
      throw new AdapterError("this GPU adapter offers no timestamp-query, which profiling needs");
    }
    const binding = this.#start(symbols, uploads, states);
    const { first, last } = /** @type {Run} */ (segment);
    const count = 2 * (last - first);
    const querySet = this.device.createQuerySet({ type: "timestamp", count });
    const resolved = this.device.createBuffer({ size: 8 * count, usage: GPUBufferUsage.QUERY_RESOLVE | GPUBufferUsage.COPY_SRC });
    const staging = this.device.createBuffer({ size: 8 * count, usage: GPUBufferUsage.MAP_READ | GPUBufferUsage.COPY_DST });
    const encoder = this.device.createCommandEncoder();
    for (let i = first, query = 0; i < last; i++, query += 2) {
      const timestampWrites = { querySet, beginningOfPassWriteIndex: query, endOfPassWriteIndex: query + 1 };
      const pass = encoder.beginComputePass({ timestampWrites });
      if (!this.program.steps[i].control) encode(pass, this.#dispatch(binding, i), binding.symbols);
      pass.end();
    }
    encoder.resolveQuerySet(querySet, 0, count, resolved, 0);
    encoder.copyBufferToBuffer(resolved, 0, staging, 0, 8 * count);
    this.device.queue.submit([encoder.finish()]);
    await this.#map(staging);
    const ticks = new BigUint64Array(staging.getMappedRange().slice(0));
    for (const item of [querySet, resolved, staging]) item.destroy();
    return Array.from({ length: count / 2 }, (_, i) => Number(ticks[2 * i + 1] - ticks[2 * i]) / 1e6);
  }

  dispose() {
    this.failure ??= new InternalError("the model was disposed of");
    this.device.destroy();
  }

  /** Create a buffer. @param {string} label @param {number} bytes @param {number} usage @param {boolean} [mappedAtCreation] */
  #buffer(label, bytes, usage, mappedAtCreation = false) {
    const limit = this.device.limits.maxBufferSize;
    const size = Math.max(align(bytes, BINDING_MULTIPLE), 16);
    if (size > limit) throw new AdapterError(`the model needs a GPU buffer for ${label} of ${size} bytes; maxBufferSize is ${limit}`);
    try {
      return this.device.createBuffer({ label, size, usage, mappedAtCreation });
    } catch (error) {
      throw new AdapterError(`the GPU has no memory for ${label}: ${size} bytes (${error})`);
    }
  }

  /**
   * Stream constants into mapped buffers, as few as the device's limits allow.
   * @param {Base} base
   * @param {(bytes: number) => void} onBytes
   */
  async #loadConstants(base, onBytes) {
    const { addresses, end } = placeConstants(this.manifest, this.target, "webgpu", 0);
    const limit = Math.floor(this.device.limits.maxBufferSize / CONSTANT_ALIGNMENT) * CONSTANT_ALIGNMENT;
    const usage = GPUBufferUsage.STORAGE | GPUBufferUsage.COPY_SRC;
    const spans = new Map(this.manifest.weights.files.flatMap((f) => Object.entries(f.tensors)));
    const tensors = new Map(this.program.buffers.map((b) => [b.name, b.tensor ?? ""]));
    /** @type {{ buffer: GPUBuffer, start: number, end: number, bytes: Uint8Array }[]} */
    const buffers = [];
    /** @type {Map<string, Uint8Array>} */
    const views = new Map();
    for (const [name, address] of [...addresses].sort((a, b) => a[1] - b[1])) {
      const tensor = tensors.get(name) ?? "";
      const [from, to] = spans.get(tensor) ?? [0, 0];
      let place = buffers.at(-1);
      if (!place || address + Math.max(to - from, 1) > place.end) {
        const last = Math.min(end, address + limit);
        const buffer = this.#buffer("weights", last - address, usage, true);
        place = { buffer, start: address, end: last, bytes: new Uint8Array(buffer.getMappedRange()) };
        buffers.push(place);
      }
      this.constants.set(name, { buffer: place.buffer, offset: address - place.start });
      views.set(tensor, place.bytes.subarray(address - place.start, address - place.start + to - from));
    }
    const downloads = neededFiles(this.manifest, this.program.buffers).map((file) => {
      const destinations = Object.entries(file.tensors).flatMap(([tensor, [begin, last]]) => {
        const view = views.get(tensor);
        return view ? [{ begin, end: last, view }] : [];
      });
      const onChunk = (/** @type {Uint8Array} */ data, /** @type {number} */ start) => scatter(data, start, destinations);
      return destinations.length ? streamWeights(base, file, onChunk, onBytes) : undefined;
    });
    await Promise.all(downloads);
    for (const { buffer } of buffers) buffer.unmap();
  }

  /**
   * Compile a pipeline for each kernel. Its explicit layout binds the arguments, constants read-only, and then the symbols.
   * @param {Base} base
   * @param {(bytes: number) => void} onBytes
   */
  async #loadShaders(base, onBytes) {
    const { shaders } = this.program;
    if (shaders === undefined) return;
    const text = new TextDecoder().decode(await fetchFile(base, this.manifest, shaders, onBytes));
    const modules = splitShaders(text);
    const steps = new Map(this.program.steps.filter((s) => s.device === "webgpu" && !s.control).map((s) => [s.kernel, s]));
    const constants = new Set(this.program.buffers.filter((b) => b.kind === "constant").map((b) => b.name));
    const compile = [...steps].map(async ([kernel, step]) => {
      /** @type {GPUBufferBindingType[]} */
      const types = step.arguments.map((name) => (constants.has(name) ? "read-only-storage" : "storage"));
      if (step.symbols?.length) types.push("uniform");
      const entries = types.map((type, binding) => ({ binding, visibility: GPUShaderStage.COMPUTE, buffer: { type } }));
      const group = this.device.createBindGroupLayout({ entries });
      const code = modules.get(kernel) ?? text;
      const module = this.device.createShaderModule({ code });
      const pipeline = await this.device
        .createComputePipelineAsync({
          label: kernel,
          layout: this.device.createPipelineLayout({ bindGroupLayouts: [group] }),
          compute: { module, entryPoint: kernel },
        })
        .catch(async (error) => {
          const { messages } = await module.getCompilationInfo();
          const { message, lineNum } = messages.find(({ type }) => type === "error") ?? error;
          const line = code.split("\n")[lineNum - 1]?.trim() ?? "";
          throw new InternalError(`WebGPU rejects kernel ${kernel}: ${message.split("\n")[0]} ${line}`.trim());
        });
      this.kernels.set(kernel, { pipeline, layout: group });
    });
    await Promise.all(compile);
  }

  /** Bind the symbols, and write the uploads. @param {Symbols} symbols @param {Transfers} uploads @param {States} [states] */
  #start(symbols, uploads, states) {
    if (this.failure) throw this.failure;
    const binding = this.#bind(symbols, states);
    if (!this.arena || binding.layout.arena > this.arena.size) this.#grow(binding);
    for (const [name, data] of uploads) {
      const { buffer, offset } = this.#place(binding, name);
      this.#write(buffer, offset, data);
    }
    if (states && this.length) {
      binding.symbols = { ...symbols, [this.length]: states.length };
      for (const { names, buffer } of binding.uniforms.values()) {
        if (names.includes(this.length)) this.device.queue.writeBuffer(buffer, 0, words(names, binding.symbols));
      }
    }
    return binding;
  }

  /** Write bytes to a buffer, in whole words. @param {GPUBuffer} buffer @param {number} offset @param {Uint8Array} data */
  #write(buffer, offset, data) {
    const remainder = data.length % 4;
    if (!remainder) this.device.queue.writeBuffer(buffer, offset, /** @type {Uint8Array<ArrayBuffer>} */ (data));
    else {
      const padded = new Uint8Array(data.length + 4 - remainder);
      padded.set(data);
      this.device.queue.writeBuffer(buffer, offset, padded);
    }
  }

  /** The binding of these symbols and this session, which is cached. @param {Symbols} symbols @param {States} [states] */
  #bind(symbols, states) {
    const key = JSON.stringify(symbols);
    if (!states) return this.bindings.get(key) ?? this.#plan(key, symbols, this.bindings);
    let block = this.blocks.get(states.id);
    if (!block) {
      checkNew(states);
      const plan = layout(this.manifest, this.target, "webgpu", symbols);
      const usage = GPUBufferUsage.STORAGE | GPUBufferUsage.COPY_SRC | GPUBufferUsage.COPY_DST;
      const buffer = this.#buffer("a session", plan.stateBytes, usage);
      block = { buffer, places: statePlaces(plan, states), bindings: new Map() };
      this.blocks.set(states.id, block);
    }
    let binding = block.bindings.get(key);
    if (!binding) {
      binding = this.#plan(key, symbols, block.bindings);
      checkPlaces(block.places, binding.layout, states);
      binding.block = block;
    }
    return binding;
  }

  /** The bytes of the valid rows of each state. @param {States} states @returns {Promise<Transfers>} */
  async readStates({ id, length }) {
    const block = this.blocks.get(id);
    if (!block) return [];
    const { size } = block.buffer;
    const staging = this.#buffer("a copy of a session", size, GPUBufferUsage.MAP_READ | GPUBufferUsage.COPY_DST);
    const encoder = this.device.createCommandEncoder();
    encoder.copyBufferToBuffer(block.buffer, 0, staging, 0, size);
    this.device.queue.submit([encoder.finish()]);
    await this.#map(staging);
    const bytes = new Uint8Array(staging.getMappedRange().slice(0));
    staging.destroy();
    return [...block.places].map(([name, place]) => [name, bytes.slice(place.offset, place.offset + stateBytes(place, length))]);
  }

  /** Replace the rows of the states of a session. @param {Symbols} symbols @param {States} states @param {Transfers} rows */
  async writeStates(symbols, states, rows) {
    if (this.failure) throw this.failure;
    const bound = this.#bind(symbols, this.blocks.has(states.id) ? states : { ...states, symbols: null });
    const { buffer, places } = /** @type {Block} */ (bound.block);
    const contents = new Map(rows);
    if (rows.length !== places.size || [...places].some(([name, p]) => contents.get(name)?.length !== stateBytes(p, states.length))) {
      throw new InputError("the rows of the states are not those of this model");
    }
    for (const [name, { offset }] of places) this.#write(buffer, offset, /** @type {Uint8Array} */ (contents.get(name)));
  }

  /** Free the states of a session. @param {States} states */
  release({ id }) {
    const block = this.blocks.get(id);
    for (const { uniforms } of block?.bindings.values() ?? []) for (const { buffer } of uniforms.values()) buffer.destroy();
    block?.buffer.destroy();
    this.blocks.delete(id);
  }

  /** Plan the arena for these symbols. @param {string} key @param {Symbols} symbols @param {Map<string, Binding>} bindings @returns {Binding} */
  #plan(key, symbols, bindings) {
    const plan = layout(this.manifest, this.target, "webgpu", symbols);
    const expected = this.program.resources.arena.webgpu ?? plan.arena;
    if (plan.arena !== expected) throw new InternalError(`the arena takes ${plan.arena} bytes, the manifest says ${expected}`);
    /** @type {Binding} */
    const binding = { symbols, layout: plan, uniforms: new Map(), dispatches: new Map() };
    if (bindings.size >= MAX_BINDINGS) {
      const [[oldest, { uniforms }]] = bindings;
      for (const { buffer } of uniforms.values()) buffer.destroy();
      bindings.delete(oldest);
    }
    bindings.set(key, binding);
    return binding;
  }

  /** Allocate a larger arena. During a run the contents of the old one are copied. @param {Binding} binding */
  #grow({ symbols, layout: { arena } }) {
    const old = this.arena;
    const isMidRun = old && boundSymbols(this.program).some((name) => name in symbols);
    const { maxBufferSize } = this.device.limits;
    const size = isMidRun ? Math.max(arena, Math.min(align(old.size * GROWTH, BINDING_MULTIPLE), maxBufferSize)) : arena;
    this.arena = this.#buffer("the arena", size, GPUBufferUsage.STORAGE | GPUBufferUsage.COPY_SRC | GPUBufferUsage.COPY_DST);
    if (isMidRun) {
      const encoder = this.device.createCommandEncoder();
      encoder.copyBufferToBuffer(old, 0, this.arena, 0, old.size);
      this.device.queue.submit([encoder.finish()]);
    }
    old?.destroy();
    const bindings = [this.bindings, ...[...this.blocks.values()].map((block) => block.bindings)].flatMap((map) => [...map.values()]);
    for (const { dispatches } of bindings) dispatches.clear(); // their bind groups refer to the old arena
  }

  /** The dispatch of a step, which is cached. @param {Binding} binding @param {number} index @returns {Dispatch} */
  #dispatch(binding, index) {
    let dispatch = binding.dispatches.get(index);
    if (dispatch) return dispatch;
    const step = this.program.steps[index];
    const kernel = this.kernels.get(step.kernel);
    if (!kernel || !step.workgroups) throw new InternalError(`step ${step.kernel} is no webgpu step`);
    const resources = step.arguments.map((name) => this.#resource(binding, name));
    if (step.symbols?.length) resources.push({ buffer: this.#uniform(binding, step.symbols) });
    const entries = resources.map((resource, position) => ({ binding: position, resource }));
    const group = this.device.createBindGroup({ layout: kernel.layout, entries });
    const [x, y, z] = step.workgroups.map((size) => evaluate(size, binding.symbols));
    dispatch = { pipeline: kernel.pipeline, group, workgroups: [x, y, z] };
    if (this.length && symbolsOf(step.workgroups).has(this.length)) dispatch.sizes = step.workgroups;
    binding.dispatches.set(index, dispatch);
    return dispatch;
  }

  /** A uniform buffer with the values of these symbols, which is cached. @param {Binding} binding @param {string[]} names */
  #uniform({ symbols, uniforms }, names) {
    const uniform = uniforms.get(`${names}`);
    if (uniform) return uniform.buffer;
    const buffer = this.#buffer("symbols", 4 * align(names.length, 4), GPUBufferUsage.UNIFORM | GPUBufferUsage.COPY_DST, true);
    new Int32Array(buffer.getMappedRange()).set(words(names, { ...symbols, ...this.iterations }));
    buffer.unmap();
    uniforms.set(`${names}`, { names, buffer });
    return buffer;
  }

  /** The place of a buffer. @param {Binding} binding @param {string} name @returns {{ buffer: GPUBuffer, offset: number }} */
  #place(binding, name) {
    const { layout: plan, block } = binding;
    const state = plan.states.get(name);
    if (block && state !== undefined) return { buffer: block.buffer, offset: state };
    return (
      this.constants.get(name) ?? {
        buffer: /** @type {GPUBuffer} */ (this.arena),
        offset: /** @type {number} */ (plan.offsets.get(name)),
      }
    );
  }

  /** The place and size of a buffer. @param {Binding} binding @param {string} name @returns {GPUBufferBinding} */
  #resource(binding, name) {
    const size = align(Math.max(binding.layout.sizes.get(name) ?? 0, 4), BINDING_MULTIPLE);
    const limit = this.device.limits.maxStorageBufferBindingSize;
    if (size > limit) throw new AdapterError(`buffer ${name} has ${size} bytes; this adapter binds at most ${limit} at once`);
    return { ...this.#place(binding, name), size };
  }

  /**
   * Submit the commands, and read buffers back in one copy.
   * @param {GPUCommandEncoder} encoder
   * @param {Binding} binding
   * @param {string[]} names
   */
  async #read(encoder, binding, names) {
    let total = 0;
    const spans = names.map((name) => {
      const size = binding.layout.sizes.get(name) ?? 0;
      const start = total;
      total += align(size, CONSTANT_ALIGNMENT);
      return { name, start, size };
    });
    if (!this.staging || this.staging.size < total) {
      this.staging?.destroy();
      this.staging = this.#buffer("results", total, GPUBufferUsage.MAP_READ | GPUBufferUsage.COPY_DST);
    }
    const staging = this.staging;
    for (const { name, start, size } of spans) {
      const { buffer, offset } = this.#place(binding, name);
      if (size) encoder.copyBufferToBuffer(buffer, offset, staging, start, align(size, 4));
    }
    this.device.queue.submit([encoder.finish()]);
    await this.#map(staging, total);
    const mapped = new Uint8Array(staging.getMappedRange(0, align(total, 4)));
    const result = spans.map(({ name, start, size }) => /** @type {[string, Uint8Array]} */ ([name, mapped.slice(start, start + size)]));
    staging.unmap();
    return result;
  }

  /** Map a buffer for reading. @param {GPUBuffer} staging @param {number} [size] */
  async #map(staging, size) {
    try {
      await staging.mapAsync(GPUMapMode.READ, 0, size && align(size, 4));
    } catch (error) {
      await Promise.race([this.device.lost, new Promise((resolve) => setTimeout(resolve, LOSS_MS))]); // `failure` is set first
      throw this.failure ?? new InternalError(`WebGPU: ${/** @type {Error} */ (error).message}`);
    }
    if (this.failure) {
      staging.unmap();
      throw this.failure;
    }
  }
}

/**
 * Divide the shaders into one module per entry point, because browsers translate the whole module again for every pipeline.
 * Each kernel begins with a comment at the start of a line. The text before the first kernel belongs to all modules.
 * @param {string} code
 * @returns {Map<string, string>}
 */
function splitShaders(code) {
  const [common, ...parts] = code.split(/^(?=\/\/ )/m);
  return new Map(parts.map((part) => [/^fn (\w+)\(@builtin/m.exec(part)?.[1] ?? "", common + part]));
}

/** The values of symbols. The symbol of a loop that has not started is 0. @param {string[]} names @param {Symbols} symbols */
function words(names, symbols) {
  return new Int32Array(names.map((name) => symbols[name] ?? 0));
}

/** Add a dispatch to a pass. @param {GPUComputePassEncoder} pass @param {Dispatch} step @param {Symbols} symbols */
function encode(pass, step, symbols) {
  const [x, y, z] = step.sizes?.map((size) => evaluate(size, symbols)) ?? step.workgroups;
  if (!x || !y || !z) return;
  pass.setPipeline(step.pipeline);
  pass.setBindGroup(0, step.group);
  pass.dispatchWorkgroups(x, y, z);
}
