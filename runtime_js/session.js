// Sessions of a model with states. The twin of webmlc/host/session.py.
//
//   const session = await model.session({ capacity: 1024 });
//   const { logits } = await session.run({ input_ids });
//
// A state grows by the rows of each run, or is replaced by each run. A state that is replaced is zero at first.
// A saved session is a safetensors file: the bytes of its header, the header as JSON, then the rows of all states.

import { CarriedSession } from "./carried_session.js";
import { DisposedError, InputError } from "./errors.js";
import { bindMembers } from "./members.js";
import { axisOf, newStates, readStates, releaseStates, stateSizes, writeStates } from "./session_states.js";
import { capacityOf, hasStates, lengthOf } from "./sizes.js";
import { readTensors, writeTensors } from "./tensor_file.js";

/** @import { Model } from "./model.js" */
/** @import { Manifest, Symbols } from "./types.d.ts" */
/** @import { RunOptions } from "./webmlc.js" */

/** Open a session. @param {Model} model @param {Manifest} manifest @param {number} [capacity] */
export function openSession(model, manifest, capacity) {
  return manifest.carried.length ? new CarriedSession(model, manifest, capacity) : new Session(model, manifest, capacity);
}

class Session {
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
    const metadata = { length: String(this.length), sizes: JSON.stringify(stateSizes(this.#manifest, this.#states.symbols ?? {})) };
    return writeTensors(
      rows.map(([name, bytes]) => ({ name, dtype: "U8", shape: [bytes.length], bytes })),
      metadata,
    );
  }

  /** @param {Uint8Array} data */
  async load(data) {
    this.#check();
    const { metadata, tensors } = readTensors(data);
    const { length, sizes } = sizesOf(metadata);
    const rows = tensors.map(({ name, bytes }) => /** @type {[string, Uint8Array]} */ ([name, bytes]));
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
 * The length of a saved session, and the sizes of its inputs. Throws InputError for other data.
 * @param {Record<string, string>} metadata
 * @returns {{ length: number, sizes: Symbols }}
 */
function sizesOf({ length, sizes = "{}" }) {
  try {
    if (length !== undefined) return { length: Number(length), sizes: JSON.parse(sizes) };
  } catch {
    // JSON.parse says no more than the error below
  }
  throw new InputError("the data is no saved session of this model");
}
