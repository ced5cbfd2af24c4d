// Run the candidates of a trial on the GPU. The twin of webmlc/tune/engines/webgpu.py.

import { elementBytes, fill, POISON } from "./compare.js";

/** @typedef {import("./types.d.ts").Runner} Runner */
/** @typedef {import("./types.d.ts").Trial} Trial */

const BINDING_MULTIPLE = 16; // kernels may read a whole vec4<f32>
const LIMITS = /** @type {const} */ (["maxBufferSize", "maxStorageBufferBindingSize"]);

/** @param {number} size @param {number} multiple */
const align = (size, multiple) => Math.ceil(size / multiple) * multiple;

/** @implements {Runner} */
export class GpuRunner {
  /** @param {Trial} trial */
  static async open(trial) {
    const adapter = await navigator.gpu?.requestAdapter({ powerPreference: "high-performance" });
    if (!adapter) throw new Error("there is no GPU adapter here");
    const requiredLimits = Object.fromEntries(LIMITS.map((name) => [name, adapter.limits[name]]));
    return new GpuRunner(trial, await adapter.requestDevice({ requiredLimits }));
  }

  /** @type {Map<number, GPUComputePipeline>} */
  pipelines = new Map();

  /** @param {Trial} trial @param {GPUDevice} device */
  constructor(trial, device) {
    this.trial = trial;
    this.device = device;
    const usage = GPUBufferUsage.STORAGE | GPUBufferUsage.COPY_SRC | GPUBufferUsage.COPY_DST;
    const size = align(trial.total_bytes, 256);
    // One buffer cannot be bound for reading and for writing, so constants have another.
    this.memories = [0, 1].map(() => device.createBuffer({ size, usage }));
    for (const [seed, buffer] of trial.buffers.entries()) {
      if (!buffer.pattern) continue;
      const bytes = fill(buffer, elementBytes(buffer.dtype), seed);
      for (const memory of this.memories) this.#write(memory, buffer.offset, bytes);
    }
    this.uniform = null;
    if (trial.uniform.length) {
      this.uniform = device.createBuffer({ size: 4 * trial.uniform.length, usage: GPUBufferUsage.UNIFORM | GPUBufferUsage.COPY_DST });
      device.queue.writeBuffer(this.uniform, 0, new Int32Array(trial.uniform));
    }
    /** @type {GPUBufferBindingType[]} */
    const types = [...trial.read_only.map((isRead) => /** @type {GPUBufferBindingType} */ (isRead ? "read-only-storage" : "storage"))];
    if (this.uniform) types.push("uniform");
    const entries = types.map((type, binding) => ({ binding, visibility: GPUShaderStage.COMPUTE, buffer: { type } }));
    const layout = device.createBindGroupLayout({ entries });
    this.layout = device.createPipelineLayout({ bindGroupLayouts: [layout] });
    this.groups = trial.calls.map((call) => device.createBindGroup({ layout, entries: this.#bindings(call) }));
  }

  /** @param {number} candidate */
  async outputs(candidate) {
    const [written] = this.memories;
    const buffers = this.trial.buffers.filter(({ pattern }) => !pattern);
    for (const { offset, size } of buffers) this.#write(written, offset, new Uint8Array(size).fill(POISON));
    await this.#prepare(candidate);
    await this.#submit(candidate, 1);
    const results = [];
    for (const { offset, size } of buffers) results.push(await this.#read(written, offset, size));
    return results;
  }

  /** @param {number} candidate @param {number} repeats */
  async sample(candidate, repeats) {
    const begin = performance.now();
    await this.#submit(candidate, repeats);
    return performance.now() - begin;
  }

  stop() {
    this.device.destroy();
  }

  /** @param {number[]} call @returns {GPUBindGroupEntry[]} */
  #bindings(call) {
    const entries = call.map((number, binding) => {
      const { offset, size } = this.trial.buffers[number];
      const buffer = this.memories[Number(this.trial.read_only[binding])];
      return { binding, resource: { buffer, offset, size: align(Math.max(size, 4), BINDING_MULTIPLE) } };
    });
    return this.uniform ? [...entries, { binding: call.length, resource: { buffer: this.uniform, offset: 0, size: this.uniform.size } }] : entries;
  }

  /** Compile a candidate's shader. @param {number} candidate */
  async #prepare(candidate) {
    const { shaders, entries } = this.trial;
    const module = this.device.createShaderModule({ code: shaders[candidate] });
    const compute = { module, entryPoint: entries[candidate] };
    this.pipelines.set(candidate, await this.device.createComputePipelineAsync({ layout: this.layout, compute }));
  }

  /** Run a candidate in one pass, and wait until it is done. @param {number} candidate @param {number} repeats */
  async #submit(candidate, repeats) {
    const { device } = this;
    device.pushErrorScope("validation");
    const encoder = device.createCommandEncoder();
    const pass = encoder.beginComputePass();
    pass.setPipeline(/** @type {GPUComputePipeline} */ (this.pipelines.get(candidate)));
    for (let i = 0; i < repeats; i++) {
      for (const group of this.groups) {
        pass.setBindGroup(0, group);
        pass.dispatchWorkgroups(...this.trial.workgroups[candidate]);
      }
    }
    pass.end();
    device.queue.submit([encoder.finish()]);
    const [error] = await Promise.all([device.popErrorScope(), device.queue.onSubmittedWorkDone()]);
    if (error) throw error;
  }

  /** @param {GPUBuffer} memory @param {number} offset @param {Uint8Array} bytes */
  #write(memory, offset, bytes) {
    const padded = new Uint8Array(align(bytes.length, 4));
    padded.set(bytes);
    if (padded.length) this.device.queue.writeBuffer(memory, offset, padded);
  }

  /** @param {GPUBuffer} memory @param {number} offset @param {number} size */
  async #read(memory, offset, size) {
    const padded = align(Math.max(size, 4), 4);
    const staging = this.device.createBuffer({ size: padded, usage: GPUBufferUsage.MAP_READ | GPUBufferUsage.COPY_DST });
    const encoder = this.device.createCommandEncoder();
    encoder.copyBufferToBuffer(memory, offset, staging, 0, padded);
    this.device.queue.submit([encoder.finish()]);
    await staging.mapAsync(GPUMapMode.READ);
    const bytes = new Uint8Array(staging.getMappedRange()).slice(0, size);
    staging.destroy();
    return bytes;
  }
}
