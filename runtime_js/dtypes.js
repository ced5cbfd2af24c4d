// The typed array that holds the elements of each dtype.
//
//   in:  the name of a dtype
//   out: a constructor; its BYTES_PER_ELEMENT is the number of bytes of one element in memory
//
// Other arrays with the same bytes are accepted, too: a Uint8ClampedArray for a Uint8Array, and a Float16Array for float16.

import { PackageError } from "./errors.js";
import { arrayKind } from "./kinds.js";

/** @import { TypedArray } from "./webmlc.js" */

/**
 * Floats of 16 bits or less are held as their bits. Not every engine has Float16Array, and no engine has smaller floats.
 * An integer of 4 or 2 bits takes one byte and lies in the lowest bits of it: the int4 value -1 is the byte 15. The other
 * bits of a byte of input are ignored.
 */
const ARRAYS = {
  bool: Uint8Array,
  int8: Int8Array,
  uint8: Uint8Array,
  int16: Int16Array,
  uint16: Uint16Array,
  int32: Int32Array,
  uint32: Uint32Array,
  int64: BigInt64Array,
  uint64: BigUint64Array,
  float16: Uint16Array,
  bfloat16: Uint16Array,
  float32: Float32Array,
  float64: Float64Array,
  int4: Uint8Array,
  uint4: Uint8Array,
  int2: Uint8Array,
  uint2: Uint8Array,
  float8_e4m3fn: Uint8Array,
  float8_e4m3fnuz: Uint8Array,
  float8_e5m2: Uint8Array,
  float8_e5m2fnuz: Uint8Array,
  float8_e8m0fnu: Uint8Array,
  float6_e2m3fn: Uint8Array,
  float6_e3m2fn: Uint8Array,
  float4_e2m1fn: Uint8Array,
};

/** True if the data of a tensor are on a GPU. @param {any} data @returns {data is GPUBuffer} */
export function isGpuBuffer(data) {
  return typeof data?.mapAsync === "function";
}

/**
 * The array type of a dtype.
 * @param {string} dtype
 */
export function arrayOf(dtype) {
  const type = ARRAYS[/** @type {keyof typeof ARRAYS} */ (dtype)];
  if (!type) throw new PackageError(`manifest.json: unknown dtype ${dtype}`);
  return type;
}

/** True if a value is an array of elements of a dtype. @param {unknown} value @param {string} dtype @returns {value is TypedArray} */
export function isArrayOf(value, dtype) {
  const type = arrayOf(dtype);
  if (ArrayBuffer.isView(value) && value instanceof type) return true; // of this realm, as nearly all are
  const { name } = type;
  const kind = arrayKind(value);
  return kind === name || (kind === "Uint8ClampedArray" && name === "Uint8Array") || (kind === "Float16Array" && dtype === "float16");
}

/** The same elements in the array type of the dtype. @param {TypedArray} data @param {string} dtype @returns {TypedArray} */
export function asStored(data, dtype) {
  const type = arrayOf(dtype);
  return data instanceof type || arrayKind(data) === type.name ? data : new type(/** @type {ArrayBuffer} */ (data.buffer), data.byteOffset, data.length);
}
