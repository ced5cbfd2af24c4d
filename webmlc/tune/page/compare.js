// Fill inputs, and compare outputs. The twin of `fill` and `difference` in webmlc/tune/trial.py.

/** @typedef {import("./types.d.ts").TrialBuffer} TrialBuffer */

export const POISON = 0x4d; // the byte that fills outputs before a candidate is checked
const HASH = 2654435761; // Knuth's multiplicative hash

/** Decode bytes. @param {string} base64 */
export function bytesOf(base64) {
  return Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
}

/**
 * Fill an input: element i is number hash(i + 1000·seed) of the buffer's pattern.
 * @param {TrialBuffer} buffer @param {number} elementBytes @param {number} seed  the buffer's number in the trial
 */
export function fill({ size, pattern: base64 }, elementBytes, seed) {
  const pattern = bytesOf(base64);
  const count = pattern.length / elementBytes;
  const bytes = new Uint8Array(size);
  for (let i = 0, at = 0; at < size; i++, at += elementBytes) {
    const number = (Math.imul(i + 1000 * seed, HASH) >>> 16) % count;
    for (let k = 0; k < elementBytes; k++) bytes[at + k] = pattern[number * elementBytes + k];
  }
  return bytes;
}

const BYTES = /** @type {Record<string, number>} */ ({ bool: 1, bfloat16: 2 });

/** The bytes of an element: those that the name of its type says, at least one. @param {string} dtype */
export function elementBytes(dtype) {
  return BYTES[dtype] ?? Math.max(1, Number(/\d+/.exec(dtype)?.[0]) >> 3);
}

/**
 * How two outputs differ, or "" where they are equal: in bytes, or within the tolerance if that is above 0.
 * @param {Uint8Array} actual @param {Uint8Array} expected @param {string} dtype @param {number} tolerance
 */
export function difference(actual, expected, dtype, tolerance) {
  if (actual.every((byte, i) => byte === expected[i])) return "";
  if (!tolerance) return "the bytes of the results differ";
  const [a, e] = [actual, expected].map((bytes) => elements(bytes, dtype));
  const isFloat = dtype === "float32" || dtype === "float64";
  let worst = 0;
  let magnitude = 0;
  for (let i = 0; i < e.length; i++) {
    if (Number.isFinite(e[i])) magnitude = Math.max(magnitude, Math.abs(e[i]));
    if (Object.is(a[i], e[i]) || a[i] === e[i]) continue;
    const error = Math.abs(a[i] - e[i]);
    if (!(error <= worst)) worst = error; // NaN where only one of two is
  }
  if (worst <= (isFloat ? tolerance * magnitude : 1)) return "";
  return isFloat
    ? `the results differ by ${worst.toPrecision(3)}, where the largest is ${magnitude.toPrecision(3)}`
    : `the results differ by ${worst} units`;
}

/** Numbers that lie in bytes; of small floats, the bits as integers. @param {Uint8Array} bytes @param {string} dtype @returns {ArrayLike<number>} */
function elements(bytes, dtype) {
  const buffer = bytes.slice().buffer;
  if (dtype === "float32") return new Float32Array(buffer);
  if (dtype === "float64") return new Float64Array(buffer);
  const size = elementBytes(dtype);
  if (size === 8) return Float64Array.from(new BigInt64Array(buffer), Number);
  return size === 4 ? new Int32Array(buffer) : size === 2 ? new Int16Array(buffer) : new Int8Array(buffer);
}
