// Runs of a model with states without a session.
//
//   in:  the inputs, among them pasts, or none of these
//   out: the outputs, and the presents that are chosen
//
// Such a run is a session of one run, unless runs replace all states of the model: see stateless_runs.js.

import { arrayOf, isGpuBuffer } from "./dtypes.js";
import { InputError } from "./errors.js";
import { bindSymbols, checkTensor, readInputs, shapeOf } from "./manifest.js";
import { chosenOutputs, hasGpuResults, received } from "./run_options.js";
import { axisOf, newStates, readStates, releaseStates, writeStates } from "./session_states.js";
import { capacityOf, evaluate, lengthOf } from "./sizes.js";
import { replacesAllStates, StatelessRuns } from "./stateless_runs.js";

/** @import { Model } from "./model.js" */
/** @import { Manifest, Port, States, Symbols } from "./types.d.ts" */
/** @import { RunOptions, Tensor, TypedArray } from "./webmlc.js" */

/** The signature of runs without a session, or null if they are sessions of one run: `runAlone`. @param {Manifest} manifest */
export function statelessRuns(manifest) {
  return replacesAllStates(manifest) ? new StatelessRuns(manifest, () => newStates(1)) : null;
}

/** The axis of a past that has the capacity of the session, or -1. @param {Port} past @param {Manifest} manifest */
function bufferAxisOf({ shape }, manifest) {
  return capacityOf(manifest) ? shape.indexOf(capacityOf(manifest)) : -1;
}

/**
 * Run a model with states without a session. If its states replace inputs and outputs, it takes and returns these.
 * @param {Model} model
 * @param {Manifest} manifest
 * @param {Record<string, any>} inputs
 * @param {RunOptions} options
 */
export function runAlone(model, manifest, inputs, options = {}) {
  const presents = manifest.states.map(({ past, present }) => ({ ...past, name: present }));
  const names = new Set(chosenOutputs([...manifest.outputs, ...presents], options).map(({ name }) => name));
  const outputs = manifest.outputs.map(({ name }) => name).filter((name) => names.has(name));
  const { signal } = options;
  const arrays = /** @type {Record<string, TypedArray>} */ (options.results ?? {});
  if (hasGpuResults(options.results)) {
    throw new InputError("a model with states that grow keeps results on the GPU only in a session: call model.session");
  }
  const places = Object.fromEntries(Object.entries(arrays).filter(([name]) => outputs.includes(name)));
  return withStates(model, manifest, inputs, async (states, feeds, symbols) => {
    const results = await model.run(feeds, { outputs, results: places, signal }, states);
    if (!presents.some(({ name }) => names.has(name))) return results;
    const rows = new Map(await readStates(model, states));
    const after = { ...states.symbols, ...symbols };
    if (lengthOf(manifest)) after[lengthOf(manifest)] = states.length;
    for (const { past, present, size } of manifest.states) {
      if (!names.has(present)) continue;
      const axis = bufferAxisOf(past, manifest);
      const stored = axis < 0 ? after : { ...after, [capacityOf(manifest)]: states.capacity };
      const tensor = toPresent(past, rows.get(past.buffer), axisOf(past, manifest), stored);
      const result = axis < 0 || size === null ? tensor : resized(tensor, axis, evaluate(size, after));
      results[present] = arrays[present] ? { ...result, data: received({ ...past, name: present }, result.data, arrays[present]) } : result;
    }
    return results;
  });
}

/**
 * Do something with states that hold the pasts in `inputs`, which may be missing, and that have room for one run.
 * @template T
 * @param {Model} model
 * @param {Manifest} manifest
 * @param {Record<string, any>} inputs
 * @param {(states: States, feeds: Record<string, any>, symbols: Symbols) => Promise<T>} use
 */
