// The inputs and outputs of a model's runs, with what is computed once for all runs that have them.
//
//   in:  a manifest
//   out: the symbols of a run; the outputs that it returns; its segments

import { Binder } from "./binder.js";
import { arrayOf } from "./dtypes.js";
import { InputError, PackageError } from "./errors.js";
import { elementCount, shapeOf } from "./manifest.js";
import { readByHost, resultBuffers } from "./memory_plan.js";
import { chosenOutputs, hasGpuResults, received } from "./run_options.js";
import { selectSegments } from "./transfers.js";

/** @import { Device, Executor, Manifest, Port, Program, Segment, States, Symbols } from "./types.d.ts" */
/** @import { RunOptions, Tensor, TypedArray } from "./webmlc.js" */

/** The outputs that callers see. @param {Manifest} manifest */
export function visibleOutputs({ outputs, shapes }) {
  const hidden = new Set(Object.values(shapes));
  return hidden.size ? outputs.filter(({ name }) => !hidden.has(name)) : outputs;
}

/** The option `results` for one output. @param {string} name @param {RunOptions} options @returns {any} */
function resultsOf(name, { results }) {
  if (results === "gpu") return "gpu";
  const result = /** @type {Record<string, any>} */ (results ?? {})[name];
  return result === undefined ? {} : { [name]: result };
}

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

  /** The outputs of the program that a run returns, in the order of the model. @param {RunOptions} [options] */
  outputs(options) {
    const { outputs, shapes } = this.manifest;
    if (!options) return outputs;
    const chosen = new Set(chosenOutputs(visibleOutputs(this.manifest), options).map(({ name }) => name));
    for (const [name, sizes] of Object.entries(shapes)) if (chosen.has(name)) chosen.add(sizes);
    const onGpu = Object.keys(shapes).find((name) => chosen.has(name) && hasGpuResults(resultsOf(name, options)));
    if (onGpu !== undefined) throw new InputError(`output "${onGpu}" has another rank in each run: it cannot stay on the GPU`);
    return outputs.filter(({ name }) => chosen.has(name));
  }

  /** Give the outputs of a run whose rank only the run knows their shapes. @param {Record<string, any>} outputs */
  withShapes(outputs) {
    for (const [name, sizes] of Object.entries(this.manifest.shapes)) {
      if (!(name in outputs)) continue;
      const numbers = Array.from(outputs[sizes].data, Number);
      const [count, rank] = outputs[sizes].shape;
      delete outputs[sizes];
      const isSequence = rank !== undefined;
      const shapes = isSequence ? Array.from({ length: count }, (_, i) => numbers.slice(i * rank, (i + 1) * rank)) : [numbers];
      const { dtype, data } = outputs[name];
      if (numbers.some((size) => size < 0) || shapes.reduce((sum, shape) => sum + elementCount(shape), 0) !== data.length) {
        throw new PackageError(`manifest.json: "${name}" does not have the shape [${shapes.join("], [")}]`);
      }
      let end = 0;
      const tensors = shapes.map((shape) => ({ dtype, shape, data: isSequence ? data.slice(end, (end += elementCount(shape))) : data }));
      outputs[name] = isSequence ? tensors : tensors[0];
    }
    return outputs;
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
