// The values of a run that the host holds, and the segments that it executes with them.
//
//   in:  the bytes of inputs and downloads by buffer, and the symbols so far
//   out: further symbols; values under other names; the index of the next segment
//
// The twin of webmlc/host/host_values.py.

import { InputError, PackageError } from "./errors.js";
import { arrayOf } from "./dtypes.js";
import { bindFromMemory } from "./manifest.js";
import { boundSymbols } from "./memory_plan.js";
import { evaluate, symbolsOf, valuesOf } from "./sizes.js";

/** @import { BeginList, Bind, Collect, GpuSpan, Jump, JumpUnless, Measure, Move, Program, Size, Stack, Symbols } from "./types.d.ts" */

const MAX_JUMPS = 2 ** 22; // of a run: see webmlc/host/host_values.py

export class HostValues {
  /** @type {Map<string, number[]>} Of the values that a `move` named. */
  shapes = new Map();

  /** Of the values that a `collect` appended. @type {Map<string, { bytes: Uint8Array, shape: number[] }[]>} */
  lists = new Map();

  #jumps = 0; // of the run

  /** Of the buffers, once a value is checked. @type {Map<string, import("./types.d.ts").Buffer["dtype"]> | undefined} */
  #dtypes;

  /** @param {Program} program @param {Symbols} symbols @param {Map<string, Uint8Array | GpuSpan>} bytes */
  constructor(program, symbols, bytes) {
    this.program = program;
    this.symbols = symbols;
    this.bytes = bytes;
  }

  /**
   * Bind the symbols of a segment, and return them. Symbols of later segments are forgotten, because they belong to an earlier
   * iteration of a loop.
   * @param {Bind | Measure} segment
   * @returns {Symbols}
   */
  bind(segment) {
    const symbols = segment.type === "bind" ? bindFromMemory(this.program, segment, this.#data(segment.buffer)) : this.#measure(segment);
    const bound = boundSymbols(this.program);
    this.symbols = { ...this.symbols, ...symbols };
    for (const name of bound.slice(bound.indexOf(/** @type {string} */ (segment.symbols.at(-1))) + 1)) delete this.symbols[name];
    return symbols;
  }

  /** @param {Measure} segment @returns {Symbols} */
  #measure({ buffer, symbols, axes }) {
    this.#data(buffer);
    const shape = /** @type {number[]} */ (this.shapes.get(buffer));
    return Object.fromEntries(symbols.map((name, i) => [name, shape[axes[i]]]));
  }

  /** Execute a segment that holds values for later. @param {Move | BeginList | Collect | Stack} segment */
  execute(segment) {
    if (segment.type === "move") this.#move(segment);
    else if (segment.type === "begin_list") this.lists.set(segment.target, []);
    else if (segment.type === "collect") this.#list(segment.target).push(this.#shaped(segment.source, segment.target, segment.shape));
    else this.#stack(segment);
  }

  /**
   * Join the values of a list along a new axis. In an empty list, a size that only a value would bind is 0. Throws `InputError` if
   * their shapes differ.
   * @param {Stack} segment
   */
  #stack({ target, axis, shape: sizes }) {
    const values = this.#list(target);
    this.lists.delete(target);
    const shape = values[0]?.shape ?? this.#evaluate(sizes.map((size) => ([...symbolsOf([size], this.program.sizes)].every((name) => name in this.symbols) ? size : 0)));
    const other = values.find((value) => value.shape.some((size, i) => size !== shape[i]));
    if (other) {
      const shapes = `[${shape}] and [${other.shape}]`;
      throw new InputError(`a loop scans values of shapes ${shapes} into "${target}": all slices of a scan must have one shape`);
    }
    const rows = shape.slice(0, axis).reduce((product, size) => product * size, 1);
    const width = rows && values.length ? values[0].bytes.length / rows : 0;
    const joined = new Uint8Array(rows * width * values.length);
    for (let row = 0; row < rows; row++) {
      for (const [i, { bytes }] of values.entries()) joined.set(bytes.subarray(row * width, (row + 1) * width), (row * values.length + i) * width);
    }
    this.bytes.set(target, joined);
    this.shapes.set(target, [...shape.slice(0, axis), values.length, ...shape.slice(axis)]);
  }

  /** @param {Size[]} shape */
  #evaluate(shape) {
    const sizes = valuesOf(this.program, this.symbols);
    return shape.map((size) => evaluate(size, sizes));
  }

  /** Give values further names. @param {Move} segment */
  #move({ sources, targets, shapes }) {
    const values = sources.map((source, i) => this.#shaped(source, targets[i], shapes[i]));
    for (const [i, { bytes, shape }] of values.entries()) {
      this.bytes.set(targets[i], bytes);
      this.shapes.set(targets[i], shape);
    }
  }

  /**
   * The index of the next segment: the target of the jump, or the following segment. Throws `InputError` if the run has jumped
   * `MAX_JUMPS` times.
   * @param {Jump | JumpUnless} segment
   * @param {number} following
   */
  next(segment, following) {
    if (segment.type === "jump_unless" && this.#data(segment.unless)[0]) return following;
    if (++this.#jumps > MAX_JUMPS) {
      throw new InputError(`with these inputs a loop does not end: ${MAX_JUMPS} jumps between segments. Give the loop of the model a trip count`);
    }
    return segment.target;
  }

  /** The bytes of a value. Throws `PackageError` if no segment has computed it yet. @param {string} name */
  #data(name) {
    const bytes = this.bytes.get(name);
    if (!bytes) throw new PackageError(`manifest.json: "${name}" is read before a segment computes it`);
    return /** @type {Uint8Array} */ (bytes);
  }

  /** @param {string} name */
  #list(name) {
    const list = this.lists.get(name);
    if (!list) throw new PackageError(`manifest.json: the list "${name}" is used before it begins`);
    return list;
  }

  /**
   * The value of `source`, and its shape as the value of `target`. In a session, a value may have more bytes than its shape needs.
   * Throws `PackageError` if it has another number of bytes.
   * @param {string} source
   * @param {string} target
   * @param {Size[]} sizes
   */
  #shaped(source, target, sizes) {
    const { buffers } = this.program;
    this.#dtypes ??= new Map(buffers.map(({ name, dtype }) => [name, dtype]));
    const bytes = this.#data(source);
    const shape = this.#evaluate(sizes);
    const dtype = /** @type {import("./types.d.ts").Buffer["dtype"]} */ (this.#dtypes.get(target));
    const needed = shape.reduce((product, size) => product * size, arrayOf(dtype).BYTES_PER_ELEMENT);
    if (bytes.length === needed || (bytes.length > needed && buffers.some(({ kind }) => kind === "state"))) return { bytes, shape };
    throw new PackageError(`manifest.json: "${source}" has ${bytes.length} bytes, but "${target}" of shape [${shape}] has ${needed}`);
  }
}
