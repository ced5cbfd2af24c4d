// The leading thread of a model: owns the memory, binds symbols, runs stages with its helpers.
//
//   in:  the package's URL and manifest, then stages with the bytes of their uploads
//   out: the bytes of their downloads
//
// Linear memory: control area, slot table, scratch of each thread, constants, activations (see memory_plan.js). It is
// exactly as large as the plan needs; for symbolic shapes a larger one replaces it when it must.

import { InternalError, PackageError, toData } from "./errors.js";
import { boundSymbols, GROWTH, layout, PAGE, SCRATCH_BASE, scratchStride, SLOT_TABLE, stages } from "./memory_plan.js";
import { canShareMemory, openWorker } from "./platform.js";
import { loops, neededFiles, tripCount } from "./sizes.js";
import { announceMemory, CONTROL_BYTES, instantiate, runTogether } from "./threads.js";
import { fetchFile, streamWeights } from "./weights.js";

/** @typedef {import("./types.d.ts").Execute} Execute */
/** @typedef {import("./types.d.ts").Layout} Layout */
/** @typedef {import("./types.d.ts").Load} Load */
/** @typedef {import("./types.d.ts").Program} Program */
/** @typedef {import("./types.d.ts").ModuleRun} ModuleRun */
/** @typedef {import("./types.d.ts").Run} Run */
/** @typedef {import("./types.d.ts").Symbols} Symbols */
/** @typedef {import("./types.d.ts").Transfers} Transfers */
/** @typedef {import("./types.d.ts").WorkerDoor} WorkerDoor */
/** `grows` says that it continues a run: memory holds what earlier steps wrote. */
/** @typedef {{ symbols: Symbols, layout: Layout, slots: number[], grows: boolean }} Binding */

const MAX_PAGES = 65536;
const MAX_BINDINGS = 16; // cached plans

export class Leader {
  /**
   * Download, compile and start the helpers, all at the same time.
   * @param {Load} load
   * @param {(bytes: number) => void} onBytes
   */
  static async load(load, onBytes) {
    const leader = new Leader(load);
    const weights = leader.#loadConstants(onBytes);
    weights.catch(() => {}); // reported where it is awaited
    if (load.module) await leader.#compile(load, onBytes);
    await weights;
    leader.#derive();
    return leader;
  }

  /** @param {Load} load */
  constructor({ base, manifest, own, threads }) {
    this.base = new URL(base);
    this.manifest = manifest;
    this.own = own;
    this.threads = threads;
    this.program = /** @type {Program} */ (manifest.programs[own]);
    this.stages = stages(manifest, own);
    this.control = new Int32Array(threads > 1 ? new SharedArrayBuffer(CONTROL_BYTES) : new ArrayBuffer(CONTROL_BYTES));
    /** @type {WorkerDoor[]} */
    this.helpers = [];
    /** @type {Map<string, Binding>} */
    this.bindings = new Map();
    /** @type {Binding | null} */
    this.bound = null;
    this.run = /** @type {ModuleRun} */ (() => {});
    /** @type {WebAssembly.Module | null} */
    this.module = null;
    // Memory for the constants; for the activations too where their size is known.
    const symbols = Object.fromEntries(manifest.symbols.map((s) => [s.name, 0]));
    this.first = layout(manifest, own, "wasm", symbols, threads);
    const { total, arena } = this.first;
    this.memory = allocate(manifest.symbols.length ? total - arena : total);
    this.bytes = new Uint8Array(this.memory.buffer);
  }

  /** Compile the module, instantiate it here and in every helper. @param {Load} load @param {(bytes: number) => void} onBytes */
  async #compile({ manifest, module: path, ports }, onBytes) {
    const started = ports.map(() => this.#openHelper());
    for (const helper of started) helper.catch(() => {}); // reported where it is awaited
    const code = await fetchFile(this.base, manifest, path, onBytes);
    this.module = await WebAssembly.compile(code).catch((error) => {
      throw new PackageError(`${path}: is no valid WebAssembly module here (${error.message})`);
    });
    this.run = instantiate(this.module, this.memory);
    const { threads, module, memory, control } = this;
    for (const [i, port] of ports.entries()) {
      this.helpers[i].post({ tid: i + 1, threads, module, memory, control, seen: 0, port }, [port]);
    }
    await Promise.all(started);
  }

