// Run the candidates of a trial on the GPU. The twin of webmlc/tune/measure/webgpu.py.

import { fill, isOutput, POISON } from "./compare.js";

/** @import { Runner, Trial, TrialBuffer } from "./types.d.ts" */
/** A GPU buffer that holds a part of the trial's memory. `start` is the offset of its first byte. */
/** @typedef {{ buffer: GPUBuffer, start: number }} Memory */

const BINDING_MULTIPLE = 16; // bindings have a multiple of these bytes, because kernels may read whole vec4<f32>
const OFFSET_MULTIPLE = 256; // the default of minStorageBufferOffsetAlignment
const LIMITS = /** @type {const} */ (["maxStorageBufferBindingSize", "maxBufferSize"]);

const OVERHEAD_PROBES = 5; // empty samples that are measured; the fastest counts

const FEATURES = /** @type {const} */ (["subgroups"]); // that shaders of a search may enable

/** @param {number} size @param {number} multiple */
const align = (size, multiple) => Math.ceil(size / multiple) * multiple;

/** The bytes of a buffer's binding. @param {TrialBuffer} buffer */
const bindingBytes = ({ size }) => align(Math.max(size, 1), BINDING_MULTIPLE);

/** @implements {Runner} */
export class GpuRunner {
  /** Rejects if the adapter's limits are too low for the trial. @param {Trial} trial */
  static async open(trial) {
    const adapter = await navigator.gpu?.requestAdapter({ powerPreference: "high-performance" });
    if (!adapter) throw new Error("there is no GPU adapter");
    const spans = [writableSpan(trial), readOnlySpan(trial)];
    const needs = [Math.max(...trial.buffers.map(bindingBytes)), Math.max(...spans.map(({ start, end }) => end - start))];
    for (const [i, name] of LIMITS.entries()) {
      if (needs[i] > adapter.limits[name]) {
        throw new Error(`the kernel needs a ${name} of ${needs[i]} bytes; this GPU adapter offers ${adapter.limits[name]}`);
      }
    }
    const requiredLimits = Object.fromEntries(LIMITS.map((name, i) => [name, needs[i]])); // the defaults, where these are larger
    const requiredFeatures = FEATURES.filter((name) => trial.shaders.some((shader) => shader.includes(`enable ${name};`)));
    const missing = requiredFeatures.find((name) => !adapter.features.has(name));
    if (missing) throw new Error(`the kernel needs ${missing}, which this GPU adapter does not offer`);
    const device = await adapter.requestDevice({ requiredLimits, requiredFeatures });
    device.pushErrorScope("out-of-memory");
    const runner = new GpuRunner(trial, device);
    const error = await device.popErrorScope();
    if (error) throw new Error(`the GPU has no memory for the kernel (${error.message})`);
    return runner;
  }

  isLost = false;
  /** @type {Map<number, GPUComputePipeline>} */
  pipelines = new Map();
  /** @type {GPUBuffer | null} */
  uniform = null;

