// Fill inputs, and compare outputs. The twin of `fill` and `difference` in webmlc/tune/measure/trial.py.

/** @import { TrialBuffer } from "./types.d.ts" */

const HASH = 2654435761; // Knuth's multiplicative hash

/** The byte that fills outputs before a candidate is checked. */
export const POISON = 0x4d;

/** True where a candidate writes the buffer. @param {TrialBuffer} buffer */
export const isOutput = ({ pattern }) => pattern === "";

/** Decode bytes. @param {string} base64 */
export function bytesOf(base64) {
  return Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
}

/** The bytes of an element. Types are named by their bits; two are not. @param {string} dtype */
function elementBytes(dtype) {
  if (dtype === "bool") return 1;
  if (dtype === "bfloat16") return 2;
  return Math.max(1, Number(/\d+/.exec(dtype)?.[0]) >> 3);
}

/** @param {Uint8Array} bytes @param {number} size  of an element, in bytes */
function integers(bytes, size) {
  const arrays = { 1: Int8Array, 2: Int16Array, 4: Int32Array, 8: BigInt64Array };
  const type = arrays[/** @type {1 | 2 | 4 | 8} */ (size)];
  return new type(/** @type {ArrayBuffer} */ (bytes.buffer), bytes.byteOffset, bytes.byteLength / size);
}

/**
 * The bytes of an input: element i is number hash(i + 1000·seed) of the buffer's pattern.
 * @param {TrialBuffer} buffer
 * @param {number} seed  the buffer's number in the trial
 */
export function fill({ size, dtype, pattern }, seed) {
  const bytes = new Uint8Array(size);
  const target = integers(bytes, elementBytes(dtype));
  const source = integers(bytesOf(pattern), elementBytes(dtype));
  for (let i = 0; i < target.length; i++) target[i] = source[(Math.imul(i + 1000 * seed, HASH) >>> 16) % source.length];
  return bytes;
}

/**
 * How two outputs differ, or "" where they are equal: in all bytes, or within a tolerance above 0.
 * @param {Uint8Array} actual
 * @param {Uint8Array} expected
 * @param {string} dtype
 * @param {number} tolerance
 */
export function difference(actual, expected, dtype, tolerance) {
  if (areEqual(actual, expected)) return "";
  if (tolerance === 0) return "the bytes of the results differ";
  if (dtype === "float32") return floatDifference(new Float32Array(actual.slice().buffer), new Float32Array(expected.slice().buffer), tolerance);
  if (dtype === "float64") return floatDifference(new Float64Array(actual.slice().buffer), new Float64Array(expected.slice().buffer), tolerance);
  const units = unitDifference(integers(actual, elementBytes(dtype)), integers(expected, elementBytes(dtype)));
  return units <= 1 ? "" : `the results differ by ${units} units`;
}

/** @param {Uint8Array} a @param {Uint8Array} b */
function areEqual(a, b) {
  for (let i = 0; i < b.length; i++) if (a[i] !== b[i]) return false;
  return true;
}

/** @param {Float32Array | Float64Array} actual @param {Float32Array | Float64Array} expected @param {number} tolerance */
function floatDifference(actual, expected, tolerance) {
  let worst = 0;
  let magnitude = 0;
  for (let i = 0; i < expected.length; i++) {
    if (Number.isFinite(expected[i])) magnitude = Math.max(magnitude, Math.abs(expected[i]));
    const isSame = actual[i] === expected[i] || (Number.isNaN(actual[i]) && Number.isNaN(expected[i]));
    if (!isSame) worst = Math.max(worst, Math.abs(actual[i] - expected[i])); // NaN, and stays so, where only one of two is
  }
  if (worst <= tolerance * magnitude) return "";
  return `the results differ by ${worst.toPrecision(3)}, where the largest is ${magnitude.toPrecision(3)}`;
}

/** @param {ArrayLike<number | bigint>} actual @param {ArrayLike<number | bigint>} expected */
function unitDifference(actual, expected) {
  let worst = 0;
  for (let i = 0; i < expected.length; i++) {
    if (actual[i] !== expected[i]) worst = Math.max(worst, Math.abs(Number(BigInt(actual[i]) - BigInt(expected[i]))));
  }
  return worst;
}
