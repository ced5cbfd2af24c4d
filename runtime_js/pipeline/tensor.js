// A tensor with the names that transformers.js gives its methods. Tensors of ONNX Runtime Web have more: see ../onnxruntime/tensor.js.
//
//   const embeddings = await extract(["a", "b"], { pooling: "mean" });   // dims [2, 384]
//   embeddings[0].data, embeddings.slice(null, [0, 3]).tolist(), [...embeddings]
//
// A method whose name ends in "_" changes the tensor, and returns it. Rows, `view`, `reshape`, `squeeze` and `unsqueeze` share the data
// of the tensor; all other methods copy.

import { arrayOf } from "../dtypes.js";
import { InputError } from "../errors.js";
import { arrayKind, described } from "../kinds.js";
import { bindMembers } from "../members.js";

/** @import { Tensor as RuntimeTensor, TypedArray } from "../webmlc.js" */
/** @typedef {number | readonly [number | null, number | null] | null} Slice  an index, a range whose end is excluded, or all */

const { Float16Array } = /** @type {any} */ (globalThis);
/** The number of fraction bits of 16-bit floats. Where the engine has no array for such a type, a tensor holds the bits of its elements. */
const FRACTION_BITS = { float16: 10, bfloat16: 7 };

export class Tensor {
  /**
   * `new Tensor("float32", data, [2, 3])`, or `new Tensor(data, [2, 3])`. Without `dims`, a vector. Throws InputError.
   * @param {string | TypedArray | readonly boolean[]} type
   * @param {any} [data]  a typed array, an array of numbers, bigints or booleans, or the dims if `type` is an array
   * @param {readonly number[]} [dims]
   */
  constructor(type, data, dims) {
    if (typeof type !== "string") [type, data, dims] = [typeOf(type), type, data];
    this.type = type;
    /** @type {any} */
    this.data = dataOf(type, data);
    this.dims = [...(dims ?? [this.data.length])];
    this.size = product(this.dims);
    this.location = "cpu";
    if (this.data.length !== this.size || !this.dims.every((size) => Number.isInteger(size) && size >= 0)) {
      throw new InputError(`a tensor of shape [${this.dims}] has ${this.size} elements, but its data has ${this.data.length}`);
    }
    bindMembers(this, false);
  }

  /** @param {RuntimeTensor} tensor */
  static of({ dtype, shape, data }) {
    return new this(dtype, data, shape);
  }

  /** The tensor as the runtime takes it. @returns {any} */
  get forRuntime() {
    return { dtype: this.type, shape: this.dims, data: this.data };
  }

  /** The data, also of a tensor on a GPU. */
  async getData() {
    return this.data;
  }

  /** Free the memory of a tensor on a GPU. Others hold none outside of JavaScript. */
  dispose() {}

  /** The rows along the first dimension; the numbers of a vector. */
  *[Symbol.iterator]() {
    if (this.dims.length === 1) yield* this.data;
    else for (let i = 0; i < this.dims[0]; i++) yield this.row(i);
  }

  /** A row along the first dimension, or an element of a vector, which is a tensor, too. @param {number} index  from the end if negative */
  row(index) {
    const [count, ...dims] = this.dims;
    const size = product(dims);
    const place = placeOf(index, count);
    const { data } = this;
    const [begin, end] = [place * size, (place + 1) * size];
    return this.like(this.type === "string" ? data.slice(begin, end) : data.subarray(begin, end), dims);
  }

  /** A tensor of the same type and class. @param {any} data @param {readonly number[]} dims @returns {any} */
  like(data, dims) {
    return new /** @type {any} */ (this.constructor)(this.type, data, dims);
  }

