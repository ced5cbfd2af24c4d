// A tensor with the names that ONNX Runtime Web and transformers.js give its parts.

import { arrayOf } from "../dtypes.js";
import { InputError } from "../errors.js";

/** @typedef {import("../webmlc.js").TypedArray} TypedArray */
/** @typedef {import("../webmlc.js").Tensor} RuntimeTensor */

export class Tensor {
  /**
   * `new Tensor("float32", data, [2, 3])`, or `new Tensor(data, [2, 3])`. Without `dims`, a vector.
   * @param {string | TypedArray} type
   * @param {any} data  a typed array, an array of numbers or bigints, or the dims if `type` is a typed array
   * @param {readonly number[]} [dims]
   */
  constructor(type, data, dims) {
    if (typeof type !== "string") [type, data, dims] = [typeOf(type), type, data];
    if (type === "string") throw new InputError("a tensor of strings: models take numbers; encode the texts first");
    this.type = type;
    /** @type {any} */
    this.data = Array.isArray(data) ? fromNumbers(type, data) : data;
    this.dims = [...(dims ?? [this.data.length])];
    this.size = this.dims.reduce((product, size) => product * size, 1);
    this.location = "cpu";
    if (this.data.length !== this.size) {
      throw new InputError(`a tensor of shape [${this.dims}] has ${this.size} elements, but its data has ${this.data.length}`);
    }
  }

  /** @param {RuntimeTensor} tensor */
  static of({ dtype, shape, data }) {
    return new Tensor(dtype, data, shape);
  }

  /** The tensor as the runtime takes it. @returns {RuntimeTensor} */
  get forRuntime() {
    return { dtype: this.type, shape: this.dims, data: this.data };
  }

  /** The data. With ONNX Runtime Web they may be on a GPU; here they never are. */
  async getData() {
    return this.data;
  }

  /** The tensor with other dims. @param {readonly number[]} dims */
  reshape(dims) {
    return new Tensor(this.type, this.data, dims);
  }

  /** Nested arrays. @returns {any[]} */
  tolist() {
    /** @type {any} */
    let items = Array.from(this.data);
    for (const size of this.dims.slice(1).reverse()) {
      const rows = size ? items.length / size : 0;
      items = Array.from({ length: rows }, (_, row) => items.slice(row * size, (row + 1) * size));
    }
    return items;
  }

  /** Tensors hold no memory outside of JavaScript. */
  dispose() {}
}

/** @param {string} type @param {any[]} numbers */
function fromNumbers(type, numbers) {
  const array = /** @type {any} */ (arrayOf(type));
  return array.from(numbers, array.name.startsWith("Big") ? BigInt : Number);
}

/** The element type of a typed array. @param {TypedArray} data */
function typeOf(data) {
  const name = data?.constructor?.name ?? String(data);
  const type = name.replace(/^Big|Clamped/g, "").replace(/Array$/, "").toLowerCase();
  if (ArrayBuffer.isView(data)) return type;
  throw new InputError(`a tensor needs a typed array or the name of its element type, not ${name}`);
}
