// Evaluate the sizes in a manifest, and compute the bytes of buffers.

import { arrayOf } from "./dtypes.js";
import { InputError } from "./errors.js";
import { LARGEST_BUFFER } from "./manifest_records.js";

/** @import { Buffer, Control, Manifest, Program, Size, Symbols } from "./types.d.ts" */

const UNLIMITED = 2 ** 31 - 1; // the trip count of a loop without one

const truncmod = (/** @type {number} */ a, /** @type {number} */ b) => (b ? a % b : 0);
const truncdiv = (/** @type {number} */ a, /** @type {number} */ b) => (b ? (a - (a % b)) / b : 0);
const rounds = (/** @type {number} */ a, /** @type {number} */ b) => truncmod(a, b) * b < 0;

/**
 * The operators of sizes: the twin of SIZE_OPERATORS in webmlc/core/sizes.py.
 * @type {Record<string, (a: number, b: number, c: number) => number | boolean>}
 */
export const OPERATORS = {
  add: (a, b) => a + b,
  sub: (a, b) => a - b,
  mul: (a, b) => a * b,
  floordiv: (a, b) => truncdiv(a, b) - +rounds(a, b),
  floormod: (a, b) => truncmod(a, b) + (rounds(a, b) ? b : 0),
  truncdiv,
  truncmod,
  min: (a, b) => Math.min(a, b),
  max: (a, b) => Math.max(a, b),
  neg: (a) => -a,
  abs: Math.abs,
  eq: (a, b) => a === b,
  ne: (a, b) => a !== b,
  lt: (a, b) => a < b,
  le: (a, b) => a <= b,
  gt: (a, b) => a > b,
  ge: (a, b) => a >= b,
  bit_and: (a, b) => a & b,
  bit_or: (a, b) => a | b,
  bit_xor: (a, b) => a ^ b,
  bit_not: (a) => !a,
  select: (a, b, c) => (a ? b : c),
};

/** The symbol of the length of sessions, or "" for a model without states that grow. @param {Pick<Manifest, "symbols">} manifest */
export function lengthOf({ symbols }) {
  return symbols.find(({ input, axis }) => !input && axis === 0)?.name ?? "";
}

/** The symbol of the capacity of sessions, or "" for a model without states of this size. @param {Pick<Manifest, "symbols">} manifest */
export function capacityOf({ symbols }) {
  return symbols.find(({ input, axis }) => !input && axis === 1)?.name ?? "";
}

/** True if sessions keep states, which grow or are replaced. @param {Manifest} manifest */
export function hasStates(manifest) {
  return Boolean(lengthOf(manifest) || manifest.states.length);
}

/** The loops of a program, in order. Each has a symbol that counts its iterations. @param {Program} program */
export function loops({ steps }) {
  return steps.flatMap(({ control }) => (control?.kind === "loop" ? [control] : []));
}

/** The largest number of iterations of a loop. @param {Control} loop @param {Symbols} symbols */
export function tripCount({ trips }, symbols) {
  return trips === null ? UNLIMITED : evaluate(trips, symbols);
}

/**
 * The exact value of a size. Throws `InputError` if a JavaScript number cannot represent it.
 * @param {Size} size
 * @param {Symbols} symbols
 * @returns {number}
 */
export function evaluate(size, symbols) {
  if (typeof size === "number") return size;
  if (typeof size === "string") return symbols[size];
  const [operator, ...operands] = size;
  const [a, b, c] = operands.map((operand) => evaluate(operand, symbols));
  const value = +OPERATORS[operator](a, b, c) + 0; // turns -0 into 0
  if (Number.isSafeInteger(value)) return value;
  throw new InputError(`with these inputs a size is beyond ${Number.MAX_SAFE_INTEGER}`);
}

/** True if all symbols in a size have values. @param {Size} size @param {Symbols} values @returns {boolean} */
function isKnown(size, values) {
  if (typeof size === "number") return true;
  if (typeof size === "string") return Object.hasOwn(values, size);
  return /** @type {Size[]} */ (size.slice(1)).every((operand) => isKnown(operand, values));
}

/**
 * The symbols, and the named sizes of a program as far as these symbols decide them.
 * @param {Program} program
 * @param {Symbols} symbols
 * @returns {Symbols}
 */
export function valuesOf({ sizes }, symbols) {
  const values = { ...symbols };
  for (const name in sizes) if (isKnown(sizes[name], values)) values[name] = evaluate(sizes[name], values);
  return values;
}

/**
 * The symbols in a shape, also behind the names of `sizes`.
 * @param {Size[]} shape
 * @param {Record<string, Size>} [sizes]
 * @returns {Set<string>}
 */
export function symbolsOf(shape, sizes = {}) {
  /** @type {Set<string>} */
  const names = new Set();
  const visit = (/** @type {Size} */ size) => {
    if (Array.isArray(size)) for (const operand of /** @type {Size[]} */ (size.slice(1))) visit(operand);
    else if (typeof size === "string" && Object.hasOwn(sizes, size)) visit(sizes[size]);
    else if (typeof size === "string") names.add(size);
  };
  shape.forEach(visit);
  return names;
}

/**
 * The bytes of each buffer by name, if all symbols in its shape are bound.
 * @param {Program} program
 * @param {Symbols} symbols
 * @returns {Map<string, number>}
 */
export function bufferBytes(program, symbols) {
  const values = valuesOf(program, symbols);
  /** @type {Map<string, number>} */
  const sizes = new Map();
  for (const { name, dtype, shape } of program.buffers) {
    if (!shape.every((size) => isKnown(size, values))) continue;
    const bytes = shape.reduce((/** @type {number} */ product, size) => product * evaluate(size, values), arrayOf(dtype).BYTES_PER_ELEMENT);
    sizes.set(name, checkedBytes(name, bytes));
  }
  return sizes;
}

/** The bytes, or 0 if symbols that are not checked yet make them negative. @param {string} name @param {number} bytes */
function checkedBytes(name, bytes) {
  if (bytes <= LARGEST_BUFFER) return Math.max(bytes, 0);
  throw new InputError(`with these inputs "${name}" takes ${bytes} bytes: more than ${LARGEST_BUFFER}`);
}

/**
 * The weights files that contain constants of these buffers.
 * @param {Pick<Manifest, "weights">} manifest
 * @param {Buffer[]} buffers
 */
export function neededFiles({ weights }, buffers) {
  const tensors = new Set(buffers.map((b) => b.tensor));
  return weights.filter((f) => Object.keys(f.tensors).some((t) => tensors.has(t)));
}
