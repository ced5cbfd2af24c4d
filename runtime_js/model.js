// A loaded package, which can run any number of times. The twin of the class in webmlc/host/load.py.

import { copyInputs, hasGpuInputs } from "./binder.js";
import { codeOf, InputError, modelDisposed } from "./errors.js";
import { HostValues } from "./host_values.js";
import { checkCounts, checkRequirements } from "./manifest.js";
import { bindMembers } from "./members.js";
import { readByHost } from "./memory_plan.js";
import { holdProcess, keepAlive, releaseProcess } from "./platform.js";
import { hasGpuResults, throwIfAborted } from "./run_options.js";
import { Signature, visibleOutputs } from "./signature.js";
import { evaluate, hasStates, lengthOf, symbolsOf, valuesOf } from "./sizes.js";
import { fetchFile } from "./weights.js";

/** @import { Base, Device, Executor, Manifest, Port, Program, Segment, States, Symbols, Uploads } from "./types.d.ts" */
/** @import { RunOptions, Tensor, TypedArray } from "./webmlc.js" */
/** @typedef {Partial<Record<Device, Executor>>} Executors */
/**
 * A program with its executors, and the reason why it was chosen.
 * @typedef {{
 *   device: Device, deviceReason: string,
 *   variant: import("./variants.js").Variant | null,
 *   shaders: import("./webmlc.js").Model["shaders"],
 *   resources: import("./webmlc.js").Model["resources"],
 *   executors: Executors, overlaps: boolean,
 * }} Loaded  `overlaps`: one run may start before the last has ended, as the program is one segment on a GPU, which keeps their order
 */

const IN_FLIGHT = 3; // runs that overlap: while one is read back, the GPU has another, and the next one is encoded

/** Free the resources of a program. Resolves when its workers have ended. @param {Executors} executors */
export async function dispose(executors) {
  await Promise.all(Object.values(executors).map((executor) => executor.dispose()));
}

/** The fields of a record that have a value. @param {object} record @returns {any} */
function withoutNulls(record) {
  return Object.fromEntries(Object.entries(record).filter(([, value]) => value !== null));
}

export class Model {
  #base;
  #manifest;
  #open;
  #loaded;
  #hasStates;
  #length; // the symbol of the length of sessions, or ""
  #growing; // the size of the rows that a run appends to the states that grow, and a program that names its parts
  #replacesStates; // if a run replaces states: one that ended half-way would leave some of them new
  /** @type {Promise<unknown>} Settles when the next task may start. */
  #queue = Promise.resolve();
  #pending = 0; // the number of tasks that have not ended
  #inFlight = 0; // those of them that have started and may overlap
  /** Lets the next task look whether it may start. */
  #wake = () => {};
  #signature;
  /** The signature of runs without a session, if the model has states: pasts are inputs, and presents outputs. @type {Signature | null} */
  #stateless = null;
  #broken = false; // a run failed, and not for its inputs or its signal
  #trapped = false; // by an InternalError: workers may wait forever, so the next run opens the program again
  /** Opens the program again, for all runs that wait for it. @type {Promise<void> | null} */
  #reopening = null;
  /** Resolves when the workers of a model that was disposed of have ended. @type {Promise<void> | null} */
  #disposal = null;

