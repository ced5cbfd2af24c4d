// Write and read safetensors files, in which sessions are saved: the bytes of the header, the header as JSON, then all tensors.

import { InputError } from "./errors.js";

/** A tensor of a file, with the name of its type there. @typedef {{ name: string, dtype: string, shape: readonly number[], bytes: Uint8Array }} SavedTensor */

/**
 * Write a file.
 * @param {SavedTensor[]} tensors
 * @param {Record<string, string>} metadata
 */
export function writeTensors(tensors, metadata) {
  /** @type {Record<string, any>} */
  const header = { __metadata__: metadata };
  let end = 0;
  for (const { name, dtype, shape, bytes } of tensors) header[name] = { dtype, shape, data_offsets: [end, (end += bytes.length)] };
  const json = new TextEncoder().encode(JSON.stringify(header));
  const data = new Uint8Array(8 + json.length + end);
  new DataView(data.buffer).setUint32(0, json.length, true);
  data.set(json, 8);
  for (const { name, bytes } of tensors) data.set(bytes, 8 + json.length + header[name].data_offsets[0]);
  return data;
}

/**
 * Read a file. Throws InputError if it is none.
 * @param {Uint8Array} data
 * @returns {{ metadata: Record<string, string>, tensors: SavedTensor[] }}
 */
export function readTensors(data) {
  try {
    const start = 8 + new DataView(data.buffer, data.byteOffset).getUint32(0, true);
    const { __metadata__: metadata = {}, ...entries } = JSON.parse(new TextDecoder().decode(data.subarray(8, start)));
    const tensors = Object.entries(entries).map(([name, { dtype, shape, data_offsets: [begin, end] }]) => {
      if (start + end > data.length) throw new RangeError("it is truncated");
      return { name, dtype, shape, bytes: data.slice(start + begin, start + end) };
    });
    return { metadata, tensors };
  } catch (error) {
    throw new InputError(`the data is no saved session (${/** @type {Error} */ (error).message})`);
  }
}