export async function withStates(model, manifest, inputs, use) {
  const ports = manifest.states;
  const pasts = ports.filter(({ past }) => past.name in inputs);
  const missing = ports.find(({ past }) => !(past.name in inputs));
  if (pasts.length && missing) throw new InputError(`input "${missing.past.name}" is missing, but other pasts are there`);
  const feeds = Object.fromEntries(Object.entries(inputs).filter(([key]) => !pasts.some(({ past }) => past.name === key)));
  /** @type {Map<string, Tensor>} */
  const tensors = new Map(pasts.map(({ past }) => [past.name, readPast(past, inputs[past.name])]));
  const sizeOf = (/** @type {Port} */ past, /** @type {number} */ axis) => /** @type {Tensor} */ (tensors.get(past.name)).shape[axis];
  const growing = pasts.filter(({ past }) => axisOf(past, manifest) >= 0);
  const lengths = new Set(growing.map(({ past }) => sizeOf(past, axisOf(past, manifest))));
  if (lengths.size > 1) throw new InputError(`the pasts have different numbers of rows: ${[...lengths]}`);
  const [length = 0] = lengths;
  const symbols = bindSymbols(manifest, readInputs(manifest, feeds), length);
  const capacity = capacityOf(manifest);
  const buffers = pasts.filter(({ past }) => bufferAxisOf(past, manifest) >= 0);
  const stored = new Set(buffers.map(({ past }) => sizeOf(past, bufferAxisOf(past, manifest))));
  if (stored.size > 1) throw new InputError(`the pasts have different numbers of rows: ${[...stored]}`);
  if (capacity) symbols[capacity] = Math.max(0, ...stored);
  const rows = [model.rows(symbols), ...ports.map(({ rows: size }) => (size === null ? 0 : evaluate(size, symbols)))];
  const states = { ...newStates(Math.max(length, ...stored) + Math.max(...rows) || 1), length };
  try {
    if (pasts.length) {
      const rowsOf = (/** @type {Port} */ past) => {
        const tensor = checkShape(past, /** @type {Tensor} */ (tensors.get(past.name)), symbols);
        const axis = bufferAxisOf(past, manifest);
        return fromPast(axis < 0 ? tensor : resized(tensor, axis, states.capacity), axisOf(past, manifest));
      };
      const contents = pasts.map(({ past }) => /** @type {[string, Uint8Array]} */ ([past.buffer, rowsOf(past)]));
      await writeStates(model, manifest, states, contents, symbols);
    }
    return await use(states, feeds, symbols);
  } finally {
    await releaseStates(model, states);
  }
}

/** Read an input for a state. @param {Port} past @param {unknown} value @returns {Tensor} */
function readPast(past, value) {
  const { shape, data } = checkTensor(past, value);
  if (isGpuBuffer(data)) throw new InputError(`input "${past.name}" is on the GPU: a state stays there only in a session`);
  return { dtype: past.dtype, shape: [...shape], data };
}

/** Check the shape of an input for a state. @param {Port} past @param {Tensor} tensor @param {Symbols} symbols */
function checkShape(past, tensor, symbols) {
  const expected = shapeOf(past, symbols);
  if (`${tensor.shape}` === `${expected}`) return tensor;
  throw new InputError(`input "${past.name}" is ${past.dtype}[${tensor.shape}], expected ${past.dtype}[${expected}]`);
}

/**
 * The rows of a state that an input holds, as bytes. `axis` is the one along which it grows.
 * @param {Tensor} tensor
 * @param {number} axis
 */
function fromPast({ shape, data }, axis) {
  const bytes = new Uint8Array(data.buffer, data.byteOffset, data.byteLength);
  return moved(bytes, shape, axis, data.BYTES_PER_ELEMENT, false);
}

/**
 * A tensor with another size along an axis: without its last elements, or with zeros behind them.
 * @param {Tensor} tensor
 * @param {number} axis
 * @param {number} size
 * @returns {Tensor}
 */
function resized({ dtype, shape, data }, axis, size) {
  const product = (/** @type {readonly number[]} */ sizes) => sizes.reduce((total, n) => total * n, 1);
  const [outer, inner] = [product(shape.slice(0, axis)), product(shape.slice(axis + 1))];
  const result = new (arrayOf(dtype))(outer * size * inner);
  const [from, to] = [shape[axis] * inner, size * inner];
  for (let i = 0; i < outer; i++) result.set(/** @type {any} */ (data.subarray(i * from, i * from + Math.min(from, to))), i * to);
  return { dtype, shape: shape.map((n, a) => (a === axis ? size : n)), data: result };
}

/**
 * The rows of a state as the output that it replaces. `symbols` hold after the run.
 * @param {Port} past
 * @param {Uint8Array | undefined} rows
 * @param {number} axis
 * @param {Symbols} symbols
 * @returns {Tensor}
 */
function toPresent(past, rows, axis, symbols) {
  const shape = shapeOf(past, symbols);
  const type = arrayOf(past.dtype);
  const bytes = moved(/** @type {Uint8Array} */ (rows), shape, axis, type.BYTES_PER_ELEMENT, true);
  return { dtype: past.dtype, shape, data: new type(bytes.buffer) };
}

/**
 * Copy a tensor, and move an axis to the front, or back from the front. `shape` is that with the axis in its place. An axis of
 * -1 does not move.
 * @param {Uint8Array} source
 * @param {number[]} shape
 * @param {number} axis
 * @param {number} width  bytes of an element
 * @param {boolean} back
 */
function moved(source, shape, axis, width, back) {
  if (axis < 0) return source.slice();
  const size = (/** @type {number[]} */ sizes) => sizes.reduce((product, n) => product * n, 1);
  const [outer, count, inner] = [size(shape.slice(0, axis)), shape[axis], size(shape.slice(axis + 1)) * width];
  const result = new Uint8Array(source.length);
  for (let i = 0; i < outer; i++) {
    for (let row = 0; row < count; row++) {
      const [there, front] = [(i * count + row) * inner, (row * outer + i) * inner];
      const [from, to] = back ? [front, there] : [there, front];
      result.set(source.subarray(from, from + inner), to);
    }
  }
  return result;
}
