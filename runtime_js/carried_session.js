// Sessions that carry outputs to the inputs of the next run, on the host. The twin of webmlc/host/carried_session.py.
//
//   const session = await model.session();      // of a merged decoder
//   const { logits } = await session.run({ input_ids, use_cache_branch });
//
// The values are empty at first, and have any size later.

import { copyInputs } from "./binder.js";
import { arrayOf } from "./dtypes.js";
import { DisposedError, InputError } from "./errors.js";
import { elementCount, shapeOf, wrongNames } from "./manifest.js";
import { bindMembers } from "./members.js";
import { chosenOutputs } from "./run_options.js";
import { readTensors, writeTensors } from "./tensor_file.js";

/** @import { Model } from "./model.js" */
/** @import { Manifest, Port, Symbols } from "./types.d.ts" */
/** @import { RunOptions, Tensor } from "./webmlc.js" */

const MOST_ROWS = 2 ** 31 - 1; // the most rows that a tensor may have

/** The names of element types in safetensors files. @type {Record<string, string>} */
const SAVED_TYPES = {
  ...{ bool: "BOOL", int8: "I8", uint8: "U8", int16: "I16", uint16: "U16", int32: "I32", uint32: "U32", int64: "I64", uint64: "U64" },
  ...{ float16: "F16", bfloat16: "BF16", float32: "F32", float64: "F64" },
};

export class CarriedSession {
  #model;
  /** The inputs that a caller gives. @type {Port[]} */
  #ports;
  /** The inputs that the session gives. @type {Port[]} */
  #pasts;
  #outputs; // by input, the output that it carries
  #symbols;
  /** The symbol of the number of rows, or undefined. @type {string | undefined} */
  #lengthSymbol;
  /** @type {Map<string, Tensor>} */
  #values = new Map();
  /** @type {Promise<unknown>} Settles when the next run may start. */
  #queue = Promise.resolve();
  #disposed = false;

  /** @param {Model} model @param {Manifest} manifest @param {number} [capacity] */
  constructor(model, { carried, inputs, symbols }, capacity = MOST_ROWS) {
    if (!(Number.isInteger(capacity) && capacity >= 1)) throw new InputError(`capacity is ${capacity}, expected a whole number of at least 1`);
    this.capacity = capacity;
    this.#model = model;
    this.#outputs = new Map(carried.map(({ input, output }) => [input, output]));
    this.#ports = inputs.filter(({ name }) => !this.#outputs.has(name));
    this.#pasts = inputs.filter(({ name }) => this.#outputs.has(name));
    this.#symbols = symbols.map(({ name }) => name);
    const sizes = new Set(this.#ports.flatMap(({ shape }) => shape));
    const free = this.#symbols.filter((name) => !sizes.has(name));
    this.#lengthSymbol = /** @type {string | undefined} */ (this.#pasts.flatMap(({ shape }) => shape).find((size) => free.includes(/** @type {string} */ (size))));
    bindMembers(this);
  }

  get length() {
    return this.#lengthOf(this.#values);
  }

  /** @param {Map<string, { shape: readonly number[] }>} values */
  #lengthOf(values) {
    for (const { name, shape } of this.#pasts) {
      const axis = this.#lengthSymbol === undefined ? -1 : shape.indexOf(this.#lengthSymbol);
      const value = values.get(name);
      if (value && axis >= 0) return value.shape[axis];
    }
    return 0;
  }

  /** @param {Record<string, any>} inputs @param {RunOptions} [options] */
  async run(inputs, options = {}) {
    this.#check();
    const feeds = copyInputs(inputs);
    return this.#enqueue(() => this.#run(feeds, options));
  }

