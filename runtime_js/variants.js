// Choose the variant of a package's module that an engine runs fastest.
//
//   in:  the modules of a program by variant, and perhaps a choice
//   out: a variant

import { missingFeature, PackageError } from "./errors.js";

/** @typedef {"dot" | "pairs" | "relaxed" | "simd128"} Variant */

/** Decode bytes. @param {string} base64 */
function bytesOf(base64) {
  return Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
}

// (module (func (param v128 v128 v128) (result v128) (f32x4.relaxed_madd (local.get 0) (local.get 1) (local.get 2))))
const RELAXED_PROBE = bytesOf("AGFzbQEAAAABCAFgA3t7ewF7AwIBAAoNAQsAIAAgASAC/YUCCw==");

// (module (func (result v128) (i8x16.splat (i32.const 0))))
const SIMD_PROBE = bytesOf("AGFzbQEAAAABBQFgAAF7AwIBAAoIAQYAQQD9Dws=");

// (module (func (export "f") (result i32) (i32x4.extract_lane 0 (i32x4.relaxed_dot_i8x16_i7x16_add_s
//   (i8x16.splat (i32.const -128)) (i8x16.splat (i32.const LARGEST)) (v128.const i32x4 0 0 0 0)))))
const DOT_PROBES = new Map([
  [127, bytesOf("AGFzbQEAAAABBQFgAAF/AwIBAAcFAQFmAAAKJgEkAEGAf/0PQf8A/Q/9DAAAAAAAAAAAAAAAAAAAAAD9kwL9GwAL")],
  [255, bytesOf("AGFzbQEAAAABBQFgAAF/AwIBAAcFAQFmAAAKJgEkAEGAf/0PQf8B/Q/9DAAAAAAAAAAAAAAAAAAAAAD9kwL9GwAL")],
]);

/**
 * The relaxed dot product of four bytes -128 and four bytes `largest`. The exact product is -128 * 4 * largest. An engine may read
 * 255 as -1, or add pairs with saturation. Node 20 swaps the operands.
 * @param {127 | 255} largest
 */
function probedDot(largest) {
  try {
    const probe = new WebAssembly.Module(/** @type {BufferSource} */ (DOT_PROBES.get(largest)));
    const { f } = /** @type {{ f: () => number }} */ (new WebAssembly.Instance(probe).exports);
    return f();
  } catch {
    return NaN; // a policy forbids it; the error for the package's module will say so
  }
}

/** True if this engine has WebAssembly and the features that the module uses. @param {BufferSource} module */
function validates(module) {
  return globalThis.WebAssembly?.validate(module) ?? false;
}

/** The variants from fast to slow, and functions that say if this engine runs them. @type {Record<Variant, () => boolean>} */
const VARIANTS = {
  dot: () => VARIANTS.relaxed() && probedDot(255) === -128 * 4 * 255,
  pairs: () => VARIANTS.relaxed() && probedDot(255) === 2 * -32768, // pairs saturate: an engine for x86 without VNNI
  relaxed: () => validates(RELAXED_PROBE) && probedDot(127) === -128 * 4 * 127,
  simd128: () => validates(SIMD_PROBE),
};

/** The names of the variants. */
export const VARIANT_NAMES = /** @type {Variant[]} */ (Object.keys(VARIANTS));

/**
 * The variant of the module to run: `choice`, or the fastest one in the package that the engine runs. Null for a program without
 * steps, which has no module: its outputs are inputs or constants.
 * @param {Record<string, string>} modules
 * @param {Variant | null} [choice]
 * @returns {Variant | null}
 */
export function chooseVariant(modules, choice) {
  if (!Object.keys(modules).length) return null;
  const names = choice ? [choice] : VARIANT_NAMES;
  const variant = names.find((name) => modules[name] && VARIANTS[name]());
  if (variant) return variant;
  if (!VARIANTS.simd128()) throw missingFeature(globalThis.WebAssembly ? "WebAssembly SIMD" : "WebAssembly (lockdown modes remove it)");
  if (choice) throw new PackageError(`this engine cannot run the package's ${choice} module`);
  throw new PackageError("the package has no WebAssembly module that this engine can run");
}
