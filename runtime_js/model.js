// Load a package and run it. The twin of webmlc/host/load.py.

import { fromData, InputError, InternalError, PackageError, toData, WebmlcError } from "./errors.js";
import { arrayOf } from "./dtypes.js";
import { bind, bindFromMemory, checkCounts, checkRequirements, fetchManifest, shapeOf } from "./manifest.js";
import { runs } from "./memory_plan.js";
import { here, isNode, keepAlive, sharingObstacle } from "./platform.js";
import { evaluate, neededFiles } from "./sizes.js";
import { chooseVariant, WasmDevice } from "./wasm_device.js";
import { fetchFile } from "./weights.js";

/** @typedef {import("./types.d.ts").Device} Device */
/** @typedef {import("./types.d.ts").Executor} Executor */
/** @typedef {import("./types.d.ts").Manifest} Manifest */
/** @typedef {import("./types.d.ts").Program} Program */
/** @typedef {import("./types.d.ts").States} States */
/** @typedef {import("./types.d.ts").Symbols} Symbols */
/** @typedef {import("./types.d.ts").Transfers} Transfers */
/** @typedef {import("./webmlc.js").LoadOptions} LoadOptions */
/** @typedef {import("./webmlc.js").Tensor} Tensor */
/** @typedef {import("./webmlc.js").TypedArray} TypedArray */
/** @typedef {import("./wasm_device.js").Variant} Variant */
/**
 * The options of `load` after they were checked.
 * @typedef {LoadOptions & { device: "auto" | Device, threads: number, threadsReason: string, inlineMilliseconds: number }} Options
 */
/** A program and the reason why it was chosen. @typedef {{ device: Device, deviceReason: string }} Choice */
/** @typedef {Partial<Record<Device, Executor>>} Executors */
/**
 * The chosen program and its executors.
 * @typedef {Choice & { variant: Variant | null, resources: import("./webmlc.js").Model["resources"], executors: Executors, readsInputsFirst: boolean }} Session
 */

const MAX_DEFAULT_THREADS = 8;

/** Check the options of `load`, and open a session. @param {string | URL} url @param {LoadOptions} options */
export async function openModel(url, { device = "auto", threads, variant, inlineMilliseconds = 5, onProgress }) {
  const expect = (/** @type {boolean} */ holds, /** @type {Record<string, unknown>} */ option, /** @type {string} */ values) => {
    const [[name, value]] = Object.entries(option);
    if (!holds) throw new InputError(`${name} is ${JSON.stringify(value)}, expected ${values}`);
  };
  expect(["auto", "wasm", "webgpu"].includes(device), { device }, '"auto", "wasm" or "webgpu"');
  expect([undefined, "dot", "relaxed", "simd128"].includes(variant), { variant }, '"dot", "relaxed" or "simd128"');
  expect(typeof inlineMilliseconds === "number" && inlineMilliseconds >= 0, { inlineMilliseconds }, "a number of at least 0");
  const options = { device, variant, inlineMilliseconds, onProgress, ...chooseThreads(threads) };
  if (!URL.canParse(url, here())) throw new InputError(`${JSON.stringify(url)} is no URL of a package's folder`);
  const base = new URL(url, here());
  if (!base.pathname.endsWith("/")) base.pathname += "/";
  // If a worker is likely to be needed, it starts while the manifest is downloaded.
  const cpu = device === "webgpu" ? null : new WasmDevice(base);
  try {
    const manifest = await fetchManifest(base);
    const session = (/** @type {WasmDevice | null} */ wasm) => openSession(base, manifest, options, wasm);
    return new Model(base, manifest, options, () => session(null), await session(cpu));
  } catch (error) {
    cpu?.dispose();
    throw error;
  }
}

/**
 * Open the program for the GPU or for the CPU. With `auto`, if the program for the GPU fails to open, open that for the CPU.
 * @param {URL} base
 * @param {Manifest} manifest
 * @param {Options} options
 * @param {WasmDevice | null} cpu  the CPU, if its worker starts already
 * @returns {Promise<Session>}
 */