  /** @param {Record<string, any>} feeds @param {RunOptions} options */
  async #run(feeds, options) {
    this.#check();
    const wrong = wrongNames(this.#ports, feeds);
    if (wrong) throw wrong;
    const presents = [...this.#outputs.values()];
    const visible = this.#model.outputs.filter(({ name }) => !presents.includes(name));
    const names = chosenOutputs(visible, options).map(({ name }) => name);
    const onGpu = /** @type {RunOptions["results"]} */ (Object.fromEntries(names.map((name) => [name, "gpu"])));
    const results = options.results === "gpu" ? onGpu : options.results; // what is carried returns to the host
    const pasts = this.#values.size ? this.#values : this.#empty(feeds);
    const inputs = { ...feeds, ...Object.fromEntries(pasts) };
    const outputs = await this.#model.run(inputs, { ...options, results, outputs: [...names, ...presents] });
    /** @type {Map<string, Tensor>} */
    const values = new Map();
    for (const [past, present] of this.#outputs) {
      const isEmpty = outputs[present].shape.includes(0); // such an output leaves the value as it is
      values.set(past, isEmpty ? /** @type {Tensor} */ (pasts.get(past)) : outputs[present]);
    }
    const length = this.#lengthOf(values);
    if (length > this.capacity) {
      const remedy = "open a session with a larger capacity, or truncate it";
      throw new InputError(`the run leaves ${length} rows, but the session has a capacity of ${this.capacity}; ${remedy}`);
    }
    this.#values = values;
    return Object.fromEntries(names.map((name) => [name, outputs[name]]));
  }

  /** The values before the first run: sizes that no other input determines are 0. @param {Record<string, any>} feeds @returns {Map<string, Tensor>} */
  #empty(feeds) {
    /** @type {Symbols} */
    const symbols = Object.fromEntries(this.#symbols.map((name) => [name, 0]));
    for (const { name, shape } of this.#ports) {
      const sizes = feeds[name].shape ?? [];
      for (const [axis, size] of shape.entries()) if (typeof size === "string") symbols[size] = sizes[axis];
    }
    const tensor = (/** @type {Port} */ port) => {
      const shape = shapeOf(port, symbols);
      return { dtype: port.dtype, shape, data: new (arrayOf(port.dtype))(elementCount(shape)) };
    };
    return new Map(this.#pasts.map((port) => [port.name, /** @type {Tensor} */ (tensor(port))]));
  }

  /** @param {number} length */
  truncate(length) {
    this.#check();
    if (!(Number.isInteger(length) && length >= 0 && length <= this.length)) {
      throw new InputError(`length is ${length}, expected a number from 0 to ${this.length}`);
    }
    for (const { name, shape } of this.#pasts) {
      const axis = this.#lengthSymbol === undefined ? -1 : shape.indexOf(this.#lengthSymbol);
      const value = this.#values.get(name);
      if (value && axis >= 0) this.#values.set(name, firstRows(value, axis, length));
    }
  }

  async reset() {
    this.#check();
    await this.#enqueue(async () => void (this.#values = new Map()));
  }

  async save() {
    this.#check();
    const values = await this.#enqueue(async () => [...this.#values]);
    const tensors = values.map(([name, { dtype, shape, data }]) => ({ name, dtype: SAVED_TYPES[dtype], shape, bytes: arrayBytes(data) }));
    return writeTensors(tensors, {});
  }

  /** @param {Uint8Array} data */
  async load(data) {
    this.#check();
    const { tensors } = readTensors(data);
    const byName = new Map(tensors.map((tensor) => [tensor.name, tensor]));
    const fits = this.#pasts.every(({ name, dtype, shape }) => byName.get(name)?.dtype === SAVED_TYPES[dtype] && byName.get(name)?.shape.length === shape.length);
    if (tensors.length && !(fits && tensors.length === this.#pasts.length)) throw new InputError("the saved values are not those of this model");
    const length = this.#lengthOf(byName);
    if (length > this.capacity) throw new InputError(`the saved session has ${length} rows, but capacity is ${this.capacity}`);
    const value = (/** @type {Port} */ { name, dtype }) => {
      const { shape, bytes } = /** @type {import("./tensor_file.js").SavedTensor} */ (byName.get(name));
      return { dtype, shape: [...shape], data: new (arrayOf(dtype))(/** @type {ArrayBuffer} */ (bytes.buffer)) };
    };
    const values = tensors.length ? this.#pasts.map((port) => /** @type {[string, Tensor]} */ ([port.name, value(port)])) : [];
    await this.#enqueue(async () => void (this.#values = new Map(values)));
  }

  async dispose() {
    this.#disposed = true;
    this.#values = new Map();
  }

  /** Call a function after the calls before. @template T @param {() => Promise<T>} task @returns {Promise<T>} */
  #enqueue(task) {
    const result = this.#queue.then(task);
    this.#queue = result.catch(() => {});
    return result;
  }

  #check() {
    if (this.#disposed) throw new DisposedError("this session was disposed of; open another with model.session");
  }
}

/** The bytes of an array. @param {any} data */
function arrayBytes(data) {
  return new Uint8Array(data.buffer, data.byteOffset, data.byteLength);
}

/** The first rows of a tensor along an axis. @param {Tensor} tensor @param {number} axis @param {number} rows @returns {Tensor} */
function firstRows({ dtype, shape, data }, axis, rows) {
  const inner = elementCount(shape.slice(axis + 1));
  const outer = elementCount(shape.slice(0, axis));
  const cut = [...shape.slice(0, axis), rows, ...shape.slice(axis + 1)];
  const part = new (arrayOf(/** @type {Port["dtype"]} */ (dtype)))(elementCount(cut));
  for (let i = 0; i < outer; i++) part.set(/** @type {any} */ (data).subarray(i * shape[axis] * inner, (i * shape[axis] + rows) * inner), i * rows * inner);
  return /** @type {Tensor} */ ({ dtype, shape: cut, data: part });
}
