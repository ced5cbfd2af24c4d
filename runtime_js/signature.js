// The inputs and outputs of a model's runs, with what is computed once for all runs that have them.
//
//   in:  a manifest
//   out: the symbols of a run; the outputs that it returns; its segments

import { Binder } from "./binder.js";
import { arrayOf } from "./dtypes.js";
import { elementCount, shapeOf } from "./manifest.js";
import { readByHost, resultBuffers } from "./memory_plan.js";
import { chosenOutputs, received } from "./run_options.js";
import { selectSegments } from "./transfers.js";

/** @import { Device, Executor, Manifest, Port, Program, Segment, States, Symbols } from "./types.d.ts" */
/** @import { RunOptions, Tensor, TypedArray } from "./webmlc.js" */

export class Signature {
  /** @type {Map<string, Segment[]>} By device and outputs. */
  #segments = new Map();
  /** @type {WeakMap<Segment[], boolean>} */
  #readsFirst = new WeakMap();

  /** @param {Manifest} manifest */
  constructor(manifest) {
    this.manifest = manifest;
    this.binder = new Binder(manifest);
  }

  /** The outputs that a run returns, in the order of the model. @param {RunOptions} [options] */
  outputs(options) {
    return options ? chosenOutputs(this.manifest.outputs, options) : this.manifest.outputs;
  }

  /**
   * An output. Its bytes are copied unless they alone fill their memory.
   * @param {Port} port
   * @param {Uint8Array} bytes
   * @param {Symbols} symbols
   * @param {Set<ArrayBufferLike | GPUBuffer>} used  the memory of the inputs and of earlier outputs, to which this adds that of the output
   * @param {TypedArray} [result]  the array that receives it
   * @returns {Tensor}
   */
  output(port, bytes, symbols, used, result) {
    const type = arrayOf(port.dtype);
    const shape = shapeOf(port, symbols);
    const isAlone = bytes.length === bytes.buffer.byteLength && !used.has(bytes.buffer);
    const { buffer } = isAlone ? bytes : new Uint8Array(bytes);
    used.add(buffer);
    const all = new type(/** @type {ArrayBuffer} */ (buffer));
    const count = elementCount(shape);
    const data = count < all.length ? all.slice(0, count) : all; // in a session it is planned for the capacity
    return { dtype: port.dtype, shape, data: result ? received(port, data, result) : data };
  }

  /** The segments of a run that returns the outputs of `ports`. @param {Device} device @param {Port[]} ports @returns {Segment[]} */
  segments(device, ports) {
    const key = ports === this.manifest.outputs ? device : [device, ...ports.map(({ name }) => name)].join("\n");
    const program = /** @type {Program} */ (this.manifest.programs[device]);
    const segments = this.#segments.get(key) ?? selectSegments(program, resultBuffers({ ...this.manifest, outputs: ports }));
    this.#segments.set(key, segments);
    return segments;
  }

  /**
   * True if only the first of these segments reads the inputs. Jumps may come back to it, and moved inputs are read under other names.
   * @param {Segment[]} segments
   */
  readsInputsFirst(segments) {
    const answer = this.#readsFirst.get(segments);
    if (answer !== undefined) return answer;
    const { inputs, outputs } = this.manifest;
    const buffers = new Set(inputs.map(({ buffer }) => buffer));
    const downloads = new Set(segments.flatMap((segment) => (segment.type === "run" ? segment.downloads : [])));
    const first = segments.findIndex((segment) => segment.type === "run" && !segment.once);
    const later = segments.slice(first + 1).flatMap((segment) => (segment.type === "run" ? segment.uploads : readByHost(segment)));
    const returned = outputs.map(({ buffer }) => buffer).filter((buffer) => !downloads.has(buffer)); // as the inputs they are
    const isInOrder = !segments.some(({ type }) => type === "jump" || type === "jump_unless" || type === "move");
    const readsFirst = isInOrder && ![...later, ...returned].some((name) => buffers.has(name));
    this.#readsFirst.set(segments, readsFirst);
    return readsFirst;
  }

  /** The inputs of a run with those that the caller may leave out. @param {Record<string, any>} inputs */
  complete(inputs) {
    return inputs;
  }

  /**
   * The states of a run with these symbols.
   * @param {Symbols} symbols
   * @param {States | undefined} states  of the session
   * @param {Executor[]} _executors
   * @returns {States | undefined}
   */
  statesOf(symbols, states, _executors) {
    return states;
  }
}