  /**
   * @param {Base} base
   * @param {Manifest} manifest
   * @param {{ threads: number, threadsReason: string }} options
   * @param {() => Promise<Loaded>} open  opens the program again
   * @param {Loaded} loaded
   */
  constructor(base, manifest, { threads, threadsReason }, open, loaded) {
    this.#base = base;
    this.#manifest = manifest;
    this.#open = open;
    this.#loaded = loaded;
    this.#hasStates = hasStates(manifest);
    this.#length = lengthOf(manifest);
    const [program] = Object.values(manifest.programs); // all programs have the same states
    const states = program.buffers.filter(({ kind }) => kind === "state");
    const growing = states.filter(({ shape }) => symbolsOf(shape, program.sizes).has(this.#length));
    this.#growing = { program, rows: growing[0]?.shape[0] ?? 0 };
    this.#replacesStates = growing.length < states.length;
    this.#signature = new Signature(manifest);
    this.name = manifest.name;
    const signature = (/** @type {Port} */ { name, dtype, shape }) => ({ name, dtype, shape });
    this.inputs = manifest.inputs.map(signature);
    this.outputs = visibleOutputs(manifest).map((port) => (port.name in manifest.shapes ? { ...signature(port), shape: ["..."] } : signature(port)));
    this.sequences = manifest.sequences;
    /** @type {import("./webmlc.js").Model["typed"]} */
    this.typed = Object.fromEntries(Object.entries(manifest.typed).map(([name, kind]) => [name, withoutNulls(kind)]));
    this.files = Object.keys(manifest.files);
    this.threads = threads;
    this.threadsReason = threadsReason;
    bindMembers(this);
  }

  get device() {
    return this.#loaded.device;
  }

  get deviceReason() {
    return this.#loaded.deviceReason;
  }

  get variant() {
    return this.#loaded.variant;
  }

  get shaders() {
    return this.#loaded.shaders;
  }

  get resources() {
    return this.#loaded.resources;
  }

  get gpuDevice() {
    return this.#loaded.executors.webgpu?.device ?? null;
  }

  get filesReason() {
    return this.#base.files?.reason ?? "not requested";
  }

  get memoryBytes() {
    return this.#loaded.executors.wasm?.memoryBytes ?? 0;
  }

  /** Fetch one of `files`, and check it against its hash. @param {string} path */
  file(path) {
    return keepAlive(fetchFile({ base: this.#base, manifest: this.#manifest }, path));
  }

  /**
   * Run the model, and return the outputs by name. Runs queue up, because they share one memory. The caller may change the
   * inputs once this returns. `states` are those of a session; without them a model takes past states as inputs, or starts anew.
   * @param {Record<string, Tensor | TypedArray>} inputs
   * @param {RunOptions} [options]
   * @param {States} [states]
   * @returns {Promise<Record<string, Tensor>>}
   */
  async run(inputs, options, states) {
    const signature = this.#hasStates && !states ? this.#stateless : this.#signature;
    if (!signature) return keepAlive(this.#runAlone(copyInputs(inputs), options));
    const ports = signature.outputs(options);
    const overlaps = this.#loaded.overlaps && !states && !this.#trapped;
    const startsNow = this.#pending === this.#inFlight && this.#inFlight < (overlaps ? IN_FLIGHT : 1);
    // Where values are on the GPU, a download may come before the first upload.
    const usesGpu = this.#loaded.device === "webgpu" && (hasGpuInputs(inputs) || (options?.results && hasGpuResults(options.results)));
    const readsFirst = startsNow && !usesGpu && !this.#trapped && signature.readsInputsFirst(this.#segments(signature, ports));
    const feeds = readsFirst ? inputs : copyInputs(inputs);
    const task = () => this.#run(signature, feeds, ports, options, states);
    return this.#enqueue(task, { startsNow, overlaps, signal: options?.signal });
  }

  /**
   * Execute a run whose turn has come, and return its outputs.
   * @param {Signature} signature
   * @param {Record<string, Tensor | TypedArray>} inputs
   * @param {Port[]} ports  of the outputs
   * @param {RunOptions} [options]
   * @param {States} [states]  of the session
   */
  async #run(signature, inputs, ports, options, states) {
    const results = options?.results;
    const feeds = signature.complete(inputs);
    const { symbols, values, onGpu, used } = await this.#execute(signature, feeds, { ports, states, signal: options?.signal, results });
    if (this.#manifest.checks.length) checkCounts(this.#manifest, values, symbols);
    if (states) {
      states.length += this.rows(symbols);
      states.symbols = symbols;
    }
    const tensors = onGpu && (await onGpu.results(values, symbols));
    /** @type {Record<string, any>} */
    const outputs = {};
    for (const port of ports) {
      const result = /** @type {Record<string, any> | undefined} */ (results)?.[port.name];
      outputs[port.name] = tensors?.[port.name] ?? signature.output(port, /** @type {Uint8Array} */ (values.get(port.buffer)), symbols, used, result);
    }
    return signature.withShapes(outputs);
  }

  /**
   * Measure the milliseconds of every step, one by one, after its segment ran. The time of a step that runs at load is 0.
   * @param {Record<string, Tensor | TypedArray>} inputs
   * @returns {Promise<import("./webmlc.js").StepTime[]>}
   */
  async profile(inputs) {
    const feeds = copyInputs(inputs);
    if (!this.#hasStates) return this.#profile(feeds);
    const { withStates } = await this.#base.runAlone();
    return withStates(this, this.#manifest, feeds, (states, values) => this.#profile(values, states));
  }

  /** @param {Record<string, Tensor | TypedArray>} feeds @param {States} [states] */
  #profile(feeds, states) {
    return this.#enqueue(async () => {
      const { times } = await this.#execute(this.#signature, feeds, { ports: this.#manifest.outputs, states, measure: true });
      return this.#program.steps.map(({ kernel, device, origin }, i) => ({ kernel, device, origin, milliseconds: times[i] }));
    });
  }

  /**
   * Open a session. States that grow have room for `capacity` rows. See webmlc.d.ts.
   * @param {{ capacity?: number }} [options]
   */
  async session({ capacity } = {}) {
    const { openSession } = await this.#base.session();
    return openSession(this, this.#manifest, capacity);
  }

  /** The number of rows that a run with these symbols appends to the states that grow. @param {Symbols} symbols */
  rows(symbols) {
    const { program, rows } = this.#growing;
    return rows === 0 ? 0 : evaluate(rows, valuesOf(program, { ...symbols, [this.#length]: 0 }));
  }

  /**
   * Use the executors, after the runs before.
   * @template T
   * @param {(executors: Executor[]) => Promise<T>} use
   */
  useExecutors(use) {
    return this.#enqueue(() => use(Object.values(this.#loaded.executors)));
  }

  /** Run a model with states without a session. @param {Record<string, any>} inputs @param {RunOptions} [options] */
  async #runAlone(inputs, options) {
    const { runAlone, statelessRuns } = await this.#base.runAlone();
    this.#stateless ??= statelessRuns(this.#manifest);
    if (this.#stateless) return this.run(inputs, options);
    return runAlone(this, this.#manifest, inputs, options);
  }

  /** Open the program again if a run failed or the GPU was lost. If that is not possible, the model keeps the old one. */
  restore() {
    return this.#enqueue(async () => {
      if (this.#broken || Object.values(this.#loaded.executors).some(({ failure }) => failure)) await this.#reopen();
    });
  }

  /** Open the program again, once for all runs that need it now. */
  #reopen() {
    this.#reopening ??= this.#replaceProgram().finally(() => (this.#reopening = null));
    return this.#reopening;
  }

  async #replaceProgram() {
    const { executors } = this.#loaded;
    const loaded = await this.#open();
    dispose(this.#disposal ? loaded.executors : executors);
    if (this.#disposal) throw modelDisposed();
    this.#loaded = loaded;
    this.#broken = this.#trapped = false;
  }

  /** Free memory, workers and GPU buffers. Resolves when the workers have ended. The model cannot run afterwards. */
  dispose() {
    this.#disposal ??= keepAlive(dispose(this.#loaded.executors));
    this.#loaded = { ...this.#loaded, executors: {} };
    return this.#disposal;
  }

  /**
   * Run the segments in order, or as jumps order them. Returns all symbols, and the bytes of inputs and downloads by buffer. If
   * `measure` is true, also returns the milliseconds of every step. The outputs of `ports` are downloaded, but for the outputs that
   * `results` keep on the GPU.
   * `onGpu` is there if values of the run are on the GPU. `used` is the memory of the inputs.
   * @param {Signature} signature
   * @param {Record<string, Tensor | TypedArray>} inputs
   * @param {{ ports: Port[], states?: States, signal?: AbortSignal, results?: RunOptions["results"], measure?: boolean }} options
   */
  async #execute(signature, inputs, { ports, states: session, signal, results, measure = false }) {
    if (this.#trapped) await this.#reopen();
    const { binder } = signature;
    const bound = binder.bind(inputs, session?.length, session?.capacity);
    const { values, isOnGpu } = bound;
    const used = new Set(Array.from(values.values(), ({ buffer }) => buffer));
    const host = new HostValues(this.#program, bound.symbols, values);
    const states = this.#hasStates ? signature.statesOf(bound.symbols, session, Object.values(this.#loaded.executors)) : undefined;
    /** @type {Symbols | null} The length for which memory is planned: the largest from which this run fits into the session. */
    const longest = states && this.#length ? { [this.#length]: this.#longest(states, bound.symbols) } : null;
    /** @type {Symbols | null} Null once a segment binds symbols, until a device needs them all. */
    let sizes = longest ? binder.unique({ ...bound.symbols, ...longest }) : bound.symbols;
    const onGpu = isOnGpu || (results && hasGpuResults(results)) ? this.#onGpu(ports, results, new Set(values.values())) : null;
    const times = Array(measure ? this.#program.steps.length : 0).fill(0);
    const segments = this.#segments(signature, ports);
    for (let next = 0; next < segments.length; ) {
      const segment = segments[next++];
      if (!this.#replacesStates) throwIfAborted(signal);
      if (segment.type !== "run") {
        if (onGpu) await onGpu.download(values, readByHost(segment));
        if (segment.type === "jump" || segment.type === "jump_unless") next = host.next(segment, next);
        else if (segment.type === "bind" || segment.type === "measure") {
          const read = host.bind(segment);
          checkRequirements(this.#manifest, host.symbols, read);
          sizes = null;
        } else host.execute(segment);
        continue;
      }
      if (segment.once) continue; // it ran at load
      const executor = this.#loaded.executors[segment.device];
      if (!executor) throw modelDisposed();
      sizes ??= binder.unique({ ...host.symbols, ...longest });
      if (onGpu && segment.device === "wasm") await onGpu.download(values, segment.uploads);
      /** @type {Uploads} */
      const uploads = segment.uploads.map((name) => [name, /** @type {Uint8Array} */ (values.get(name))]);
      for (const [name, value] of await executor.execute(segment, sizes, uploads, states, onGpu?.receivers)) values.set(name, value);
      if (!measure) continue;
      for (const [i, time] of (await executor.profile(segment, sizes, uploads, states)).entries()) times[segment.first + i] += time;
    }
    return { symbols: host.symbols, values, times, onGpu, used };
  }

  /**
   * The values of a run that are on the GPU.
   * @param {Port[]} ports
   * @param {RunOptions["results"]} results
   * @param {Set<any>} inputs  the values that belong to the caller
   */
  #onGpu(ports, results, inputs) {
    const { webgpu } = this.#loaded.executors;
    if (webgpu?.valuesOf) return webgpu.valuesOf(ports, results, inputs);
    throw new InputError(`a GPUBuffer needs a model on the GPU; this one runs on the CPU: ${this.deviceReason}`);
  }

  /** The segments of a run that returns the outputs of `ports`. @param {Signature} signature @param {Port[]} ports @returns {Segment[]} */
  #segments(signature, ports) {
    const isWhole = signature === this.#signature && ports.length === this.#manifest.outputs.length;
    return isWhole ? this.#program.segments : signature.segments(this.#loaded.device, ports);
  }

  /**
   * The largest length of a session to which a run can still append its rows. Throws `InputError` if the session is longer now.
   * @param {States} states
   * @param {Symbols} symbols
   */
  #longest({ length, capacity }, symbols) {
    const rows = this.rows(symbols);
    if (length + rows <= capacity) return capacity - rows;
    const remedy = "open a session with a larger capacity, or truncate it";
    throw new InputError(`the session holds ${length} of ${capacity} rows, so ${rows} more do not fit; ${remedy}`);
  }

  get #program() {
    return /** @type {Program} */ (this.#manifest.programs[this.#loaded.device]);
  }

  /**
   * Run a task after those before it: when these have ended, or if it overlaps, when fewer than `IN_FLIGHT` runs are left of them.
   * @template T
   * @param {() => Promise<T>} task
   * @param {{ startsNow?: boolean, overlaps?: boolean, signal?: AbortSignal }} [options]
   *   `startsNow`: no task waits, and this one may start; `signal` ends the task before it starts
   * @returns {Promise<T>}
   */
  #enqueue(task, { startsNow = false, overlaps = false, signal } = {}) {
    this.#pending++;
    holdProcess();
    if (!startsNow) {
      const limit = overlaps ? IN_FLIGHT - 1 : 0; // runs that may be in flight when this one starts
      const turn = async () => {
        while (this.#inFlight > limit) await new Promise((resolve) => (this.#wake = () => resolve(null)));
      };
      this.#queue = this.#queue.then(turn, turn);
    }
    const result = startsNow ? this.#start(task, overlaps, signal) : this.#queue.then(() => this.#start(task, overlaps, signal));
    if (!overlaps) this.#queue = result;
    return result;
  }

  /**
   * Start a task whose turn has come.
   * @template T
   * @param {() => Promise<T>} task
   * @param {boolean} overlaps
   * @param {AbortSignal} [signal]
   * @returns {Promise<T>}
   */
  async #start(task, overlaps, signal) {
    if (overlaps) this.#inFlight++;
    try {
      if (this.#disposal) throw modelDisposed();
      throwIfAborted(signal);
      return await task();
    } catch (error) {
      const code = codeOf(error);
      if (code === "input" || (signal?.aborted && error === signal.reason)) throw error;
      if (this.#disposal) throw modelDisposed(); // whatever the run met when its device was gone
      this.#broken = true;
      this.#trapped ||= code === "internal";
      throw error;
    } finally {
      this.#pending--; // before the caller's code continues
      if (overlaps) this.#inFlight--;
      this.#wake();
      releaseProcess();
    }
  }
}
