// Runs without a session of a model whose runs replace its states: they take and return the states.
//
//   in:  the manifest of such a model
//   out: a signature in which states are inputs and outputs again
//
// A run uploads and downloads the states with its other inputs and outputs, so that it is one request. The memory of the states
// is that of one session, which all these runs use.

import { arrayOf } from "./dtypes.js";
import { InputError } from "./errors.js";
import { bindSymbols, elementCount, readInputs, shapeOf } from "./manifest.js";
import { stateSizes } from "./session_states.js";
import { Signature } from "./signature.js";
import { capacityOf, lengthOf } from "./sizes.js";

/** @import { Executor, Manifest, Program, States, Symbols } from "./types.d.ts" */

/** True if each run replaces all states of a model, whose sizes do not depend on a session. @param {Manifest} manifest */
export function replacesAllStates(manifest) {
  return manifest.states.length > 0 && !lengthOf(manifest) && !capacityOf(manifest);
}

/** The segments of a program whose states are inputs and outputs: each is on one device. @param {Program} program @returns {Program["segments"]} */
function withStatesMoved({ buffers, steps, segments }) {
  const states = buffers.filter(({ kind }) => kind === "state").map(({ name }) => name);
  const uses = segments.map((segment) => new Set(segment.type === "run" ? steps.slice(segment.first, segment.last).flatMap((step) => step.arguments) : []));
  return segments.map((segment, i) => {
    if (segment.type !== "run") return segment;
    const used = states.filter((name) => uses[i].has(name));
    const isElsewhere = (/** @type {Set<string>[]} */ others, /** @type {string} */ name) => others.some((names) => names.has(name));
    const uploads = used.filter((name) => !isElsewhere(uses.slice(0, i), name));
    const downloads = used.filter((name) => !isElsewhere(uses.slice(i + 1), name));
    return { ...segment, uploads: [...segment.uploads, ...uploads], downloads: [...segment.downloads, ...downloads] };
  });
}

/** A manifest whose states are inputs and outputs. @param {Manifest} manifest @returns {Manifest} */
function withStatesAsPorts(manifest) {
  const { states, inputs, outputs } = manifest;
  const programs = Object.entries(manifest.programs).map(([device, program]) => {
    const buffers = program.buffers.map((buffer) => (buffer.kind === "state" ? { ...buffer, kind: "input" } : buffer));
    return [device, { ...program, buffers, segments: withStatesMoved(program) }];
  });
  return {
    ...manifest,
    inputs: [...inputs, ...states.map(({ past }) => past)],
    outputs: [...outputs, ...states.map(({ past, present }) => ({ ...past, name: present }))],
    programs: Object.fromEntries(programs),
  };
}

export class StatelessRuns extends Signature {
  #sessions; // the manifest of runs in sessions
  #newStates;
  /** @type {States | undefined} */
  #states;
  /** The symbols of the latest run. @type {Symbols | undefined} */
  #symbols;
  #sizes = ""; // of the states

  /** @param {Manifest} manifest @param {() => States} newStates */
  constructor(manifest, newStates) {
    super(withStatesAsPorts(manifest));
    this.#sessions = manifest;
    this.#newStates = newStates;
  }

  /** @override @param {Record<string, any>} inputs */
  complete(inputs) {
    const pasts = this.#sessions.states.map(({ past }) => past);
    const missing = pasts.filter(({ name }) => inputs?.[name] === undefined);
    if (!missing.length) return inputs;
    if (missing.length < pasts.length) throw new InputError(`input "${missing[0].name}" is missing, but other pasts are there`);
    const symbols = bindSymbols(this.#sessions, readInputs(this.#sessions, inputs));
    const zeros = pasts.map((past) => {
      const shape = shapeOf(past, symbols);
      return [past.name, { dtype: past.dtype, shape, data: new (arrayOf(past.dtype))(elementCount(shape)) }];
    });
    return { ...inputs, ...Object.fromEntries(zeros) };
  }

  /** @override @param {Symbols} symbols @param {States | undefined} states @param {Executor[]} executors */
  statesOf(symbols, states, executors) {
    if (symbols === this.#symbols) return this.#states;
    const sizes = JSON.stringify(stateSizes(this.#sessions, symbols));
    const old = this.#states;
    if (old && sizes !== this.#sizes) for (const executor of executors) executor.release(old);
    if (!old || sizes !== this.#sizes) this.#states = this.#newStates();
    this.#symbols = symbols;
    this.#sizes = sizes;
    return this.#states;
  }
}
