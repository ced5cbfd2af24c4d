// Download the files of a package. Weights are streamed in chunks to the place where they are used.
//
//   in:  a weights file of the manifest, and a function that takes its chunks
//   out: nothing; every chunk is hashed, here or by the thread that takes it, and the hashes are verified after the last one

import { PackageError } from "./errors.js";
import { inflate } from "./platform.js";
import { headOf, wrongFile } from "./wrong_files.js";

/** @import { Base, Loading, Manifest, WeightFile } from "./types.d.ts" */
/** @typedef {{ begin: number, end: number, view: Uint8Array }} Destination */
/** @typedef {Uint8Array<ArrayBuffer>} Bytes */
/** @typedef {{ done: boolean, value: Bytes }} Part */
/** The buffer of a chunk that was taken, and its hash if it was asked for. @typedef {{ buffer: ArrayBuffer, hash: Bytes | null }} Taken */

const COMPRESSED = /\.deflate$/;
const MISSING = "a file of the package is missing";
const MAX_BUFFERS = 6; // buffers with chunks that are not taken yet; more would not fit the cache
const BACKLOG = 4; // if another thread has fewer chunks to take than this, it also hashes the next one
const HASH_BYTES = 32; // of SHA-256

/**
 * Download a whole file of the package, verify it, and decompress it if its name says so.
 * @param {Pick<Loading, "base"> & { manifest: Pick<Manifest, "files">, onBytes?: Loading["onBytes"] }} loading
 * @param {string} path
 * @returns {Promise<ArrayBuffer>}
 */
export async function fetchFile({ base, manifest, onBytes }, path) {
  const entry = manifest.files[path];
  if (!entry) throw new PackageError(`manifest.json: ${path} has no hash`);
  const response = await request(base, path, MISSING);
  const data = await response.arrayBuffer().catch((error) => {
    throw new PackageError(`${path}: the download broke off (${error.message})`);
  });
  const head = headOf(new Uint8Array(data));
  if (data.byteLength !== entry.bytes) throw incomplete(path, data.byteLength, entry.bytes, head);
  await verify(path, data, entry.sha256, head);
  onBytes?.(data.byteLength);
  if (!COMPRESSED.test(path)) return data;
  return inflate(data).catch((error) => {
    throw new PackageError(`${path}: cannot be decompressed (${error.message})`);
  });
}

/**
 * Download one weights file. The request is sent before the first `await`. The response is read after `begin` has resolved.
 * @param {Pick<Loading, "base" | "onBytes">} loading
 * @param {WeightFile} file
 * @param {(chunk: Bytes, start: number, isHashed: boolean) => Promise<Taken> | void} onChunk
 *   takes the chunks in order, and hashes those that are not; the buffer of a chunk is used again when this returns, or when the
 *   promise that it returns gives the buffer back
 * @param {Promise<unknown> | null} [begin]
 * @param {() => number} [backlog]  if another thread takes the chunks: how many it has not taken yet
 */
export async function streamWeights({ base, onBytes }, { path, bytes, chunk_bytes: size, chunks_sha256 }, onChunk, begin, backlog) {
  const response = await request(base, path, MISSING);
  await begin;
  if (!response.body) throw new PackageError(`${path}: the response has no body`);
  const { read, cancel } = readInto(response.body);
  let received = 0;
  let head = new Uint8Array();
  /** Read the next `length` bytes, or fewer at the end of the stream, into `buffer`, which is transferred. */
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
  /** @type {ArrayBuffer[]} If chunks are taken as fast as they arrive, few buffers are used in turn, and stay in the cache. */
  const free = [];
  /** @type {Promise<ArrayBuffer>[]} */
  const inUse = [];
  const hashes = new Uint8Array(HASH_BYTES * Math.ceil(bytes / size));
  /** @type {Promise<{ hash: Bytes | null, taken: Promise<Taken> | void }> | null} Resolves after `onChunk` was called for the last chunk. */
  let last = null;
  const pass = async (/** @type {Bytes} */ data, /** @type {number} */ start, /** @type {typeof last} */ previous) => {
    const isHashed = !backlog || backlog() >= BACKLOG;
    const hash = isHashed ? await hashOf(data) : null;
    await previous;
    return { hash, taken: onChunk(data, start, isHashed) };
  };
  const finish = async (/** @type {Bytes} */ data, /** @type {number} */ start) => {
    const { length } = data;
    last = pass(data, start, last);
    const { hash, taken } = await last;
    const answer = await taken;
    const buffer = answer?.buffer ?? data.buffer;
    hashes.set(hash ?? answer?.hash ?? [], HASH_BYTES * (start / size));
    onBytes(length);
    free.push(buffer);
    return buffer;
  };
  try {
    for (let start = 0; start < bytes; start += size) {
      if (!free.length && inUse.length === MAX_BUFFERS) await Promise.race(inUse);
      const length = Math.min(size, bytes - start);
      const data = await fill(free.pop() ?? new ArrayBuffer(Math.min(size, bytes)), length);
      if (!start) head = headOf(data);
      if (data.length < length) throw incomplete(path, received, bytes, head);
      const use = finish(data, start); // not awaited: one chunk is hashed while the next one is received
      inUse.push(use);
      use.then(() => inUse.splice(inUse.indexOf(use), 1), () => {}); // `Promise.all` below reports errors
    }
    const { buffer } = await fill(free.pop() ?? new ArrayBuffer(1), 1);
    if (received > bytes) throw incomplete(path, received, bytes, head);
    await Promise.all(inUse);
    discard([buffer, ...free]);
    await verify(path, hashes, chunks_sha256, head);
  } catch (error) {
    cancel().catch(() => {});
    throw error;
  }
}