async function openSession(base, manifest, options, cpu) {
  const { wasm, webgpu } = manifest.programs;
  const { device } = options;
  if (device !== "auto" && !manifest.programs[device]) {
    const devices = Object.keys(manifest.programs);
    throw new PackageError(`the package was built for ${devices} only; build it with --target ${device} or --target both`);
  }
  if (device === "wasm" || !webgpu) {
    const deviceReason = webgpu || device === "wasm" ? "requested" : "the package has no webgpu program";
    return openExecutors(base, manifest, options, { device: "wasm", deviceReason }, null, cpu);
  }
  const mayFallBack = device === "auto" && wasm !== undefined;
  let spare = cpu;
  try {
    /** @type {Choice} */
    const choice = { device: "webgpu", deviceReason: mayFallBack ? "the GPU adapter is hardware" : "requested" };
    let adapter = null;
    if (mayFallBack || usedDevices(manifest, "webgpu").has("webgpu")) {
      const { findAdapter } = await import("./adapter.js");
      adapter = await findAdapter(mayFallBack);
    } else choice.deviceReason += "; every step runs on the CPU";
    spare = null;
    return await openExecutors(base, manifest, options, choice, adapter, cpu);
  } catch (cause) {
    const error = cause instanceof WebmlcError ? cause : fromData(toData(cause));
    if (!mayFallBack) throw error;
    return openExecutors(base, manifest, options, { device: "wasm", deviceReason: error.message }, null, spare);
  }
}

/**
 * Load the chosen program on each of the devices that it uses.
 * @param {URL} base
 * @param {Manifest} manifest
 * @param {Options} options
 * @param {Choice} choice
 * @param {GPUAdapter | null} adapter
 * @param {WasmDevice | null} cpu  the CPU, if its worker starts already
 * @returns {Promise<Session>}
 */
async function openExecutors(base, manifest, options, choice, adapter, cpu) {
  const { device } = choice;
  const program = /** @type {Program} */ (manifest.programs[device]);
  const devices = usedDevices(manifest, device);
  const modules = (devices.has("wasm") && program.modules) || {};
  const variant = chooseVariant(modules, options.variant);
  const module = variant ? modules[variant] : "";
  const download = downloadBytes(manifest, program, module);
  let loaded = 0;
  let hasFailed = false;
  const onBytes = (/** @type {number} */ bytes) => {
    loaded += bytes;
    if (!hasFailed) options.onProgress?.({ loaded, total: download });
  };
  /** @type {Executors} */
  const executors = {};
  const tasks = [];
  if (devices.has("wasm")) {
    const wasm = cpu ?? new WasmDevice(base);
    executors.wasm = wasm;
    wasm.inlineMilliseconds = options.inlineMilliseconds;
    tasks.push(wasm.load(base, manifest, device, options.threads, module, onBytes));
  } else cpu?.dispose();
  if (devices.has("webgpu")) {
    const load = async () => {
      const { WebGpuDevice } = await import("./webgpu_device.js");
      executors.webgpu = await WebGpuDevice.load(/** @type {GPUAdapter} */ (adapter), base, manifest, device, onBytes);
    };
    tasks.push(load());
  }
  try {
    await Promise.all(tasks);
  } catch (error) {
    hasFailed = true;
    dispose(executors); // ends their downloads
    await Promise.allSettled(tasks);
    dispose(executors); // also those that opened meanwhile
    throw error;
  }
  const { weights, arena, memory, largest_binding: largestBinding, features } = program.resources;
  const readsFirst = readsInputsFirst(manifest, Object.values(executors)[0].stages);
  return { ...choice, variant, executors, readsInputsFirst: readsFirst, resources: { weights, arena, memory, largestBinding, features, download } };
}

/** @param {Executors} executors */
function dispose(executors) {
  for (const executor of Object.values(executors)) executor.dispose();
}

export class Model {
  #base;
  #manifest;
  #open;
  #session;
  /** @type {Promise<unknown>} */
  #queue = Promise.resolve();
  #pending = 0; // the number of runs that have not ended
  #checkedSymbols = ""; // the symbols for which requirements were checked last
  #broken = false;
  #disposed = false;

