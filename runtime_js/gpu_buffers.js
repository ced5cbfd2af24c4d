// The buffers of a model on a GPU device, and the ring of buffers through which results come back.
//
// The device may belong to the caller, so that every buffer is destroyed by itself.

import { AdapterError } from "./errors.js";
import { align } from "./memory_plan.js";

export const BINDING_MULTIPLE = 16; // bindings have a multiple of these bytes, because kernels may read whole vec4<f32>

export class GpuBuffers {
  /** @type {Set<GPUBuffer>} The buffers that are not destroyed. */
  #all = new Set();
  /** @type {GPUBuffer[]} The staging buffers that no run uses. A run in flight has one of its own. */
  #idle = [];

  /** @param {GPUDevice} device */
  constructor(device) {
    this.device = device;
  }

  /**
   * Create a buffer. Throws AdapterError if it is too large.
   * @param {string} label
   * @param {number} bytes
   * @param {number} usage
   * @param {boolean} [mappedAtCreation]
   */
  create(label, bytes, usage, mappedAtCreation = false) {
    const limit = this.device.limits.maxBufferSize;
    const size = Math.max(align(bytes, BINDING_MULTIPLE), BINDING_MULTIPLE);
    if (size > limit) throw new AdapterError(`the model needs a GPU buffer for ${label} of ${size} bytes; maxBufferSize is ${limit}`);
    try {
      const buffer = this.device.createBuffer({ label, size, usage, mappedAtCreation });
      this.#all.add(buffer);
      return buffer;
    } catch (error) {
      throw new AdapterError(`the GPU has no memory for ${label}: ${size} bytes (${error})`);
    }
  }

  /** Create a buffer of data that kernels and copies read and write. @param {string} label @param {number} bytes */
  createStorage(label, bytes) {
    return this.create(label, bytes, GPUBufferUsage.STORAGE | GPUBufferUsage.COPY_SRC | GPUBufferUsage.COPY_DST);
  }

  /** @param {GPUBuffer | null | undefined} buffer */
  destroy(buffer) {
    if (buffer) this.#all.delete(buffer);
    buffer?.destroy();
  }

  destroyAll() {
    for (const buffer of this.#all) buffer.destroy();
    this.#all.clear();
    this.#idle = [];
  }

  /** Let a buffer outlive the model: its owner is the caller. @param {GPUBuffer} buffer */
  handOver(buffer) {
    this.#all.delete(buffer);
    return buffer;
  }

  /** Take a buffer through which the CPU can read so many bytes. @param {number} bytes */
  takeStaging(bytes) {
    const index = this.#idle.findIndex(({ size }) => size >= bytes);
    if (index >= 0) return this.#idle.splice(index, 1)[0];
    this.destroy(this.#idle.pop()); // it is too small
    return this.create("results", bytes, GPUBufferUsage.MAP_READ | GPUBufferUsage.COPY_DST);
  }

  /** Give a staging buffer back, unmapped. @param {GPUBuffer} buffer */
  returnStaging(buffer) {
    buffer.unmap();
    this.#idle.push(buffer);
  }
}

/**
 * Write bytes to a buffer, in whole words. WebGPU takes no bytes of a buffer that can be resized.
 * @param {GPUDevice} device
 * @param {GPUBuffer} buffer
 * @param {number} offset
 * @param {Uint8Array} data
 */
export function writeWords({ queue }, buffer, offset, data) {
  const { resizable, growable } = /** @type {any} */ (data.buffer);
  const size = align(data.length, 4);
  if (size === data.length && !resizable && !growable) queue.writeBuffer(buffer, offset, /** @type {Uint8Array<ArrayBuffer>} */ (data));
  else {
    const padded = new Uint8Array(size);
    padded.set(data);
    queue.writeBuffer(buffer, offset, padded);
  }
}