/**
 * Functions that read a stream into a view, and that cancel it. The view is transferred, or if the engine has no byte streams,
 * bytes are copied into it.
 * @param {ReadableStream<Bytes>} body
 * @returns {{ read: (view: Bytes) => Promise<Part>, cancel: () => Promise<void> }}
 */
function readInto(body) {
  try {
    const reader = body.getReader({ mode: "byob" });
    return { read: (view) => /** @type {Promise<Part>} */ (reader.read(view, { min: view.length })), cancel: () => reader.cancel() };
  } catch {
    const reader = body.getReader();
    let remainder = new Uint8Array(0);
    const read = async (/** @type {Bytes} */ view) => {
      const { done, value } = remainder.length ? { done: false, value: remainder } : await reader.read();
      if (done) return { done, value: view.subarray(0, 0) };
      remainder = value.subarray(view.length);
      view.set(value.subarray(0, view.length));
      return { done, value: view.subarray(0, value.length) };
    };
    return { read, cancel: () => reader.cancel() };
  }
}

/**
 * Free buffers now, not when garbage is collected: transfer them to a port that nobody can read.
 * @param {ArrayBuffer[]} buffers
 */
function discard(buffers) {
  const { port1 } = new MessageChannel();
  port1.close();
  port1.postMessage(null, buffers);
}

/**
 * Copy the bytes of each tensor to its place: the bytes `begin` to `end` of the file into `view`.
 * @param {Uint8Array} data
 * @param {number} start  the position of `data` in the file
 * @param {Destination[]} destinations
 */
export function scatter(data, start, destinations) {
  for (const { begin, end, view } of destinations) {
    const from = Math.max(begin, start);
    const to = Math.min(end, start + data.length);
    if (from < to) view.set(data.subarray(from - start, to - start), from - begin);
  }
}

/**
 * Fetch a file of the package.
 * @param {Base} base
 * @param {string} path
 * @param {string} cause  of an HTTP error, for the message
 */
export async function request(base, path, cause) {
  const response = await base.open(path).catch((error) => {
    throw new PackageError(`${path}: cannot be fetched (${error.message})`);
  });
  if (!response.ok) throw new PackageError(`${path}: HTTP status ${response.status}; ${cause}`);
  return response;
}

/** @param {string} path @param {number} actual @param {number} expected @param {Uint8Array} head  the first bytes */
function incomplete(path, actual, expected, head) {
  const problem = wrongFile(head) || `has ${actual} bytes, expected ${expected}: incomplete or altered`;
  return new PackageError(`${path}: ${problem}`);
}

/** The SHA-256 hash of a chunk. Null in an insecure context, which cannot compute it. @param {BufferSource} data */
export async function hashOf(data) {
  return globalThis.crypto?.subtle ? new Uint8Array(await crypto.subtle.digest("SHA-256", data)) : null;
}

/**
 * Check the hash of a file, or of the hashes of its chunks. An insecure context checks sizes only.
 * @param {string} path
 * @param {BufferSource} data
 * @param {string} sha256
 * @param {Uint8Array} head  the first bytes of the file
 */
async function verify(path, data, sha256, head) {
  const hash = await hashOf(data);
  if (!hash) return;
  const hex = Array.from(hash, (byte) => byte.toString(16).padStart(2, "0")).join("");
  const problem = wrongFile(head) || "its SHA-256 differs from the manifest's: corrupted or altered";
  if (hex !== sha256) throw new PackageError(`${path}: ${problem}`);
}
