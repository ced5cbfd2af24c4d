// Sessions of a model with states. The twin of webmlc/host/session.py.
//
//   const session = await model.session({ capacity: 1024 });
//   const { logits } = await session.run({ input_ids });
//
// A state grows by the rows of each run, or is replaced by each run. A state that is replaced is zero at first.
// A saved session is a safetensors file: the bytes of its header, the header as JSON, then the rows of all states.

import { DisposedError, InputError } from "./errors.js";
import { bindMembers } from "./members.js";
import { axisOf, newStates, readStates, releaseStates, stateSizes, writeStates } from "./session_states.js";
import { capacityOf, hasStates, lengthOf } from "./sizes.js";

/** @import { Model } from "./model.js" */
/** @import { Manifest, Symbols, Transfers } from "./types.d.ts" */
/** @import { RunOptions } from "./webmlc.js" */

export class Session {
  #model;
  #manifest;
  #states;
  #disposed = false;

  /** @param {Model} model @param {Manifest} manifest @param {number} [capacity] */
  constructor(model, manifest, capacity) {
    if (!hasStates(manifest)) throw new InputError("this model has no states, so it has no sessions; call model.run");
    if (!lengthOf(manifest) && !capacityOf(manifest)) capacity ??= 1;
    if (capacity === undefined) throw new InputError("capacity is missing: this model has states that grow");
    if (!(Number.isInteger(capacity) && capacity >= 1)) {
      throw new InputError(`capacity is ${capacity}, expected a whole number of at least 1`);
    }
    this.#model = model;
    this.#manifest = manifest;
    this.#states = newStates(capacity);
    bindMembers(this);
  }

  get capacity() {
    return this.#states.capacity;
  }

  get length() {
    return this.#states.length;
  }

  /** @param {Record<string, any>} inputs @param {RunOptions} [options] */
  async run(inputs, options) {
    this.#check();
    return this.#model.run(inputs, options, this.#states);
  }

  /** @param {number} length */
  truncate(length) {
    this.#check();
    if (this.#manifest.states.some(({ past }) => axisOf(past, this.#manifest) < 0)) {
      throw new InputError("the model has states that do not grow: call reset, or load");
    }
    if (!(Number.isInteger(length) && length >= 0 && length <= this.length)) {
      throw new InputError(`length is ${length}, expected a number from 0 to ${this.length}`);
    }
    this.#states.length = length;
  }

  async reset() {
    this.#check();
    const states = this.#states;
    this.#states = newStates(states.capacity);
    await releaseStates(this.#model, states);
  }

  async save() {
    this.#check();
    const rows = await readStates(this.#model, this.#states);
    /** @type {Record<string, any>} */
    const header = { __metadata__: { length: String(this.length), sizes: JSON.stringify(stateSizes(this.#manifest, this.#states.symbols ?? {})) } };
    let end = 0;
    for (const [name, { length }] of rows) {
      header[name] = { dtype: "U8", shape: [length], data_offsets: [end, end + length] };
      end += length;
    }
    const json = new TextEncoder().encode(JSON.stringify(header));
    const data = new Uint8Array(8 + json.length + end);
    new DataView(data.buffer).setUint32(0, json.length, true);
    data.set(json, 8);
    for (const [name, bytes] of rows) data.set(bytes, 8 + json.length + header[name].data_offsets[0]);
    return data;
  }

  /** @param {Uint8Array} data */
  async load(data) {
    this.#check();
    const { length, sizes, rows } = parse(data);
    if (length > this.capacity) throw new InputError(`the saved session has ${length} rows, but capacity is ${this.capacity}`);
    const capacity = sizes[capacityOf(this.#manifest)] ?? this.capacity;
    if (capacity !== this.capacity) throw new InputError(`the saved session has capacity ${capacity}, not ${this.capacity}`);
    if (!rows.length && !length) return this.reset(); // the saved session had not begun
    await writeStates(this.#model, this.#manifest, { ...this.#states, length }, rows, sizes);
    Object.assign(this.#states, { length, symbols: sizes });
  }

  async dispose() {
    if (this.#disposed) return;
    this.#disposed = true;
    await releaseStates(this.#model, this.#states);
  }

  #check() {
    if (this.#disposed) throw new DisposedError("this session was disposed of; open another with model.session");
  }
}

/**
 * The length, the sizes and the rows of a saved session.
 * @param {Uint8Array} data
 * @returns {{ length: number, sizes: Symbols, rows: Transfers }}
 */
function parse(data) {
  try {
    const start = 8 + new DataView(data.buffer, data.byteOffset).getUint32(0, true);
    const { __metadata__: metadata, ...tensors } = JSON.parse(new TextDecoder().decode(data.subarray(8, start)));
    const rows = Object.entries(tensors).map(([name, { data_offsets: [begin, end] }]) => {
      if (start + end > data.length) throw new RangeError("it is truncated");
      return /** @type {[string, Uint8Array]} */ ([name, data.slice(start + begin, start + end)]);
    });
    return { length: Number(metadata.length), sizes: JSON.parse(metadata.sizes ?? "{}"), rows };
  } catch (error) {
    throw new InputError(`the data is no saved session (${/** @type {Error} */ (error).message})`);
  }
}
