// Sizes: expressions of the manifest in numbers, and the bytes of buffers.

import { arrayOf } from "./dtypes.js";
import { PackageError } from "./errors.js";

/** @typedef {import("./types.d.ts").Control} Control */
/** @typedef {import("./types.d.ts").Program} Program */
/** @typedef {import("./types.d.ts").Size} Size */
/** @typedef {import("./types.d.ts").Symbols} Symbols */

const UNLIMITED = 2 ** 31 - 1;

/** The loops of a program, in order: each has a symbol that its steps count up. @param {Program} program */
export function loops({ steps }) {
  return steps.flatMap(({ control }) => (control?.kind === "loop" ? [control] : []));
}

/** How many iterations a loop has at most. @param {Control} loop @param {Symbols} symbols */
export function tripCount({ trips }, symbols) {
  return trips === undefined ? UNLIMITED : evaluate(trips, symbols);
}

/**
 * The value of a size.
 * @param {Size} size
 * @param {Symbols} symbols
 * @returns {number}
 */
export function evaluate(size, symbols) {
  if (typeof size === "number") return size;
  if (typeof size === "string") return symbols[size];
  const a = evaluate(size[1], symbols);
  const b = evaluate(size[2], symbols);
  switch (size[0]) {
    case "add":
      return a + b;
    case "sub":
      return a - b;
    case "mul":
      return a * b;
    case "floordiv":
      return Math.floor(a / b);
    case "floormod":
      return a - b * Math.floor(a / b);
    case "min":
      return Math.min(a, b);
    case "max":
      return Math.max(a, b);
  }
  throw new PackageError(`manifest.json: unknown size operator ${size[0]}`);
}

/**
 * The symbols in a shape.
 * @param {Size[]} shape
 * @returns {Set<string>}
 */
export function symbolsOf(shape) {
  /** @type {Set<string>} */
  const found = new Set();
  const visit = (/** @type {Size} */ size) => {
    if (typeof size === "string") found.add(size);
    else if (Array.isArray(size)) for (const operand of /** @type {Size[]} */ (size.slice(1))) visit(operand);
  };
  shape.forEach(visit);
  return found;
}

/**
 * Bytes of each buffer of a program by name, as far as the symbols tell.
 * @param {import("./types.d.ts").Program} program
 * @param {Symbols} symbols
 * @returns {Map<string, number>}
 */
export function bufferBytes(program, symbols) {
  const bytes = (/** @type {{ dtype: string, shape: Size[] }} */ { dtype, shape }) => {
    const width = arrayOf(dtype).BYTES_PER_ELEMENT;
    return shape.reduce((/** @type {number} */ size, d) => size * evaluate(d, symbols), width);
  };
  const known = program.buffers.filter(({ shape }) => [...symbolsOf(shape)].every((name) => name in symbols));
  return new Map(known.map((buffer) => [buffer.name, bytes(buffer)]));
}

/**
 * The weights files that hold a tensor of these buffers.
 * @param {import("./types.d.ts").Manifest} manifest
 * @param {import("./types.d.ts").Buffer[]} buffers
 */
export function neededFiles(manifest, buffers) {
  const tensors = new Set(buffers.map((b) => b.tensor));
  return manifest.weights.files.filter((f) => Object.keys(f.tensors).some((t) => tensors.has(t)));
}
