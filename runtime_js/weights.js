// Package files over the network: verified small files, and weights streamed straight to where they are used.
//
//   in:  a weights file of the manifest, and who takes its bytes
//   out: nothing; every chunk is hashed before it is handed over

import { PackageError } from "./errors.js";
import { open } from "./platform.js";

/** @typedef {import("./types.d.ts").Manifest} Manifest */
/** @typedef {import("./types.d.ts").WeightFile} WeightFile */
/** @typedef {{ begin: number, end: number, view: Uint8Array }} Destination */

/**
 * A whole package file, checked against the manifest.
 * @param {URL} base
 * @param {Manifest} manifest
 * @param {string} path
 * @param {(bytes: number) => void} onBytes
 * @returns {Promise<ArrayBuffer>}
 */
export async function fetchFile(base, manifest, path, onBytes) {
  const entry = manifest.files[path];
  if (!entry) throw new PackageError(`manifest.json: ${path} has no hash`);
  const response = await request(base, path);
  const data = await response.arrayBuffer().catch((error) => {
    throw new PackageError(`${path}: the download broke off (${error.message})`);
  });
  if (data.byteLength !== entry.bytes) throw incomplete(path, data.byteLength, entry.bytes);
  await verify(path, data, entry.sha256);
  onBytes(data.byteLength);
  return data;
}

/**
 * Download one weights file. The request is sent before the first `await`.
 * @param {URL} base
 * @param {WeightFile} file
 * @param {(chunk: Uint8Array, start: number) => void} onChunk  takes the chunks in order; each is overwritten afterwards
 * @param {(bytes: number) => void} onBytes
 */
export async function streamWeights(base, file, onChunk, onBytes) {
  const response = await request(base, file.path);
  if (!response.body) throw new PackageError(`${file.path}: the response has no body`);
  const reader = response.body.getReader();
  let received = 0;
  let number = 0;
  let filled = 0;
  // Two buffers in turn, which stay in the cache.
  const size = Math.min(file.chunk_bytes, file.bytes);
  const room = (/** @type {ArrayBuffer} */ buffer, /** @type {number} */ index) =>
    new Uint8Array(buffer, 0, Math.max(0, Math.min(size, file.bytes - index * file.chunk_bytes)));
  const finish = async (/** @type {Uint8Array<ArrayBuffer>} */ data, /** @type {number} */ index) => {
    await verify(file.path, data, file.chunks[index]);
    onChunk(data, index * file.chunk_bytes);
    onBytes(data.length);
    return data.buffer;
  };
  let chunk = room(new ArrayBuffer(size), number);
  let free = Promise.resolve(new ArrayBuffer(size));
  for (;;) {
    const { done, value } = await reader.read().catch((error) => {
      throw new PackageError(`${file.path}: the download broke off (${error.message})`);
    });
    if (done) break;
    if (received + value.length > file.bytes) throw incomplete(file.path, received + value.length, file.bytes);
    received += value.length;
    for (let used = 0; used < value.length; ) {
      const count = Math.min(value.length - used, chunk.length - filled);
      chunk.set(value.subarray(used, used + count), filled);
      used += count;
      filled += count;
      if (filled === chunk.length) {
        const buffer = await free; // hashing one chunk overlaps with receiving the next
        free = finish(chunk, number++);
        free.catch(() => {}); // reported where it is awaited
        chunk = room(buffer, number);
        filled = 0;
      }
    }
  }
  await free;
  if (received !== file.bytes) throw incomplete(file.path, received, file.bytes);
}

/**
 * Put the bytes of each tensor in its place: `begin` to `end` of the file into `view`.
 * @param {Uint8Array} data
 * @param {number} start position of `data` in the file
 * @param {Destination[]} destinations
 */
export function scatter(data, start, destinations) {
  for (const { begin, end, view } of destinations) {
    const from = Math.max(begin, start);
    const to = Math.min(end, start + data.length);
    if (from < to) view.set(data.subarray(from - start, to - start), from - begin);
  }
}

/** @param {URL} base @param {string} path */
async function request(base, path) {
  const response = await open(new URL(path, base)).catch((error) => {
    throw new PackageError(`${path}: cannot be fetched (${error.message})`);
  });
  if (!response.ok) throw new PackageError(`${path}: HTTP status ${response.status}; a file of the package is missing`);
  return response;
}

/** @param {string} path @param {number} found @param {number} expected */
function incomplete(path, found, expected) {
  return new PackageError(`${path}: has ${found} bytes, expected ${expected}: incomplete or altered`);
}

/**
 * @param {string} path
 * @param {BufferSource} data
 * @param {string} sha256
 */
async function verify(path, data, sha256) {
  if (!globalThis.crypto?.subtle) return; // an insecure context has no digest; sizes are still checked
  const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", data));
  const hex = Array.from(digest, (byte) => byte.toString(16).padStart(2, "0")).join("");
  if (hex !== sha256) throw new PackageError(`${path}: its SHA-256 differs from the manifest's: corrupted or altered`);
}
