// A tensor with the names of ONNX Runtime Web, on the CPU or on the GPU.

import { InputError } from "../errors.js";
import { described } from "../kinds.js";
import { Tensor as PlainTensor } from "../pipeline/tensor.js";
import { tensorOfImage, toImageData } from "./images.js";

/** @import { GpuBufferParameters, ImageOptions } from "./onnxruntime.js" */

export class Tensor extends PlainTensor {
  /** The functions that read and free a tensor on the GPU. @type {GpuBufferParameters | null} */
  #gpu = null;

  /**
   * As the constructor of a tensor on the CPU; or of an object that says where the data are, as ONNX Runtime Web has it.
   * @param {any} type
   * @param {any} [data]
   * @param {readonly number[]} [dims]
   */
  constructor(type, data, dims) {
    const place = type?.location;
    if (place === "gpu-buffer") {
      super(type.type, [], [0]);
      this.#moveToGpu(type);
    } else if (place === "cpu-pinned") {
      super(type.type, type.data, type.dims);
      this.location = place;
    } else if (place) throw unsupported(place);
    else super(type, data, dims);
  }

  /** @param {any} image  pixels, a picture or its address @param {ImageOptions} [options] @returns {Promise<any>} */
  static async fromImage(image, options) {
    const { type, data, dims } = await tensorOfImage(image, options);
    return new Tensor(type, data, dims);
  }

  /** @param {GPUBuffer} gpuBuffer @param {any} options @returns {any} */
  static fromGpuBuffer(gpuBuffer, { dataType = "float32", ...options }) {
    return new Tensor({ location: "gpu-buffer", type: dataType, gpuBuffer, ...options });
  }

  /** @param {string} type @param {any} data @param {readonly number[]} [dims] @returns {any} */
  static fromPinnedBuffer(type, data, dims) {
    return new Tensor({ location: "cpu-pinned", type, data, dims });
  }

  /** @returns {never} */
  static fromTexture() {
    throw unsupported("texture");
  }

  /** @returns {never} */
  static fromMLTensor() {
    throw unsupported("ml-tensor");
  }

  /** The buffer of a tensor on the GPU. Throws InputError if the tensor is on the CPU. */
  get gpuBuffer() {
    if (this.#gpu) return this.#gpu.gpuBuffer;
    throw new InputError("the tensor is on the CPU: it has data");
  }

  /** @returns {never} */
  get texture() {
    throw unsupported("texture");
  }

  /** @returns {never} */
  get mlTensor() {
    throw unsupported("ml-tensor");
  }

  /** @override */
  get forRuntime() {
    return this.#gpu ? { dtype: this.type, shape: this.dims, data: this.#gpu.gpuBuffer } : super.forRuntime;
  }

  /** @override */
  async getData() {
    if (!this.#gpu) return this.data;
    const { download } = this.#gpu;
    if (!download) throw new InputError("this tensor on the GPU was made without `download`, which reads it");
    return download();
  }

  /** @override */
  dispose() {
    this.#gpu?.dispose?.();
  }

  /** @override @param {readonly number[]} dims */
  reshape(dims) {
    if (!this.#gpu) return super.reshape(dims);
    return new Tensor({ ...this.#gpu, location: "gpu-buffer", type: this.type, dims });
  }

  /** The pixels of a tensor [1, channels, height, width], or of the options' layout. @param {ImageOptions} [options] */
  toImageData(options) {
    return toImageData(this, options);
  }

  /** A picture of these pixels as a data URL. @param {ImageOptions} [options] @returns {string} */
  toDataURL(options) {
    const pixels = toImageData(this, options);
    if (!globalThis.document) throw new InputError("only pages make data URLs: use toImageData");
    const canvas = Object.assign(document.createElement("canvas"), { width: pixels.width, height: pixels.height });
    canvas.getContext("2d")?.putImageData(pixels, 0, 0);
    return canvas.toDataURL();
  }

  /** @param {GpuBufferParameters} parameters */
  #moveToGpu(parameters) {
    const { dims, gpuBuffer } = parameters;
    if (typeof gpuBuffer?.mapAsync !== "function") throw new InputError(`gpuBuffer is ${described(gpuBuffer)}, expected a GPUBuffer`);
    this.#gpu = parameters;
    this.dims = [...dims];
    this.size = dims.reduce((product, size) => product * size, 1);
    this.location = "gpu-buffer";
    const get = () => {
      throw new InputError("the data are on the GPU: await getData()");
    };
    Object.defineProperty(this, "data", { get, enumerable: false });
  }
}

/** @param {string} place */
function unsupported(place) {
  return new InputError(`tensors are on the CPU or in a GPUBuffer, not in a ${place}`);
}