  /**
   * @param {URL} base
   * @param {Manifest} manifest
   * @param {Options} options
   * @param {() => Promise<Session>} open  opens another session
   * @param {Session} session
   */
  constructor(base, manifest, { threads, threadsReason }, open, session) {
    this.#base = base;
    this.#manifest = manifest;
    this.#open = open;
    this.#session = session;
    this.name = manifest.name;
    const signature = (/** @type {import("./types.d.ts").Port} */ { name, dtype, shape }) => ({ name, dtype, shape });
    this.inputs = manifest.inputs.map(signature);
    this.outputs = manifest.outputs.map(signature);
    this.sequences = manifest.sequences ?? {};
    this.files = Object.keys(manifest.files);
    this.threads = threads;
    this.threadsReason = threadsReason;
  }

  get device() {
    return this.#session.device;
  }

  get deviceReason() {
    return this.#session.deviceReason;
  }

  get variant() {
    return this.#session.variant;
  }

  get resources() {
    return this.#session.resources;
  }

  /** Fetch one of `files`, and check it against its hash. @param {string} path */
  file(path) {
    return keepAlive(fetchFile(this.#base, this.#manifest, path, () => {}));
  }

  /**
   * Run the model, and return the outputs by name. Runs queue up, because they share one memory. The inputs are copied before
   * this returns. A model with states starts without rows, unless a session passes its `states`.
   * @param {Record<string, Tensor | TypedArray>} inputs
   * @param {States} [states]
   * @returns {Promise<Record<string, Tensor>>}
   */
  run(inputs, states) {
    if (this.#length && !states) return keepAlive(this.#runAlone(copyInputs(inputs)));
    const isIdle = !this.#pending;
    const feeds = isIdle && this.#session.readsInputsFirst ? inputs : copyInputs(inputs);
    return this.#enqueue(async () => {
      const { symbols, values, claims } = await this.#execute(feeds, false, states);
      checkCounts(this.#manifest, values);
      if (states) states.length += this.rows(symbols);
      const outputs = this.#manifest.outputs.map((port) => {
        const bytes = /** @type {Uint8Array} */ (values.get(port.buffer));
        const type = arrayOf(port.dtype);
        // Each output gets its own bytes, even if two outputs share a buffer, or if the buffer is an input of the caller.
        const all = new type(/** @type {ArrayBuffer} */ ((claims.has(bytes) ? bytes.slice() : bytes).buffer));
        claims.add(bytes);
        const shape = shapeOf(port, symbols);
        const count = shape.reduce((product, size) => product * size, 1);
        const data = states && count < all.length ? all.slice(0, count) : all; // planned for the capacity
        return [port.name, { dtype: port.dtype, shape, data }];
      });
      return Object.fromEntries(outputs);
    }, isIdle);
  }

  /**
   * Measure the milliseconds of every step, one by one, after its segment ran. The time of a step that runs at load is 0.
   * @param {Record<string, Tensor | TypedArray>} inputs
   * @returns {Promise<import("./webmlc.js").StepTime[]>}
   */
  profile(inputs) {
    const feeds = copyInputs(inputs);
    return this.#enqueue(async () => {
      const states = this.#length ? { id: -1, capacity: this.rows(bind(this.#manifest, feeds).symbols), length: 0 } : undefined;
      const { times } = await this.#execute(feeds, true, states);
      if (states) for (const executor of Object.values(this.#session.executors)) executor.release(states);
      return this.#program.steps.map(({ kernel, device, origin }, i) => ({ kernel, device, origin, milliseconds: times[i] }));
    });
  }

