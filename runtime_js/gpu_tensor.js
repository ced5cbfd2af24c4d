// Tensors on a GPU: results that stay there, and inputs that are there.
//
// A model passes such values on as spans: a buffer, and the bytes of the value, which begins at the start of the buffer.

import { arrayOf, isGpuBuffer } from "./dtypes.js";
import { DisposedError, InputError } from "./errors.js";
import { shapeOf } from "./manifest.js";
import { bindMembers } from "./members.js";

/** @import { GpuSpan, Port, Symbols } from "./types.d.ts" */
/** @import { WebGpuDevice } from "./webgpu_device.js" */
/** The buffers that receive values which stay on the GPU, or null for new ones, by buffer. @typedef {Map<string, GPUBuffer | null>} Receivers */
/** Values by buffer. @typedef {Map<string, Uint8Array | GpuSpan>} Values */

/** The size of a buffer for so many bytes: copies move whole words. @param {number} bytes */
export function wordBytes(bytes) {
  return Math.max(4, Math.ceil(bytes / 4) * 4);
}

export class GpuTensor {
  #device;
  #bytes;
  #disposed = false;

  /**
   * @param {WebGpuDevice} device
   * @param {string} dtype
   * @param {number[]} shape
   * @param {GpuSpan} span
   */
  constructor(device, dtype, shape, { buffer, bytes }) {
    this.#device = device;
    this.#bytes = bytes;
    this.dtype = dtype;
    this.shape = shape;
    this.data = buffer;
    bindMembers(this, false);
  }

  /** Copy the tensor to the CPU. @returns {Promise<import("./webmlc.js").Tensor>} */
  async read() {
    if (this.#disposed) throw new DisposedError("this tensor was disposed of");
    const { dtype, shape } = this;
    const bytes = await this.#device.fetch({ buffer: this.data, bytes: this.#bytes });
    return { dtype, shape, data: new (arrayOf(dtype))(/** @type {ArrayBuffer} */ (bytes.buffer)) };
  }

  /** Free the buffer. */
  dispose() {
    this.#disposed = true;
    this.data.destroy();
  }
}

/** The values of one run that are on the GPU. */
export class GpuValues {
  /** @type {Receivers} Of the downloads of stages. */
  receivers = new Map();
  #device;
  #ports;
  #results;
  #claims; // values that belong to the caller, or to an output

  /**
   * @param {WebGpuDevice} device
   * @param {Port[]} ports  of the outputs
   * @param {import("./webmlc.js").RunOptions["results"]} results
   * @param {Set<Uint8Array | GpuSpan>} inputs  values that belong to the caller
   */
  constructor(device, ports, results = {}, inputs) {
    this.#claims = inputs;
    this.#device = device;
    this.#ports = ports;
    this.#results = results;
    for (const { name, buffer } of ports) {
      const receiver = this.#receiver(name);
      if (receiver !== undefined && !this.receivers.has(buffer)) this.receivers.set(buffer, receiver);
    }
  }

  /** The buffer that receives an output, null for a new one, or undefined if the output does not stay on the GPU. @param {string} name */
  #receiver(name) {
    const result = this.#results === "gpu" ? "gpu" : this.#results[name];
    return result === "gpu" ? null : isGpuBuffer(result) ? result : undefined;
  }

  /** Copy values to the CPU that are on the GPU. @param {Values} values @param {string[]} names  of buffers */
  async download(values, names) {
    for (const name of names) {
      const value = values.get(name);
      if (value && !(ArrayBuffer.isView(value))) values.set(name, await this.#device.fetch(value));
    }
  }

  /**
   * The outputs that stay on the GPU, by name. The others are copied to the CPU.
   * @param {Values} values
   * @param {Symbols} symbols
   */
  async results(values, symbols) {
    /** @type {Record<string, GpuTensor>} */
    const tensors = {};
    const downloads = [];
    for (const port of this.#ports) {
      const receiver = this.#receiver(port.name);
      if (receiver === undefined) {
        downloads.push(port.buffer);
        continue;
      }
      const value = /** @type {Uint8Array | GpuSpan} */ (values.get(port.buffer));
      const isThere = !(ArrayBuffer.isView(value) || this.#claims.has(value)) && (receiver ?? value.buffer) === value.buffer;
      const span = isThere ? value : this.#device.store(port.name, value, receiver);
      this.#claims.add(value);
      tensors[port.name] = new GpuTensor(this.#device, port.dtype, shapeOf(port, symbols), span);
    }
    await this.download(values, downloads);
    return tensors;
  }
}

/** The buffer of an input. Throws InputError if it is too small. @param {string} name @param {GpuSpan} input */
export function checkedInput(name, { buffer, bytes }) {
  if (buffer.size >= wordBytes(bytes)) return buffer;
  throw new InputError(`input "${name}" has a GPUBuffer of ${buffer.size} bytes, expected ${wordBytes(bytes)}`);
}

/**
 * Check that the caller's buffer for a result is large enough.
 * @param {string} name  of the output
 * @param {GPUBuffer} buffer
 * @param {number} bytes
 */
export function checkRoom(name, buffer, bytes) {
  if (buffer.size >= wordBytes(bytes)) return;
  throw new InputError(`the GPUBuffer in results for "${name}" has ${buffer.size} bytes, but the output has ${wordBytes(bytes)}`);
}
