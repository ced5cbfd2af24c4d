// Run a model on the GPU. The twin of webmlc/host/webgpu.py.
//
// All activations are in one buffer, the arena (gpu_memory.js). Consecutive steps are one encoder, one pass and one submission, and
// a stage ends with one readback, through a staging buffer of its own. So the next run may be submitted before this one has
// ended: the GPU executes them in order.

import { AdapterError, codeOf, DeviceLostError, InputError, InternalError, modelDisposed } from "./errors.js";
import { GpuBuffers, writeWords } from "./gpu_buffers.js";
import { GpuMemory } from "./gpu_memory.js";
import { allocateBuffers, certainSteps, fetchShaders, hasUniform, Kernels, launchOf, loadConstants, openDevice } from "./gpu_program.js";
import { checkedInput, checkRoom, GpuValues, wordBytes } from "./gpu_tensor.js";
import { kindOf } from "./kinds.js";
import { CONSTANT_ALIGNMENT } from "./manifest_records.js";
import { align, layout, memoryOf, runs, stateBytes } from "./memory_plan.js";
import { evaluate, lengthOf, tripCount, valuesOf } from "./sizes.js";

/** @import { Chosen, Control, GpuSpan, Loading, Port, Run, States, Step, Symbols, Transfers, Uploads } from "./types.d.ts" */
/** @import { Binding, Plan } from "./gpu_memory.js" */
/** @import { Receivers } from "./gpu_tensor.js" */

const LOSS_MS = 100; // if a readback fails and the device is not lost within this time, there is another reason
const MAX_COMPLETE = 64; // keys that are cached
const SCOPES = /** @type {const} */ (["validation", "out-of-memory"]);

export class WebGpuDevice {
  /** @type {Kernels | null} */
  kernels = null;
  /** @type {Symbols} */
  iterations = {}; // the symbol of each loop that runs
  /** @type {Error | null} */
  failure = null;
  /** @type {Promise<unknown>} Settles when the errors of earlier work are known, on a device of the caller. */
  scopes = Promise.resolve();

  /**
   * Download weights and shaders and compile the pipelines that every run needs, all at the same time.
   * @param {GPUAdapter | GPUDevice} source  a device belongs to the caller
   * @param {Loading} loading
   */
  static async load(source, loading) {
    const { manifest, onPipeline } = loading;
    const { program } = manifest;
    const device = new WebGpuDevice(await openDevice(source, program), "createBuffer" in source, manifest);
    const loadKernels = async () => {
      const text = await fetchShaders(loading);
      if (!text) return;
      const kernels = new Kernels(device.device, program, text);
      await device.#guarded(() => kernels.compile(certainSteps(program), {}, onPipeline));
      device.kernels = kernels;
    };
    const loadWeights = async () => {
      device.memory.constants = await device.#guarded(() => loadConstants(device.buffers, loading));
    };
    try {
      await Promise.all([loadKernels(), loadWeights()]);
      device.#guarded(() => device.#derive());
      await device.scopes;
      if (device.failure) throw device.failure;
    } catch (error) {
      const { failure } = device;
      device.dispose(); // unmaps the buffers, which ends the download of weights
      throw codeOf(failure) === "device-lost" ? failure : error;
    }
    return device;
  }

