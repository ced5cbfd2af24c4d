// Describe this engine and what it runs on, for the records of a search.

import { bytesOf } from "./compare.js";
import { isNode } from "./threads.js";

/** @import { Platform } from "./types.d.ts" */

// Modules that use a feature, from runtime_js/variants.js, which shows their text.
const SIMD_PROBE = bytesOf("AGFzbQEAAAABBQFgAAF7AwIBAAoIAQYAQQD9Dws=");
const RELAXED_PROBE = bytesOf("AGFzbQEAAAABCAFgA3t7ewF7AwIBAAoNAQsAIAAgASAC/YUCCw==");
const DOT_PROBES = new Map([
  [127, bytesOf("AGFzbQEAAAABBQFgAAF/AwIBAAcFAQFmAAAKJgEkAEGAf/0PQf8A/Q/9DAAAAAAAAAAAAAAAAAAAAAD9kwL9GwAL")],
  [255, bytesOf("AGFzbQEAAAABBQFgAAF/AwIBAAcFAQFmAAAKJgEkAEGAf/0PQf8B/Q/9DAAAAAAAAAAAAAAAAAAAAAD9kwL9GwAL")],
]);

const BROWSERS = Object.entries({ firefox: /Firefox\/([\d.]+)/, chromium: /Chrome\/([\d.]+)/, safari: /Version\/([\d.]+).* Safari/ });

/** @returns {Promise<Platform>} */
export async function describe() {
  const { navigator, process } = /** @type {any} */ (globalThis);
  const cores = navigator?.hardwareConcurrency ?? process?.getBuiltinModule("node:os").availableParallelism();
  return {
    engine: engine(),
    cpu: { architecture: architecture(), cores, features: features() },
    adapter: await adapter(),
    threads: isNode || globalThis.crossOriginIsolated,
  };
}

/** The engine's name and version. */
function engine() {
  const versions = /** @type {any} */ (globalThis).process?.versions;
  const runtime = ["bun", "deno", "node"].find((name) => versions?.[name]); // Bun and Deno say that they are Node, too
  if (runtime) return `${runtime} ${versions[runtime]}`;
  for (const [name, pattern] of BROWSERS) {
    const version = pattern.exec(navigator.userAgent)?.[1];
    if (version) return `${name} ${version}`;
  }
  return "browser 0";
}

/** The CPU's family. Browsers do not tell, but the sign of a new NaN is set on x86 alone. */
function architecture() {
  const number = new Float32Array([Infinity]);
  number[0] = number[0] - number[0];
  return new Uint8Array(number.buffer)[3] === 0xff ? "x86" : "arm";
}

/** The features of WebAssembly that modules may use. */
export function features() {
  const relaxed = WebAssembly.validate(RELAXED_PROBE) && hasExactDot(127);
  const rows = { simd128: WebAssembly.validate(SIMD_PROBE), relaxed, dot: relaxed && hasExactDot(255) };
  return Object.entries(rows).flatMap(([name, isThere]) => (isThere ? [name] : []));
}

/**
 * True if relaxed dot products read the second operand as unsigned up to `largest`, and add without saturation.
 * @param {127 | 255} largest
 */
function hasExactDot(largest) {
  const probe = /** @type {BufferSource} */ (DOT_PROBES.get(largest));
  if (!WebAssembly.validate(probe)) return false;
  const { f } = /** @type {{ f: () => number }} */ (new WebAssembly.Instance(new WebAssembly.Module(probe)).exports);
  return f() === 4 * -128 * largest;
}

/** What the GPU adapter says of itself, or null. */
async function adapter() {
  const info = (await globalThis.navigator?.gpu?.requestAdapter({ powerPreference: "high-performance" }))?.info;
  if (!info) return null;
  const { vendor, architecture, device, description, isFallbackAdapter } = info;
  return { vendor, architecture, device, description, isFallbackAdapter };
}