  /** @param {Trial} trial @param {GPUDevice} device */
  constructor(trial, device) {
    this.trial = trial;
    this.device = device;
    /** @type {Promise<never>} Rejects if the device is lost, in which case promises of its queue may stay pending. */
    this.loss = device.lost.then(({ message }) => {
      this.isLost = true;
      throw new Error(`the GPU device was lost (${message})`);
    });
    this.loss.catch(() => {}); // `stop` loses the device, too
    this.writable = this.#allocate(writableSpan(trial));
    this.readOnly = this.#allocate(readOnlySpan(trial));
    const constants = readOnlyNumbers(trial);
    for (const [number, buffer] of trial.buffers.entries()) {
      if (!isOutput(buffer)) this.#write(constants.has(number) ? this.readOnly : this.writable, buffer, fill(buffer, number));
    }
    if (trial.uniform.length) {
      const words = new Int32Array(align(trial.uniform.length, 4));
      words.set(trial.uniform);
      this.uniform = device.createBuffer({ size: words.byteLength, usage: GPUBufferUsage.UNIFORM | GPUBufferUsage.COPY_DST });
      device.queue.writeBuffer(this.uniform, 0, words);
    }
    /** @type {GPUBufferBindingType[]} */
    const types = trial.read_only.map((isReadOnly) => (isReadOnly ? "read-only-storage" : "storage"));
    if (this.uniform) types.push("uniform");
    const entries = types.map((type, binding) => ({ binding, visibility: GPUShaderStage.COMPUTE, buffer: { type } }));
    const layout = device.createBindGroupLayout({ entries });
    this.layout = device.createPipelineLayout({ bindGroupLayouts: [layout] });
    this.groups = trial.calls.map((call) => device.createBindGroup({ layout, entries: this.#bindings(call) }));
  }

  /** @param {number} candidate */
  async outputs(candidate) {
    const outputs = this.trial.buffers.filter(isOutput);
    for (const buffer of outputs) this.#write(this.writable, buffer, new Uint8Array(buffer.size).fill(POISON));
    this.pipelines.set(candidate, await this.#compile(candidate));
    await this.sample(candidate, 1);
    const results = [];
    for (const buffer of outputs) results.push(await this.#read(buffer));
    return results;
  }

  /** @param {number} candidate @param {number} repeats */
  async sample(candidate, repeats) {
    const { device } = this;
    const pipeline = /** @type {GPUComputePipeline} */ (this.pipelines.get(candidate));
    const begin = performance.now();
    device.pushErrorScope("validation");
    const encoder = device.createCommandEncoder();
    const pass = encoder.beginComputePass();
    pass.setPipeline(pipeline);
    for (let i = 0; i < repeats; i++) {
      for (const group of this.groups) {
        pass.setBindGroup(0, group);
        pass.dispatchWorkgroups(...this.trial.workgroups[candidate]);
      }
    }
    pass.end();
    device.queue.submit([encoder.finish()]);
    const scope = device.popErrorScope(); // before the wait, so that it costs no time
    await this.#orLoss(device.queue.onSubmittedWorkDone());
    const milliseconds = performance.now() - begin;
    const error = await this.#orLoss(scope);
    if (error) throw error;
    return milliseconds;
  }

  async overhead() {
    let least = Infinity;
    for (let i = 0; i < OVERHEAD_PROBES; i++) least = Math.min(least, await this.sample(0, 0));
    return least;
  }

  stop() {
    this.device.destroy();
  }

  /** @param {{ start: number, end: number }} span @returns {Memory} */
  #allocate({ start, end }) {
    const usage = GPUBufferUsage.STORAGE | GPUBufferUsage.COPY_SRC | GPUBufferUsage.COPY_DST;
    return { buffer: this.device.createBuffer({ size: end - start, usage }), start };
  }

  /** @param {number[]} call @returns {GPUBindGroupEntry[]} */
  #bindings(call) {
    const resources = call.map((number, binding) => {
      const { buffer, start } = this.trial.read_only[binding] ? this.readOnly : this.writable;
      const place = this.trial.buffers[number];
      return { buffer, offset: place.offset - start, size: bindingBytes(place) };
    });
    if (this.uniform) resources.push({ buffer: this.uniform, offset: 0, size: this.uniform.size });
    return resources.map((resource, binding) => ({ binding, resource }));
  }

  /** Compile a candidate's shader. The error is the compiler's first. @param {number} candidate */
  async #compile(candidate) {
    this.device.pushErrorScope("validation"); // takes the module's error, which the pipeline repeats
    const module = this.device.createShaderModule({ code: this.trial.shaders[candidate] });
    const scope = this.device.popErrorScope();
    try {
      const compute = { module, entryPoint: this.trial.entries[candidate] };
      return await this.#orLoss(this.device.createComputePipelineAsync({ layout: this.layout, compute }));
    } catch (error) {
      const { messages } = await this.#orLoss(module.getCompilationInfo());
      throw messages.find(({ type }) => type === "error") ?? error;
    } finally {
      await this.#orLoss(scope);
    }
  }

  /** @param {Memory} memory @param {TrialBuffer} place @param {Uint8Array} bytes */
  #write({ buffer, start }, { offset }, bytes) {
    const padded = new Uint8Array(align(bytes.length, 4));
    padded.set(bytes);
    this.device.queue.writeBuffer(buffer, offset - start, padded);
  }

  /** The bytes of an output. @param {TrialBuffer} place */
  async #read({ offset, size }) {
    const { buffer, start } = this.writable;
    const padded = align(Math.max(size, 1), 4);
    const staging = this.device.createBuffer({ size: padded, usage: GPUBufferUsage.MAP_READ | GPUBufferUsage.COPY_DST });
    const encoder = this.device.createCommandEncoder();
    encoder.copyBufferToBuffer(buffer, offset - start, staging, 0, padded);
    this.device.queue.submit([encoder.finish()]);
    await this.#orLoss(staging.mapAsync(GPUMapMode.READ));
    const bytes = new Uint8Array(staging.getMappedRange().slice(0, size));
    staging.destroy();
    return bytes;
  }

  /** @template T @param {Promise<T>} promise @returns {Promise<T>} */
  #orLoss(promise) {
    return Promise.race([promise, this.loss]);
  }
}

/** The numbers of the buffers that are bound read-only. @param {Trial} trial */
function readOnlyNumbers({ calls, read_only }) {
  return new Set(calls.flatMap((call) => call.filter((_, binding) => read_only[binding])));
}

/** The bytes of the trial's memory from the first to the last buffer that is bound read-only. @param {Trial} trial */
function readOnlySpan(trial) {
  const numbers = readOnlyNumbers(trial);
  return span(trial.buffers.filter((_, number) => numbers.has(number)));
}

/** The bytes from the first to the last other buffer. One buffer cannot be bound for both reading and writing. @param {Trial} trial */
function writableSpan(trial) {
  const numbers = readOnlyNumbers(trial);
  return span(trial.buffers.filter((_, number) => !numbers.has(number)));
}

/** @param {TrialBuffer[]} buffers */
function span(buffers) {
  const start = Math.min(...buffers.map(({ offset }) => offset));
  const end = Math.max(...buffers.map((buffer) => buffer.offset + bindingBytes(buffer)));
  if (!buffers.length) return { start: 0, end: BINDING_MULTIPLE };
  return { start: Math.floor(start / OFFSET_MULTIPLE) * OFFSET_MULTIPLE, end };
}
