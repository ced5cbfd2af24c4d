// Package files over the network: verified small files, and weights streamed straight to where they are used.
//
//   in:  a weights file of the manifest, and who takes its bytes
//   out: nothing; every chunk is verified before it is used: here, or by the thread that takes it

import { PackageError } from "./errors.js";
import { open } from "./platform.js";

/** @typedef {import("./types.d.ts").Manifest} Manifest */
/** @typedef {import("./types.d.ts").WeightFile} WeightFile */
/** @typedef {{ begin: number, end: number, view: Uint8Array }} Destination */
/** @typedef {Uint8Array<ArrayBuffer>} Bytes */
/** @typedef {{ done: boolean, value: Bytes }} Part */

const MISSING = "a file of the package is missing";
const MOST_BUFFERS = 6; // with chunks that wait to be taken: more would leave the cache
const BACKLOG = 4; // chunks that another thread has yet to take: with fewer it verifies the next one itself

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
  const response = await request(base, path, MISSING);
  const data = await response.arrayBuffer().catch((error) => {
    throw new PackageError(`${path}: the download broke off (${error.message})`);
  });
  if (data.byteLength !== entry.bytes) throw incomplete(path, data.byteLength, entry.bytes);
  await verify(path, data, entry.sha256);
  onBytes(data.byteLength);
  return data;
}

/**
 * Download one weights file. The request is sent before the first `await`; what it brings is read once `begin` has resolved.
 * @param {URL} base
 * @param {WeightFile} file
 * @param {(chunk: Bytes, start: number, verified: boolean) => Promise<ArrayBuffer> | void} onChunk  takes the chunks in
 *   order; each is overwritten afterwards, or where a promise is returned, once it gives the buffer back
 * @param {(bytes: number) => void} onBytes
 * @param {Promise<unknown> | null} [begin]
 * @param {() => number} [backlog]  chunks that another thread has yet to take; there is one if this is given
 */
export async function streamWeights(base, { path, bytes, chunk_bytes: size, chunks }, onChunk, onBytes, begin, backlog) {
  const response = await request(base, path, MISSING);
  await begin;
  if (!response.body) throw new PackageError(`${path}: the response has no body`);
  const { read, cancel } = readInto(response.body);
  let received = 0;
  /** The next bytes, `length` of them or what is left, in a buffer that is given away for it. */
  const fill = async (/** @type {ArrayBuffer} */ buffer, /** @type {number} */ length) => {
    let filled = 0;
    for (let ended = false; !ended && filled < length; ) {
      const { done, value } = await read(new Uint8Array(buffer, filled, length - filled)).catch((error) => {
        throw new PackageError(`${path}: the download broke off (${error.message})`);
      });
      [ended, buffer, filled] = [done, value.buffer, filled + value.length];
    }
    received += filled;
    return new Uint8Array(buffer, 0, filled);
  };
  /** @type {ArrayBuffer[]} Few are used in turn, and stay in the cache, as long as the chunks are taken as fast as they come. */
  const free = [];
  /** @type {Promise<ArrayBuffer>[]} */
  const inUse = [];
  /** @type {Promise<{ back: Promise<ArrayBuffer> | void }> | null} */
  let taken = null; // the last chunk, and those before it
  const hand = async (/** @type {Bytes} */ data, /** @type {number} */ start, /** @type {typeof taken} */ before) => {
    const here = !backlog || backlog() >= BACKLOG;
    if (here) await verify(path, data, chunks[start / size]);
    await before;
    return { back: onChunk(data, start, here) };
  };
  const finish = async (/** @type {Bytes} */ data, /** @type {number} */ start) => {
    const { length } = data;
    taken = hand(data, start, taken);
    const buffer = (await (await taken).back) ?? data.buffer;
    onBytes(length);
    free.push(buffer);
    return buffer;
  };
  try {
    for (let start = 0; start < bytes; start += size) {
      if (!free.length && inUse.length === MOST_BUFFERS) await Promise.race(inUse);
      const length = Math.min(size, bytes - start);
      const data = await fill(free.pop() ?? new ArrayBuffer(Math.min(size, bytes)), length);
      if (data.length < length) throw incomplete(path, received, bytes);
      const used = finish(data, start); // verifying one chunk overlaps with receiving the next
      inUse.push(used);
      used.then(() => inUse.splice(inUse.indexOf(used), 1), () => {}); // reported where it is awaited
    }
    await fill(free.pop() ?? new ArrayBuffer(1), 1);
    if (received > bytes) throw incomplete(path, received, bytes);
    await Promise.all(inUse);
  } catch (error) {
    cancel().catch(() => {});
    throw error;
  }
}

/**
 * How to read a stream into views that are given away for it (where an engine has no byte streams, by a copy), and to stop it.
 * @param {ReadableStream<Bytes>} body
 * @returns {{ read: (view: Bytes) => Promise<Part>, cancel: () => Promise<void> }}
 */
function readInto(body) {
  try {
    const reader = body.getReader({ mode: "byob" });
    return { read: (view) => /** @type {Promise<Part>} */ (reader.read(view, { min: view.length })), cancel: () => reader.cancel() };
  } catch {
    const reader = body.getReader();
    let rest = new Uint8Array(0);
    const read = async (/** @type {Bytes} */ view) => {
      const { done, value } = rest.length ? { done: false, value: rest } : await reader.read();
      if (done) return { done, value: view.subarray(0, 0) };
      rest = value.subarray(view.length);
      view.set(value.subarray(0, view.length));
      return { done, value: view.subarray(0, value.length) };
    };
    return { read, cancel: () => reader.cancel() };
  }
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

/** @param {URL} base @param {string} path @param {string} cause of a status that says it is not there */
export async function request(base, path, cause) {
  const response = await open(new URL(path, base)).catch((error) => {
    throw new PackageError(`${path}: cannot be fetched (${error.message})`);
  });
  if (!response.ok) throw new PackageError(`${path}: HTTP status ${response.status}; ${cause}`);
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
export async function verify(path, data, sha256) {
  if (!globalThis.crypto?.subtle) return; // an insecure context has no digest; sizes are still checked
  const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", data));
  const hex = Array.from(digest, (byte) => byte.toString(16).padStart(2, "0")).join("");
  if (hex !== sha256) throw new PackageError(`${path}: its SHA-256 differs from the manifest's: corrupted or altered`);
}