  /** The number of a tensor of one element. @returns {number | bigint} */
  item() {
    if (this.size !== 1) throw new InputError(`a tensor of shape [${this.dims}] is not one number`);
    return this.data[0];
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

  clone() {
    return this.like(this.data.slice(), this.dims);
  }

  /** The tensor with other dims, of which one may be -1. @param {...number} dims */
  view(...dims) {
    const size = this.size / product(dims.filter((size) => size !== -1));
    if (dims.includes(-1) && !Number.isInteger(size)) throw new InputError(`${this.size} elements do not fill the shape [${dims}]`);
    return this.reshape(dims.map((other) => (other === -1 ? size : other)));
  }

  /** @param {readonly number[]} dims */
  reshape(dims) {
    return this.like(this.data, dims);
  }

  /** Without the dimensions of size 1, or without some of these. @param {number | number[] | null} [dim] */
  squeeze(dim = null) {
    const axes = dim === null ? this.dims.keys() : [dim].flat().map((axis) => placeOf(axis, this.dims.length));
    const chosen = new Set(axes);
    return this.reshape(this.dims.filter((size, axis) => size !== 1 || !chosen.has(axis)));
  }

  /** With a dimension of size 1. @param {number} dim */
  unsqueeze(dim) {
    const place = placeOf(dim, this.dims.length + 1);
    return this.reshape([...this.dims.slice(0, place), 1, ...this.dims.slice(place)]);
  }

  /** With the dimensions from `start` to `end` as one. @param {number} [start] @param {number} [end] */
  flatten(start = 0, end = -1) {
    if (!this.dims.length) return this.clone().unsqueeze(0);
    const [first, last] = [start, end].map((axis) => placeOf(axis, this.dims.length));
    const joined = product(this.dims.slice(first, last + 1));
    return this.clone().reshape([...this.dims.slice(0, first), joined, ...this.dims.slice(last + 1)]);
  }

  /** The elements between two neighbours along each dimension. */
  stride() {
    return this.dims.map((_, axis) => product(this.dims.slice(axis + 1)));
  }

  /** A part of the tensor. A dimension with one index is left out. @param {...(Slice | undefined)} slices */
  slice(...slices) {
    const ranges = this.dims.map((size, axis) => rangeOf(slices[axis], size));
    const dims = ranges.map(([begin, end]) => end - begin);
    const stride = this.stride();
    const start = ranges.reduce((sum, [begin], axis) => sum + begin * stride[axis], 0);
    const part = this.like(gather(this.data, start, dims, stride), dims);
    return part.reshape(dims.filter((_, axis) => typeof slices[axis] !== "number"));
  }

  /** With the dimensions in another order. @param {...number} axes */
  permute(...axes) {
    const order = axes.map((axis) => placeOf(axis, this.dims.length));
    if (order.length !== this.dims.length || new Set(order).size !== order.length) throw new InputError(`the axes ${axes} are no order of ${this.dims.length} dimensions`);
    const stride = this.stride();
    const dims = order.map((axis) => this.dims[axis]);
    return this.like(gather(this.data, 0, dims, order.map((axis) => stride[axis])), dims);
  }

  /** @param {...number} axes */
  transpose(...axes) {
    return this.permute(...axes);
  }

  /** Repeat the tensor along each dimension. @param {...number} counts */
  repeat(...counts) {
    const dims = [...Array(Math.max(0, counts.length - this.dims.length)).fill(1), ...this.dims];
    if (counts.length < dims.length) throw new InputError(`repeat takes a number for each of ${dims.length} dimensions`);
    const parts = dims.flatMap((size, axis) => [counts[axis], size]);
    const stride = dims.flatMap((_, axis) => [0, product(dims.slice(axis + 1))]);
    return this.like(gather(this.data, 0, parts, stride), dims.map((size, axis) => size * counts[axis]));
  }

  /** @param {...number} counts */
  tile(...counts) {
    return this.repeat(...Array(Math.max(0, this.dims.length - counts.length)).fill(1), ...counts);
  }

  /** The elements as another type. @param {string} type */
  to(type) {
    if (type === this.type) return this;
    const values = areBits(this.type, this.data) ? fromBits(this.type, this.data) : this.data;
    /** @type {(x: any) => any} */
    const convert = arrayOf(type).name.startsWith("Big") ? toBigInt : type === "bool" ? Boolean : type.includes("int") ? toInteger : Number;
    return new Tensor(type, Array.from(values, convert), this.dims);
  }

  /** The first place of a number in the data, or -1. @param {number | bigint} item */
  indexOf(item) {
    return this.data.findIndex((/** @type {any} */ x) => x <= item && x >= item); // also a bigint that equals a number
  }

  /** Change each element. @param {(x: any, index: number, data: any) => any} callback */
  map_(callback) {
    const data = numbersOf(this);
    for (let i = 0; i < data.length; i++) data[i] = callback(data[i], i, data);
    return this;
  }

  /** @param {number | "fro"} [p] @param {number | null} [dim] @param {boolean} [keepdim] */
  norm(p = "fro", dim = null, keepdim = false) {
    const power = p === "fro" ? 2 : p;
    return reduced(this, dim, keepdim, (row) => row.reduce((sum, x) => sum + Math.abs(x) ** power, 0) ** (1 / power));
  }

  /** Divide each vector along a dimension by its norm. A vector of zeros stays. @param {number} [p] @param {number} [dim] */
  normalize_(p = 2, dim = 1) {
    const axis = placeOf(dim, this.dims.length);
    const norms = this.norm(p, axis, true).data;
    const [count, inner] = [this.dims[axis], product(this.dims.slice(axis + 1))];
    return this.map_((x, i) => x / (norms[Math.floor(i / (count * inner)) * inner + (i % inner)] || 1));
  }
}

/** The methods that compute each element from the element and from numbers. @type {Record<string, (x: any, ...numbers: any[]) => any>} */
const ELEMENTWISE = {
  add: (x, term) => x + term,
  sub: (x, term) => x - term,
  mul: (x, factor) => x * factor,
  div: (x, divisor) => x / divisor,
  neg: (x) => -x,
  sigmoid: (x) => 1 / (1 + Math.exp(-x)),
  round: (x) => Math.round(x),
  clamp: (x, least, most) => (x < least ? least : x > most ? most : x),
};
/** The methods that say which elements fulfil a condition. @type {Record<string, (x: any, value: any) => boolean>} */
const COMPARISONS = { gt: (x, value) => x > value, lt: (x, value) => x < value };
/** The methods that reduce numbers along a dimension, or all numbers: `(dim = null, keepdim = false)`. @type {Record<string, (row: any[]) => any>} */
const REDUCTIONS = {
  sum: (row) => row.reduce((sum, x) => sum + x),
  mean: (row) => REDUCTIONS.sum(row) / /** @type {any} */ (typeof row[0] === "bigint" ? BigInt(row.length) : row.length),
  min: (row) => row.reduce((a, b) => (b < a ? b : a)),
  max: (row) => row.reduce((a, b) => (b > a ? b : a)),
};
/** The methods that find the place of a number along a dimension. @type {typeof REDUCTIONS} */
const PLACES = {
  argmin: (row) => BigInt(row.reduce((best, x, i) => (x < row[best] ? i : best), 0)),
  argmax: (row) => BigInt(row.reduce((best, x, i) => (x > row[best] ? i : best), 0)),
};

/** Add methods to tensors. @param {string} suffix @param {string[]} names @param {(name: string) => (tensor: any, ...values: any[]) => any} methodOf */
function addMethods(suffix, names, methodOf) {
  for (const name of names) {
    const method = methodOf(name);
    /** @this {Tensor} @param {any[]} values */
    const value = function (...values) {
      return method(this, ...values);
    };
    Object.defineProperty(Tensor.prototype, name + suffix, { value, writable: true, configurable: true });
  }
}

addMethods("_", Object.keys(ELEMENTWISE), (name) => (tensor, ...values) => {
  const compute = ELEMENTWISE[name];
  const numbers = Array.from({ length: compute.length - 1 }, (_, i) => operandOf(tensor, values[i]));
  return tensor.map_((/** @type {any} */ x) => compute(x, ...numbers));
});
addMethods("_", ["squeeze", "unsqueeze"], (name) => (tensor, dim) => Object.assign(tensor, { dims: tensor[name](dim).dims }));
addMethods("", [...Object.keys(ELEMENTWISE), "map", "normalize"], (name) => (tensor, ...values) => tensor.clone()[`${name}_`](...values));
addMethods("", Object.keys(COMPARISONS), (name) => (tensor, value) => {
  return new Tensor("bool", Array.from(numbersOf(tensor), (x) => COMPARISONS[name](x, value)), tensor.dims);
});
addMethods("", Object.keys(REDUCTIONS), (name) => (tensor, dim, keepdim) => reduced(tensor, dim, keepdim, REDUCTIONS[name]));
addMethods("", Object.keys(PLACES), (name) => (tensor, dim, keepdim) => reduced(tensor, dim, keepdim, PLACES[name], "int64"));

// `tensor[0]` is its first row: a property that an object lacks is looked up in its prototypes, of which this is the last. A Proxy
// around each tensor could not be posted to a worker.
Object.setPrototypeOf(
  Tensor.prototype,
  new Proxy({}, { get: (target, key, tensor) => (/^-?\d+$/.test(String(key)) ? tensor.row(Number(key)) : Reflect.get(target, key, tensor)) }),
);

/** @param {readonly number[]} sizes */
function product(sizes) {
  return sizes.reduce((result, size) => result * size, 1);
}

/** An index that may count from the end, from the start. @param {number} index @param {number} count */
function placeOf(index, count) {
  const place = index < 0 ? index + count : index;
  if (Number.isInteger(place) && place >= 0 && place < count) return place;
  throw new InputError(`${index} is no index of ${count}: there are ${-count} to ${count - 1}`);
}

/** The begin and the end of what a slice takes of a dimension. @param {Slice | undefined} slice @param {number} size @returns {[number, number]} */
function rangeOf(slice, size) {
  if (slice === null || slice === undefined) return [0, size];
  if (typeof slice === "number") return [placeOf(slice, size), placeOf(slice, size) + 1];
  const [begin, end] = slice.map((place, i) => Math.min(size, Math.max(0, place === null ? i * size : place < 0 ? place + size : place)));
  if (slice.length !== 2 || begin > end) throw new InputError(`a slice is an index, [begin, end] or null, not [${slice}]`);
  return [begin, end];
}

/** The elements from `start` on, by sizes and strides. @param {any} data @param {number} start @param {readonly number[]} dims @param {readonly number[]} stride */
function gather(data, start, dims, stride) {
  const result = new data.constructor(product(dims));
  const index = dims.map(() => 0);
  for (let i = 0, place = start; i < result.length; i++) {
    result[i] = data[place];
    for (let axis = dims.length - 1; axis >= 0; axis--) {
      place += stride[axis];
      if (++index[axis] < dims[axis]) break;
      place -= stride[axis] * dims[axis];
      index[axis] = 0;
    }
  }
  return result;
}

/**
 * Reduce each row of numbers along a dimension, or all numbers.
 * @param {Tensor} tensor
 * @param {number | null | undefined} dim
 * @param {boolean | undefined} keepdim
 * @param {(row: any[]) => any} fold
 * @param {string} [type]  of the result
 */
function reduced(tensor, dim, keepdim, fold, type = tensor.type) {
  const numbers = numbersOf(tensor);
  if (!numbers.length) throw new InputError("a tensor without elements has no sum, mean or extremes");
  if (dim === null || dim === undefined) return new Tensor(type, [fold(Array.from(numbers))], keepdim ? tensor.dims.map(() => 1) : []);
  const axis = placeOf(dim, tensor.dims.length);
  const [before, count, after] = [tensor.dims.slice(0, axis), tensor.dims[axis], tensor.dims.slice(axis + 1)];
  const inner = product(after);
  const results = Array.from({ length: product(before) * inner }, (_, i) => {
    const first = Math.floor(i / inner) * count * inner + (i % inner);
    return fold(Array.from({ length: count }, (_, k) => numbers[first + k * inner]));
  });
  return new Tensor(type, results, [...before, ...(keepdim ? [1] : []), ...after]);
}

/** A number without its fraction. @param {number | bigint} x */
function toInteger(x) {
  return Math.trunc(Number(x));
}

/** A bigint without the fraction of a number; 0 for NaN and infinities, as in arrays of other integers. @param {number | bigint} x */
function toBigInt(x) {
  return typeof x === "bigint" ? x : BigInt(Number.isFinite(x) ? Math.trunc(x) : 0);
}

/** A number that operators take beside the elements of a tensor. @param {Tensor} tensor @param {any} value @returns {any} */
function operandOf({ data }, value) {
  if (typeof value !== "number" && typeof value !== "bigint") throw new InputError(`an operator takes a number, not ${described(value)}`);
  return arrayKind(data).startsWith("Big") ? BigInt(value) : Number(value);
}

/** The elements of a tensor as numbers. Throws InputError if it holds the bits of floats. @param {Tensor} tensor */
function numbersOf({ type, data }) {
  if (!areBits(type, data)) return data;
  throw new InputError(`a tensor of ${type} holds bits: convert it first, by to("float32")`);
}

/** True if an array holds the bits of floats, not their values. @param {string} type @param {any} data */
function areBits(type, data) {
  return type in FRACTION_BITS && arrayKind(data) === "Uint16Array";
}

/** The values of 16-bit floats. @param {string} type @param {Uint16Array} data */
function fromBits(type, data) {
  const fractionBits = FRACTION_BITS[/** @type {keyof typeof FRACTION_BITS} */ (type)];
  const [scale, mask] = [2 ** fractionBits, 2 ** (15 - fractionBits) - 1];
  const bias = mask >> 1;
  return Array.from(data, (bits) => {
    const [sign, exponent, fraction] = [bits >> 15 ? -1 : 1, (bits & 0x7fff) >> fractionBits, (bits & (scale - 1)) / scale];
    if (exponent === mask) return fraction ? NaN : sign * Infinity;
    return sign * (exponent ? (1 + fraction) * 2 ** (exponent - bias) : fraction * 2 ** (1 - bias));
  });
}

/** The array of a tensor's elements, made of numbers if `data` are such. @param {string} type @param {any} data */
function dataOf(type, data) {
  if (type === "string") {
    if (Array.isArray(data) && data.every((text) => typeof text === "string")) return [...data];
    throw new InputError(`a tensor of strings holds an array of strings, not ${described(data)}`);
  }
  const plain = /** @type {any} */ (arrayOf(type));
  const array = type === "float16" && Float16Array ? Float16Array : plain;
  if (Array.isArray(data)) {
    if (type in FRACTION_BITS && array === plain) throw new InputError(`this host makes no ${type} of numbers: pass a Uint16Array of their bits`);
    return array.from(data, array.name.startsWith("Big") ? BigInt : Number);
  }
  if (array !== plain && arrayKind(data) === plain.name) return new array(data.buffer, data.byteOffset, data.length);
  if (arrayKind(data)) return data;
  throw new InputError(`a tensor holds a typed array or numbers, not ${described(data)}`);
}

/** The element type of an array. @param {unknown} data */
function typeOf(data) {
  if (Array.isArray(data) && typeof data[0] === "boolean") return "bool";
  if (Array.isArray(data) && typeof data[0] === "string") return "string";
  const kind = arrayKind(data);
  if (kind && kind !== "DataView") return kind.replace(/^Big|Clamped/g, "").replace(/Array$/, "").toLowerCase();
  throw new InputError(`a tensor needs a typed array or the name of its element type, not ${described(data)}`);
}