  /** Compute the derived buffers, and free the constants that nothing else reads. */
  #derive() {
    const loadRuns = runs(this.program).filter(({ once, device }) => once && device === "webgpu");
    if (!loadRuns.length) return;
    const { constants } = this.memory;
    const { derived, temporary } = memoryOf(this.program, "webgpu");
    for (const [name, place] of allocateBuffers(this.buffers, this.program, derived, false)) constants.set(name, place);
    const plan = { capacity: {}, layout: layout(this.memory.manifest, "webgpu", {}), uniforms: new Map(), dispatches: new Map() };
    const binding = { symbols: {}, values: valuesOf(this.program, {}), sizes: plan.layout.sizes, plan };
    const encoder = this.device.createCommandEncoder();
    const pass = encoder.beginComputePass();
    for (const { first, last } of loadRuns) for (let i = first; i < last; i++) this.#encode(pass, binding, i);
    pass.end();
    this.device.queue.submit([encoder.finish()]);
    for (const { name } of temporary.map((number) => this.program.buffers[number])) {
      this.buffers.destroy(constants.get(name)?.buffer);
      constants.delete(name);
    }
  }

  /** @param {GPUDevice} device @param {boolean} isShared  true if it belongs to the caller @param {Chosen} manifest */
  constructor(device, isShared, manifest) {
    this.device = device;
    this.isShared = isShared;
    this.program = manifest.program;
    /** If runs compile what loading has not. */
    this.isIncremental = this.program.steps.some((step) => step.control?.kind === "if" || launchOf(step)?.sections.length);
    /** @type {Set<string>} The first steps and the values of symbols with which nothing is left to compile. */
    this.complete = new Set();
    this.length = lengthOf(manifest); // the symbol of the length of sessions, or ""
    this.buffers = new GpuBuffers(device);
    this.memory = new GpuMemory(this.buffers, manifest);
    device.lost.then(({ reason, message }) => {
      const remedy = isShared ? "load the model with another device" : "await model.restore(), or load it again";
      this.failure ??= new DeviceLostError(`the GPU device was lost (${reason}: ${message}); ${remedy}`);
    });
    if (!isShared) device.onuncapturederror = ({ error }) => this.#fail(error);
  }

  /** @param {GPUError} error */
  #fail(error) {
    const type = kindOf(error) === "GPUOutOfMemoryError" ? AdapterError : InternalError;
    this.failure ??= new type(`WebGPU: ${error.message}`);
  }

  /**
   * Do work without a pause. On a device of the caller its errors are caught here, not by the caller's handler.
   * @template T
   * @param {() => T} work
   * @returns {T}
   */
  #guarded(work) {
    if (!this.isShared) return work();
    const { device } = this;
    for (const scope of SCOPES) device.pushErrorScope(scope);
    try {
      return work();
    } finally {
      const errors = SCOPES.map(() => device.popErrorScope().then((error) => error && this.#fail(error), () => {}));
      this.scopes = Promise.all([this.scopes, ...errors]);
    }
  }

  /**
   * Run a segment. Without control flow, it is submitted before this returns.
   * @param {Run} segment
   * @param {Symbols} symbols
   * @param {Uploads} uploads
   * @param {States} [states]
   * @param {Receivers} [receivers]  of downloads that stay on the GPU
   * @returns {Promise<Uploads>}
   */
  async execute({ first, last, downloads }, symbols, uploads, states, receivers) {
    const { steps } = this.program;
    const values = this.#valuesOf(symbols, states);
    this.iterations = {};
    let index = first;
    /** @type {Binding | undefined} */
    let binding;
    const submit = () => {
      const encoder = this.device.createCommandEncoder();
      binding ??= this.#start(encoder, symbols, uploads, states);
      const pass = encoder.beginComputePass();
      for (; index < last && !steps[index].control; index++) this.#encode(pass, binding, index);
      pass.end();
      return index < last ? this.#read(encoder, binding, steps[index].arguments) : this.#read(encoder, binding, downloads, receivers);
    };
    for (;;) {
      for (let missing; (missing = this.#missing(index, last, values)).length; ) {
        await this.#guarded(() => this.kernels?.compile(missing, values));
      }
      const results = await this.#guarded(submit);
      if (index === last) return results;
      const { control, arguments: names } = steps[index];
      const condition = !names.length || /** @type {Uint8Array} */ (results[0][1])[0] !== 0; // earlier steps computed it
      index = this.#decide(/** @type {Control} */ (control), index, condition, /** @type {Binding} */ (binding));
    }
  }

  /**
   * The steps before the next control step that need pipelines, or sections of them, that no run has needed before.
   * @param {number} first
   * @param {number} last
   * @param {Symbols} values
   * @returns {Step[]}
   */
  #missing(first, last, values) {
    if (!this.isIncremental || !this.kernels) return [];
    const key = JSON.stringify([first, values]);
    if (this.complete.has(key)) return [];
    const { steps } = this.program;
    const end = steps.findIndex(({ control }, index) => index >= first && (control || index === last));
    const missing = this.kernels.missing(steps.slice(first, end < 0 ? last : end), values);
    if (this.complete.size >= MAX_COMPLETE) this.complete.clear();
    if (!missing.length) this.complete.add(key);
    return missing;
  }

  /** The values of symbols and of named sizes in a run. @param {Symbols} symbols @param {States} [states] */
  #valuesOf(symbols, states) {
    return valuesOf(this.program, states && this.length ? { ...symbols, [this.length]: states.length } : symbols);
  }

  /**
   * The step that follows a control step. Updates the symbols of loops.
   * @param {Control} control
   * @param {number} index
   * @param {boolean} condition
   * @param {Binding} binding
   */
  #decide(control, index, condition, binding) {
    const { kind, target, symbol } = control;
    const { iterations } = this;
    if (kind === "else") return target;
    if (kind === "if") return condition ? index + 1 : target;
    iterations[symbol] = kind === "loop" ? 0 : iterations[symbol] + 1;
    const follows = condition && iterations[symbol] < tripCount(control, binding.values);
    if (follows) this.#writeSymbols(binding);
    return follows === (kind === "next") ? target : index + 1;
  }

  /**
   * Measure the milliseconds of each step, by timestamps.
   * @param {Run} segment
   * @param {Symbols} symbols
   * @param {Uploads} uploads
   * @param {States} [states]
   */
  async profile({ first, last }, symbols, uploads, states) {
    const { device, buffers } = this;
    if (!device.features.has("timestamp-query")) {
      throw new AdapterError("this GPU adapter offers no timestamp-query, which profiling needs");
    }
    const count = 2 * (last - first);
    const steps = this.program.steps.slice(first, last).filter(({ control }) => !control);
    const values = this.#valuesOf(symbols, states);
    while (this.kernels?.missing(steps, values).length) await this.#guarded(() => this.kernels?.compile(steps, values));
    const querySet = device.createQuerySet({ type: "timestamp", count });
    const resolved = buffers.create("timestamps", 8 * count, GPUBufferUsage.QUERY_RESOLVE | GPUBufferUsage.COPY_SRC);
    const reading = this.#guarded(() => {
      const encoder = device.createCommandEncoder();
      const binding = this.#start(encoder, symbols, uploads, states);
      for (let i = first, query = 0; i < last; i++, query += 2) {
        const timestampWrites = { querySet, beginningOfPassWriteIndex: query, endOfPassWriteIndex: query + 1 };
        const pass = encoder.beginComputePass({ timestampWrites });
        if (!this.program.steps[i].control) this.#encode(pass, binding, i);
        pass.end();
      }
      encoder.resolveQuerySet(querySet, 0, count, resolved, 0);
      return this.#submit(encoder, [{ buffer: resolved, offset: 0, size: 8 * count }]);
    });
    const [bytes] = await reading;
    const ticks = new BigUint64Array(/** @type {ArrayBuffer} */ (bytes.buffer));
    querySet.destroy();
    buffers.destroy(resolved);
    return Array.from({ length: count / 2 }, (_, i) => Number(ticks[2 * i + 1] - ticks[2 * i]) / 1e6);
  }

  dispose() {
    this.failure ??= modelDisposed();
    this.buffers.destroyAll();
    if (!this.isShared) this.device.destroy();
  }

  /**
   * Bind the symbols, and write the uploads.
   * @param {GPUCommandEncoder} encoder
   * @param {Symbols} symbols
   * @param {Uploads} uploads
   * @param {States} [states]
   */
  #start(encoder, symbols, uploads, states) {
    if (this.failure) throw this.failure;
    const binding = this.memory.bind(symbols, states);
    for (const [name, data] of uploads) {
      const { buffer, offset } = this.memory.place(binding.plan, name);
      if (ArrayBuffer.isView(data)) writeWords(this.device, buffer, offset, data);
      else encoder.copyBufferToBuffer(checkedInput(name, data), 0, buffer, offset, align(data.bytes, 4));
    }
    binding.values = this.#valuesOf(symbols, states);
    this.#writeSymbols(binding);
    return binding;
  }

  /** Write the values of symbols to the uniforms of a plan that hold others. @param {Binding} binding */
  #writeSymbols({ values, plan }) {
    for (const uniform of plan.uniforms.values()) {
      const words = this.#words(uniform.names, values);
      if (words.every((word, i) => word === uniform.values[i])) continue;
      this.device.queue.writeBuffer(uniform.buffer, 0, words);
      uniform.values = words;
    }
  }

  /** The values of symbols. The symbol of a loop that has not started is 0. @param {string[]} names @param {Symbols} values */
  #words(names, values) {
    return new Int32Array(names.map((name) => this.iterations[name] ?? values[name] ?? 0));
  }

  /** The bytes of the valid rows of each state. @param {States} states @returns {Promise<Transfers>} */
  async readStates({ id, length }) {
    const block = this.memory.blocks.get(id);
    if (!block) return [];
    const bytes = await this.fetch({ buffer: block.buffer, bytes: block.buffer.size });
    return [...block.places].map(([name, place]) => [name, bytes.slice(place.offset, place.offset + stateBytes(place, length))]);
  }

  /** Replace the rows of the states of a session. @param {Symbols} symbols @param {States} states @param {Transfers} rows */
  async writeStates(symbols, states, rows) {
    if (this.failure) throw this.failure;
    this.#guarded(() => {
      const { blocks } = this.memory;
      const { block } = this.memory.bind(symbols, blocks.has(states.id) ? states : { ...states, symbols: null }).plan;
      const { buffer, places } = /** @type {import("./gpu_memory.js").Block} */ (block);
      const contents = new Map(rows);
      if (rows.length !== places.size || [...places].some(([name, p]) => contents.get(name)?.length !== stateBytes(p, states.length))) {
        throw new InputError("the rows of the states are not those of this model");
      }
      for (const [name, { offset }] of places) writeWords(this.device, buffer, offset, /** @type {Uint8Array} */ (contents.get(name)));
    });
  }

  /** Free the states of a session. @param {States} states */
  release(states) {
    this.memory.release(states);
  }

  /**
   * Add the dispatch of a step to a pass.
   * @param {GPUComputePassEncoder} pass
   * @param {Binding} binding
   * @param {number} index
   */
  #encode(pass, { plan, values }, index) {
    const { kernel, group, sizes } = plan.dispatches.get(index) ?? this.#dispatch(plan, values, index);
    const [x, y, z] = sizes.map((size) => evaluate(size, values));
    if (!x || !y || !z) return;
    pass.setPipeline(kernel.pipeline);
    pass.setBindGroup(0, group);
    pass.dispatchWorkgroups(x, y, z);
  }

  /** Build the dispatch of a step, which the plan caches. @param {Plan} plan @param {Symbols} values @param {number} index */
  #dispatch(plan, values, index) {
    const step = this.program.steps[index];
    const kernel = this.kernels?.of(step);
    if (!kernel) throw new InternalError(`step ${step.kernel} is no webgpu step`);
    const resources = step.arguments.map((name) => this.memory.resource(plan, name));
    if (hasUniform(step)) resources.push({ buffer: this.#uniform(plan, values, step) });
    const entries = resources.map((resource, position) => ({ binding: position, resource }));
    const group = this.device.createBindGroup({ layout: kernel.layout, entries });
    const dispatch = { kernel, group, sizes: launchOf(step).workgroups };
    plan.dispatches.set(index, dispatch);
    return dispatch;
  }

  /** A uniform buffer with the symbols and integers of a step, which is cached. @param {Plan} plan @param {Symbols} values @param {Step} step */
  #uniform({ uniforms }, values, step) {
    const { symbols: names } = step;
    const { integers } = launchOf(step);
    const key = [names, integers].join(";");
    const uniform = uniforms.get(key);
    if (uniform) return uniform.buffer;
    const bytes = 4 * align(names.length + integers.length, 4);
    const buffer = this.buffers.create("symbols", bytes, GPUBufferUsage.UNIFORM | GPUBufferUsage.COPY_DST, true);
    const words = this.#words(names, values);
    new Int32Array(buffer.getMappedRange()).set([...words, ...integers]);
    buffer.unmap();
    uniforms.set(key, { names, buffer, values: words });
    return buffer;
  }

  /**
   * Submit the commands, and read buffers back in one copy. Buffers with a receiver stay on the GPU.
   * @param {GPUCommandEncoder} encoder
   * @param {Binding} binding
   * @param {string[]} names
   * @param {Receivers} [receivers]
   * @returns {Promise<Uploads>}
   */
  async #read(encoder, { plan, sizes }, names, receivers) {
    /** @type {Uploads} */
    const spans = [];
    const places = names.map((name) => ({ name, ...this.memory.place(plan, name), size: sizes.get(name) ?? 0 }));
    for (const { name, buffer, offset, size } of places) {
      const receiver = receivers?.get(name);
      if (receiver === undefined) continue;
      const span = this.#receive(name, receiver, size);
      if (size) encoder.copyBufferToBuffer(buffer, offset, span.buffer, 0, align(size, 4));
      spans.push([name, span]);
    }
    const downloads = places.filter(({ name }) => !receivers?.has(name));
    const contents = await this.#submit(encoder, downloads);
    return [...spans, .../** @type {Transfers} */ (downloads.map(({ name }, i) => [name, contents[i]]))];
  }

  /** The place of a result that stays on the GPU. @param {string} name @param {GPUBuffer | null} receiver @param {number} bytes @returns {GpuSpan} */
  #receive(name, receiver, bytes) {
    if (receiver) checkRoom(name, receiver, bytes);
    return { buffer: receiver ?? this.buffers.handOver(this.buffers.createStorage(name, wordBytes(bytes))), bytes };
  }

  /**
   * Submit the commands, and return the bytes of these places. Resolves at once if there are none.
   * @param {GPUCommandEncoder} encoder
   * @param {{ buffer: GPUBuffer, offset: number, size: number }[]} places
   */
  async #submit(encoder, places) {
    let total = 0;
    const starts = places.map(({ size }) => (total += align(size, CONSTANT_ALIGNMENT)) - align(size, CONSTANT_ALIGNMENT));
    const staging = places.length ? this.buffers.takeStaging(total) : null;
    if (staging) {
      for (const [i, { buffer, offset, size }] of places.entries()) {
        if (size) encoder.copyBufferToBuffer(buffer, offset, staging, starts[i], align(size, 4));
      }
    }
    this.device.queue.submit([encoder.finish()]);
    if (!staging) return [];
    await this.#map(staging, align(total, 4));
    const mapped = new Uint8Array(staging.getMappedRange(0, align(total, 4)));
    const contents = places.map(({ size }, i) => mapped.slice(starts[i], starts[i] + size));
    this.buffers.returnStaging(staging);
    return contents;
  }

  /** Map a buffer for reading. @param {GPUBuffer} staging @param {number} size */
  async #map(staging, size) {
    try {
      await staging.mapAsync(GPUMapMode.READ, 0, size);
    } catch (error) {
      await Promise.race([this.device.lost, new Promise((resolve) => setTimeout(resolve, LOSS_MS))]); // `failure` is set first
      throw this.failure ?? new InternalError(`WebGPU: ${/** @type {Error} */ (error).message}`);
    }
    await this.scopes;
    if (this.failure) {
      this.buffers.returnStaging(staging);
      throw this.failure;
    }
  }

  /** The bytes of a value on the GPU. @param {GpuSpan} span @returns {Promise<Uint8Array>} */
  async fetch({ buffer, bytes }) {
    if (this.failure) throw this.failure;
    const place = { buffer, offset: 0, size: bytes };
    const [contents] = await this.#guarded(() => this.#submit(this.device.createCommandEncoder(), [place]));
    return contents;
  }

  /**
   * The values of a run that are on the GPU.
   * @param {Port[]} ports
   * @param {import("./webmlc.js").RunOptions["results"]} results
   * @param {Set<Uint8Array | GpuSpan>} inputs  values that belong to the caller
   */
  valuesOf(ports, results, inputs) {
    return new GpuValues(this, ports, results, inputs);
  }

  /**
   * Copy a value to a buffer of its own, or to the caller's.
   * @param {string} name
   * @param {Uint8Array | GpuSpan} value
   * @param {GPUBuffer | null} receiver
   */
  store(name, value, receiver) {
    const span = this.#receive(name, receiver, ArrayBuffer.isView(value) ? value.length : value.bytes);
    this.#guarded(() => {
      if (ArrayBuffer.isView(value)) return writeWords(this.device, span.buffer, 0, value);
      const encoder = this.device.createCommandEncoder();
      encoder.copyBufferToBuffer(value.buffer, 0, span.buffer, 0, align(value.bytes, 4));
      this.device.queue.submit([encoder.finish()]);
    });
    return span;
  }
}