  /**
   * Open a session, whose states have room for `capacity` rows. See webmlc.d.ts.
   * @param {{ capacity: number }} options
   */
  async session({ capacity }) {
    const { Session } = await import("./session.js");
    return new Session(this, this.#manifest, capacity);
  }

  /** The number of rows that a run with these symbols appends to the states. @param {Symbols} symbols */
  rows(symbols) {
    const state = this.#program.buffers.find(({ kind }) => kind === "state");
    return state ? evaluate(state.shape[0], { ...symbols, [this.#length]: 0 }) : 0;
  }

  /** The bytes of the valid rows of each state of a session. @param {States} states @returns {Promise<Transfers>} */
  readStates(states) {
    return this.#enqueue(async () => {
      const executors = Object.values(this.#session.executors);
      return (await Promise.all(executors.map((executor) => executor.readStates(states)))).flat();
    });
  }

  /**
   * Replace the states of a session. `states.length` is the new length, and `symbols` the sizes with which the session begins.
   * @param {States} states
   * @param {Transfers} rows
   * @param {Symbols} [symbols]
   */
  writeStates(states, rows, symbols) {
    const sizes = symbols ?? Object.fromEntries(this.#manifest.symbols.map(({ name }) => [name, 1]));
    const planned = { ...sizes, [this.#length]: states.capacity - this.rows(sizes) };
    return this.#enqueue(async () => {
      const executors = Object.values(this.#session.executors);
      await Promise.all(executors.map((executor) => executor.writeStates(planned, states, rows)));
    });
  }

  /** Free the states of a session, after the runs before. @param {States} states */
  release(states) {
    return this.#enqueue(async () => {
      for (const executor of Object.values(this.#session.executors)) executor.release(states);
    });
  }

  /** Run a model with states without a session. @param {Record<string, any>} inputs */
  async #runAlone(inputs) {
    const { runAlone } = await import("./session.js");
    return runAlone(this, this.#manifest, inputs);
  }

  /** The symbol of the length of sessions, or "". */
  get #length() {
    return this.#manifest.symbols.find(({ input }) => !input)?.name ?? "";
  }

  /** Open another session if a run failed. If that is not possible, the model keeps the old session. */
  restore() {
    return this.#enqueue(async () => {
      const { executors } = this.#session;
      if (!this.#broken && Object.values(executors).every(({ failure }) => !failure)) return;
      const session = await this.#open();
      dispose(this.#disposed ? session.executors : executors);
      if (this.#disposed) throw disposedError();
      this.#session = session;
      this.#broken = false;
    });
  }

  /** Free memory, workers and GPU buffers. The model cannot run afterwards. */
  dispose() {
    this.#disposed = true;
    dispose(this.#session.executors);
    this.#session = { ...this.#session, executors: {} };
  }

  /**
   * Run the segments in order. Returns all symbols, and the bytes of inputs and downloads by buffer. `claims` are the bytes that
   * belong to the caller. If `measure` is true, also returns the milliseconds of every step.
   * @param {Record<string, Tensor | TypedArray>} inputs
   * @param {boolean} [measure]
   * @param {States} [states]
   */
  async #execute(inputs, measure = false, states) {
    let { symbols, values } = bind(this.#manifest, inputs, states?.length);
    /** @type {Symbols} The largest length of the session: memory is planned for it. */
    const longest = states ? { [this.#length]: this.#longest(states, symbols) } : {};
    const key = JSON.stringify(symbols);
    if (key !== this.#checkedSymbols) checkRequirements(this.#manifest, symbols, symbols);
    this.#checkedSymbols = key;
    const claims = new Set(values.values());
    /** @type {number[]} */
    const times = [];
    const { stages } = Object.values(this.#session.executors)[0];
    for (const [i, { segment, uploads: names }] of stages.entries()) {
      if ("bind" in segment) {
        const bytes = /** @type {Uint8Array} */ (values.get(segment.bind));
        const bound = bindFromMemory(this.#program, segment, bytes);
        symbols = { ...symbols, ...bound };
        checkRequirements(this.#manifest, symbols, bound);
        continue;
      }
      if (segment.once) {
        times.push(...Array(segment.last - segment.first).fill(0)); // they ran at load
        continue;
      }
      const executor = this.#session.executors[segment.device];
      if (!executor) throw new InternalError("the model was disposed of during a run");
      /** @type {Transfers} */
      const uploads = names.map((name) => [name, /** @type {Uint8Array} */ (values.get(name))]);
      for (const [name, bytes] of await executor.execute(i, { ...symbols, ...longest }, uploads, states)) values.set(name, bytes);
      if (measure) times.push(...(await executor.profile(i, { ...symbols, ...longest }, uploads, states)));
    }
    return { symbols, values, claims, times };
  }

  /**
   * The largest length of a session to which a run can still append its rows. Throws `InputError` if the session is longer.
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
    return /** @type {Program} */ (this.#manifest.programs[this.device]);
  }

  /**
   * Run a task after those before it.
   * @template T
   * @param {() => Promise<T>} task
   * @param {boolean} [isIdle]  true if no task waits: this one starts at once
   * @returns {Promise<T>}
   */
  #enqueue(task, isIdle = false) {
    this.#pending++;
    const start = async () => {
      try {
        if (this.#disposed) throw disposedError();
        return await task();
      } catch (error) {
        this.#broken ||= !(error instanceof InputError);
        throw error;
      } finally {
        this.#pending--; // before the caller's code continues
      }
    };
    const result = isIdle ? start() : this.#queue.then(start);
    this.#queue = result.catch(() => {});
    return keepAlive(result);
  }
}

/**
 * Copy the arrays of the inputs. Values that are not arrays stay, and `bind` reports them.
 * @param {Record<string, any>} inputs
 * @returns {Record<string, any>}
 */
function copyInputs(inputs) {
  const copies = Object.entries(inputs ?? {}).map(([name, value]) => {
    const data = ArrayBuffer.isView(value) ? value : value?.data;
    const copy = ArrayBuffer.isView(data) ? (/** @type {any} */ (data).slice?.() ?? data) : data;
    return [name, value === data ? copy : { ...value, data: copy }];
  });
  return Object.fromEntries(copies);
}

function disposedError() {
  return new InputError("this model was disposed of; load it again");
}

/** Choose the number of threads. @param {number | undefined} threads @returns {{ threads: number, threadsReason: string }} */
function chooseThreads(threads) {
  if (threads !== undefined && !(Number.isInteger(threads) && threads >= 1)) {
    throw new InputError(`threads is ${threads}, expected a whole number of at least 1`);
  }
  if (threads === 1) return { threads: 1, threadsReason: "requested" };
  if (sharingObstacle) return { threads: 1, threadsReason: sharingObstacle };
  if (threads !== undefined) return { threads, threadsReason: "requested" };
  const cores = globalThis.navigator?.hardwareConcurrency ?? (isNode ? 2 : 1);
  return { threads: Math.max(1, Math.min(cores, MAX_DEFAULT_THREADS)), threadsReason: `the machine has ${cores} logical cores` };
}

/**
 * The devices that the program needs: those of its steps, and its target if a constant is an output or if there are no steps.
 * @param {Manifest} manifest
 * @param {Device} target
 */
function usedDevices(manifest, target) {
  const program = /** @type {Program} */ (manifest.programs[target]);
  const constants = new Set(program.buffers.filter((b) => b.kind === "constant").map((b) => b.name));
  const devices = new Set(runs(program).map((run) => run.device));
  return manifest.outputs.some((o) => constants.has(o.buffer)) || !devices.size ? devices.add(target) : devices;
}

/**
 * True if only the first stage of a run reads the inputs.
 * @param {Manifest} manifest
 * @param {import("./types.d.ts").Stage[]} stages
 */
function readsInputsFirst({ inputs, outputs }, stages) {
  const buffers = new Set(inputs.map(({ buffer }) => buffer));
  const first = stages.findIndex(({ segment }) => "device" in segment && !segment.once);
  const later = stages.slice(first + 1).flatMap(({ segment, uploads }) => ("bind" in segment ? segment.bind : uploads));
  return ![...later, ...outputs.map(({ buffer }) => buffer)].some((name) => buffers.has(name));
}

/**
 * The bytes of the weights, the module and the shaders that a program downloads.
 * @param {Manifest} manifest
 * @param {Program} program
 * @param {string} module
 */
function downloadBytes(manifest, program, module) {
  const weights = neededFiles(manifest, program.buffers).reduce((sum, file) => sum + file.bytes, 0);
  const paths = [module, program.shaders].filter((path) => path !== undefined);
  return paths.reduce((sum, path) => sum + (manifest.files[path]?.bytes ?? 0), weights);
}