  /** Make the derived buffers from the constants. */
  #derive() {
    const early = this.stages.map(({ segment }) => segment).filter((segment) => "once" in segment);
    if (!early.length) return;
    this.#bind(Object.fromEntries(this.manifest.symbols.map((s) => [s.name, 0])));
    for (const { module_first: first, module_last: last } of /** @type {Run[]} */ (early)) this.#runSteps(first ?? 0, last ?? 0);
  }

  /** The downloads: views of the memory where it may be shared, else copies. @param {Execute} request @returns {Transfers} */
  execute(request) {
    const { run, downloads } = this.#start(request);
    this.#runSteps(run.module_first ?? 0, run.module_last ?? 0);
    return downloads.map((name) => [name, canShareMemory ? this.#view(name) : this.#view(name).slice()]);
  }

  /** Milliseconds of each step. @param {Execute} request @returns {number[]} */
  profile(request) {
    const { run } = this.#start(request);
    const times = [];
    for (let step = run.module_first ?? 0; step < (run.module_last ?? 0); step++) {
      const before = performance.now();
      this.#runSteps(step, step + 1);
      times.push(performance.now() - before);
    }
    return times;
  }

  /** @param {Execute} request */
  #start({ stage, symbols, uploads }) {
    this.#bind(symbols);
    for (const [name, data] of uploads) this.#view(name).set(data);
    const { segment, downloads } = this.stages[stage];
    return { run: /** @type {Run} */ (segment), downloads };
  }

  /** @param {number} first @param {number} last */
  #runSteps(first, last) {
    if (first === last) return;
    if (this.helpers.length) runTogether(this.run, this.memory, this.control, this.threads, first, last);
    else this.run(first, last, 0, 1);
  }

  /** Write the addresses and symbols that the module reads. @param {Symbols} symbols */
  #bind(symbols) {
    const key = JSON.stringify(symbols);
    const binding = this.bindings.get(key) ?? this.#plan(key, symbols);
    if (binding === this.bound) return;
    if (binding.layout.total > this.bytes.length) this.#grow(binding);
    const words = new Int32Array(this.bytes.buffer);
    words.set(binding.slots, SLOT_TABLE / 4);
    words.set([binding.layout.scratch, scratchStride(this.program)], SCRATCH_BASE / 4);
    this.bound = binding;
  }

  /** @param {string} key @param {Symbols} symbols @returns {Binding} */
  #plan(key, symbols) {
    const { program, manifest, own, threads } = this;
    const plan = layout(manifest, own, "wasm", symbols, threads);
    const stated = program.resources.arena.wasm ?? plan.arena;
    if (plan.arena !== stated) throw new InternalError(`the arena takes ${plan.arena} bytes, the manifest says ${stated}`);
    const addresses = program.buffers.map(({ name }) => plan.offsets.get(name) ?? plan.constants.get(name) ?? 0);
    const names = [...manifest.symbols.map((s) => s.name), ...boundSymbols(program)];
    const values = { ...Object.fromEntries(names.map((name) => [name, 0])), ...symbols };
    // Of each loop: its symbol, which the module counts, and its iterations.
    const counts = loops(program).flatMap((loop) => [0, tripCount(loop, values)]);
    const slots = [...addresses, ...names.map((name) => values[name]), ...counts];
    const binding = { symbols, layout: plan, slots, grows: boundSymbols(program).some((name) => name in symbols) };
    if (this.bindings.size >= MAX_BINDINGS) this.bindings.delete([...this.bindings.keys()][0]);
    this.bindings.set(key, binding);
    return binding;
  }

  /** A larger memory with the constants copied, and what a run has written; the helpers get it too. @param {Binding} binding */
  #grow({ layout: { total, arena }, grows }) {
    const constants = total - arena;
    const before = this.bound ? this.bytes.length - constants : 0;
    const old = this.bytes;
    this.memory = allocate(Math.max(total, constants + Math.ceil(before * GROWTH)));
    this.bytes = new Uint8Array(this.memory.buffer);
    this.bytes.set(grows ? old : old.subarray(0, constants));
    if (this.module) this.run = instantiate(this.module, this.memory);
    if (!this.helpers.length) return;
    const seen = announceMemory(this.control, this.helpers.length);
    for (const helper of this.helpers) helper.post({ memory: this.memory, seen });
  }

  /** @param {string} name */
  #view(name) {
    const { layout: plan } = /** @type {Binding} */ (this.bound);
    const address = /** @type {number} */ (plan.offsets.get(name) ?? plan.constants.get(name));
    return this.bytes.subarray(address, address + (plan.sizes.get(name) ?? 0));
  }

  /** Stream every weights file into its place in memory. @param {(bytes: number) => void} onBytes */
  async #loadConstants(onBytes) {
    const addresses = new Map();
    for (const { name, tensor } of this.program.buffers) {
      if (tensor && this.first.constants.has(name)) addresses.set(tensor, this.first.constants.get(name));
    }
    const downloads = neededFiles(this.manifest, this.program).map((file) => {
      const destinations = Object.entries(file.tensors).flatMap(([tensor, [begin, end]]) => {
        const address = addresses.get(tensor);
        return address === undefined ? [] : [{ begin, end, view: this.bytes.subarray(address, address + end - begin) }];
      });
      return destinations.length ? streamWeights(this.base, file, destinations, onBytes) : undefined;
    });
    await Promise.all(downloads);
  }

  /** A helper's worker, which comes up while the module is on its way; resolves when the helper has it. */
  #openHelper() {
    const url = new URL("./wasm_helper.js", import.meta.url);
    const helper = openWorker(url, () => new Worker(new URL("./wasm_helper.js", import.meta.url), { type: "module" }));
    this.helpers.push(helper);
    return new Promise((resolve, reject) => {
      helper.listen(resolve);
      helper.onError((message) => reject(new InternalError(`a thread of the model failed: ${message}`)));
    });
  }
}

/** @param {number} total bytes */
function allocate(total) {
  const pages = Math.ceil(total / PAGE);
  if (pages > MAX_PAGES) throw new InternalError(`the model needs ${total} bytes: more than 32-bit memory holds`);
  try {
    return new WebAssembly.Memory({ initial: pages, maximum: pages, shared: true });
  } catch (error) {
    throw new InternalError(`cannot allocate ${pages * PAGE} bytes for the model (${toData(error).message})`);
  }
}
