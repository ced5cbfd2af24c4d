// Bind the symbols of runs. Most runs have the sizes of the run before: then its symbols serve again.
//
//   in:  the inputs of a run, the length and the capacity of its session
//   out: the symbols; the inputs by buffer, as bytes or as values on a GPU
//
// Equal symbols are one object, so that a device finds by identity what it has prepared for them. Nobody may change them.

import { isGpuBuffer } from "./dtypes.js";
import { bindSymbols, checkRequirements, readInputs } from "./manifest.js";

/** @import { Input } from "./manifest.js" */
/** @import { GpuSpan, Manifest, Symbols } from "./types.d.ts" */
/** The shapes of a run and the symbols that they bind. */
/** @typedef {{ shapes: (readonly number[])[], length?: number, capacity?: number, symbols: Symbols }} Sizes */

const MAX_SYMBOLS = 64; // the number of different values that are remembered

export class Binder {
  #manifest;
  /** @type {Map<string, Symbols>} By their JSON. */
  #objects = new Map();
  /** @type {Sizes | null} Those of the latest run. */
  #latest = null;

  /** @param {Manifest} manifest */
  constructor(manifest) {
    this.#manifest = manifest;
  }

  /**
   * Check the inputs of a run, and bind the symbols from their shapes.
   * @param {Record<string, any>} inputs
   * @param {number} [length]  of the session
   * @param {number} [capacity]  of the session
   * @returns {{ symbols: Symbols, values: Map<string, Uint8Array | GpuSpan>, isOnGpu: boolean }}  `isOnGpu` says that some inputs are
   */
  bind(inputs, length, capacity) {
    const tensors = readInputs(this.#manifest, inputs);
    const symbols = this.#symbols(tensors, length, capacity);
    const values = new Map();
    let isOnGpu = false;
    for (let i = 0; i < tensors.length; i++) {
      const { data, bytes } = tensors[i];
      const isThere = isGpuBuffer(data);
      isOnGpu ||= isThere;
      values.set(this.#manifest.inputs[i].buffer, isThere ? { buffer: data, bytes } : new Uint8Array(data.buffer, data.byteOffset, bytes));
    }
    return { symbols, values, isOnGpu };
  }

  /** The object for symbols of these values. @param {Symbols} symbols @returns {Symbols} */
  unique(symbols) {
    const key = JSON.stringify(symbols);
    const object = this.#objects.get(key) ?? symbols;
    this.#objects.delete(key); // what was used last comes last
    this.#objects.set(key, object);
    if (this.#objects.size > MAX_SYMBOLS) this.#objects.delete([...this.#objects.keys()][0]);
    return object;
  }

  /** Bind and check the symbols, unless the run before had the same sizes. @param {Input[]} tensors @param {number} [length] @param {number} [capacity] */
  #symbols(tensors, length, capacity) {
    const latest = this.#latest;
    if (latest && latest.length === length && latest.capacity === capacity && haveShapes(tensors, latest.shapes)) return latest.symbols;
    const symbols = this.unique(bindSymbols(this.#manifest, tensors, length, capacity));
    checkRequirements(this.#manifest, symbols, symbols);
    this.#latest = { shapes: tensors.map(({ shape }) => shape.slice()), length, capacity, symbols };
    return symbols;
  }
}

/** @param {Input[]} tensors @param {(readonly number[])[]} shapes */
function haveShapes(tensors, shapes) {
  for (let i = 0; i < shapes.length; i++) {
    const { shape } = tensors[i];
    for (let axis = 0; axis < shape.length; axis++) if (shape[axis] !== shapes[i][axis]) return false;
  }
  return true;
}

/**
 * Copy the arrays of the inputs. Values that are not arrays stay, and `bind` reports them.
 * @param {Record<string, any>} inputs
 * @returns {Record<string, any>}
 */
export function copyInputs(inputs) {
  const copies = Object.entries(inputs ?? {}).map(([name, value]) => {
    if (ArrayBuffer.isView(value) || typeof value !== "object" || value === null) return [name, copyOf(value)];
    const { dtype, shape, data } = value; // which may be accessors of the value's class
    return [name, { dtype, shape: Array.isArray(shape) ? [...shape] : shape, data: copyOf(data) }];
  });
  return Object.fromEntries(copies);
}

/** True if some inputs are on a GPU. @param {Record<string, any>} inputs */
export function hasGpuInputs(inputs) {
  return Object.values(inputs ?? {}).some((value) => isGpuBuffer(value?.data));
}

/** A copy of an array; any other value as it is. @param {any} value */
function copyOf(value) {
  return ArrayBuffer.isView(value) ? (/** @type {any} */ (value).slice?.() ?? value) : value;
}
