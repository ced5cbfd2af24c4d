// The leading thread of a model: owns the memory, binds symbols, runs stages with its helpers.
//
//   in:  the package's URL and manifest, then stages with the bytes of their uploads
//   out: the bytes of their downloads
//
// Linear memory: control area, slot table, scratch of each thread, constants, activations (see memory_plan.js). It is
// exactly as large as the plan needs. For symbolic shapes it grows, in place as far as its maximum goes; then a larger
// one replaces it.

import { announce, derivedBytes, DERIVING_WORDS, finish } from "./deriving.js";
import { InternalError, PackageError, toData } from "./errors.js";
import { boundSymbols, GROWTH, layout, PAGE, runs, SCRATCH_BASE, scratchStride, SLOT_TABLE, stages, usedOn } from "./memory_plan.js";
import { canShareMemory, openWorker } from "./platform.js";
import { loops, neededFiles, tripCount } from "./sizes.js";
import { announceMemory, instantiate, runTogether } from "./threads.js";
import { fetchFile, scatter, streamWeights } from "./weights.js";

/** @typedef {import("./types.d.ts").Execute} Execute */
/** @typedef {import("./types.d.ts").Layout} Layout */
/** @typedef {import("./types.d.ts").Load} Load */
/** @typedef {import("./types.d.ts").Program} Program */
/** @typedef {import("./types.d.ts").ModuleRun} ModuleRun */
/** @typedef {import("./types.d.ts").Run} Run */
/** @typedef {import("./types.d.ts").Symbols} Symbols */
/** @typedef {import("./types.d.ts").Transfers} Transfers */
/** @typedef {import("./types.d.ts").WeightFile} WeightFile */
/** @typedef {import("./types.d.ts").WorkerDoor} WorkerDoor */
/** `grows` says that it continues a run: memory holds what earlier steps wrote. */
/** @typedef {{ symbols: Symbols, layout: Layout, slots: number[], grows: boolean }} Binding */
/** A step of loading, and the bytes of weights files that it waits for. */
/** @typedef {{ step: number, needs: { file: WeightFile, end: number }[] }} EarlyStep */

const MAX_PAGES = 65536;
const MAX_BINDINGS = 16; // cached plans
const LEAST_BESIDE = 1 << 24; // bytes of derived buffers that are worth a thread of their own

export class Leader {
  /**
   * Download, compile, start the helpers and make the derived buffers, all at the same time. The requests are sent first.
   * @param {Load} load
   * @param {(bytes: number) => void} onBytes
   */
  static async load(load, onBytes) {
    const { base, manifest, own, module } = load;
    const program = /** @type {Program} */ (manifest.programs[own]);
    const here = usedOn(program, "wasm", own);
    const files = neededFiles(manifest, program.buffers.filter(({ name }) => here.has(name)));
    const url = new URL(base);
    const code = module ? fetchFile(url, manifest, module, onBytes) : null;
    const weights = Promise.all(files.map((file) => streamWeights(url, file, (chunk, start) => leader.#take(file, chunk, start), onBytes)));
    for (const download of [code, weights]) download?.catch(() => {}); // reported where it is awaited
    const leader = new Leader(load, files);
    if (code) await leader.#compile(load, code);
    await weights;
    leader.#finishDeriving();
    return leader;
  }

  /** @param {Load} load @param {WeightFile[]} files */
  constructor({ manifest, own, threads, control }, files) {
    this.manifest = manifest;
    this.own = own;
    this.threads = threads;
    this.program = /** @type {Program} */ (manifest.programs[own]);
    this.stages = stages(manifest, own);
    this.control = control;
    /** @type {WorkerDoor[]} */
    this.helpers = [];
    /** @type {Map<string, Binding>} */
    this.bindings = new Map();
    /** @type {Binding | null} */
    this.bound = null;
    this.run = /** @type {ModuleRun} */ (() => {});
    /** @type {WebAssembly.Module | null} */
    this.module = null;
    // Memory for the smallest run, in which every symbol is 1: loading takes no more, and a batch of one neither.
    const smallest = Object.fromEntries(manifest.symbols.map((s) => [s.name, 1]));
    this.first = this.#plan(JSON.stringify(smallest), smallest);
    const { total } = this.first.layout;
    const fixed = !manifest.symbols.length && !boundSymbols(this.program).length;
    this.memory = allocate(total, fixed ? total : total * GROWTH);
    this.bytes = new Uint8Array(this.memory.buffer);
    this.destinations = new Map(files.map((file) => [file, this.#destinations(file)]));
    /** @type {Map<WeightFile, number>} */
    this.received = new Map();
    this.early = this.#early(files);
    this.ready = 0; // early steps whose constants have come
    /** @type {{ door: WorkerDoor, words: Int32Array } | null} */
    this.deriver = null;
  }

  /**
   * Compile the module, instantiate it here and in every helper.
   * @param {Load} load
   * @param {Promise<ArrayBuffer>} code
   */
  async #compile({ module: path, ports }, code) {
    const workers = ports.map(() => this.#openHelper());
    this.helpers = workers.map(({ door }) => door);
    const beside = canShareMemory && derivedBytes(this.program, this.first.layout) >= LEAST_BESIDE;
    if (beside && !workers.length) workers.push(this.#openHelper());
    const started = Promise.all(workers.map(({ started }) => started));
    started.catch(() => {}); // reported where it is awaited
    this.module = await WebAssembly.compile(await code).catch((error) => {
      throw new PackageError(`${path}: is no valid WebAssembly module here (${error.message})`);
    });
    this.run = instantiate(this.module, this.memory);
    const { threads, module, memory, control } = this;
    this.#bind(this.first.symbols);
    if (beside) {
      const words = new Int32Array(new SharedArrayBuffer(DERIVING_WORDS * 4));
      this.deriver = { door: workers[0].door, words };
      this.deriver.door.post({ type: "derive", module, memory, words, steps: this.early.map(({ step }) => step) });
    }
    for (const [i, port] of ports.entries()) {
      this.helpers[i].post({ tid: i + 1, threads, module, memory, control, seen: 0, port }, [port]);
    }
    this.#derive();
    await started;
  }

  /** The steps that make the derived buffers. @param {WeightFile[]} files @returns {EarlyStep[]} */
  #early(files) {
    const ends = new Map(files.flatMap((file) => Object.entries(file.tensors).map(([name, [, end]]) => [name, { file, end }])));
    const tensors = new Map(this.program.buffers.map(({ name, tensor }) => [name, tensor]));
    return runs(this.program)
      .filter(({ once }) => once)
      .flatMap(({ first, last, module_first: base = 0 }) =>
        this.program.steps.slice(first, last).map(({ arguments: names }, i) => {
          const needs = names.flatMap((name) => ends.get(tensors.get(name) ?? "") ?? []);
          return { step: base + i, needs };
        }),
      );
  }

  /** Make the derived buffers whose constants have come, in order, or have them made. */
  #derive() {
    const { early, deriver, received } = this;
    for (; this.ready < early.length; this.ready++) {
      const { step, needs } = early[this.ready];
      if (!needs.every(({ file, end }) => end <= (received.get(file) ?? 0))) break;
      if (!deriver) this.#runSteps(step, step + 1);
    }
    if (deriver) announce(deriver.words, this.ready);
  }

  /** What the deriver has not begun when all weights are there, all threads make together. */
  #finishDeriving() {
    if (!this.deriver) return;
    const { door, words } = this.deriver;
    const done = finish(words, this.helpers.length > 0);
    for (const { step } of this.early.slice(done)) this.#runSteps(step, step + 1);
    if (!this.helpers.length) door.terminate();
    this.deriver = null;
  }

  /** The downloads: views of the memory where it may be shared, else copies. @param {Execute} request @returns {Transfers} */
  execute(request) {
    const { run, downloads } = this.#start(request);
    this.#runSteps(run.module_first ?? 0, run.module_last ?? 0);
    return downloads.map((name) => [name, canShareMemory ? this.#view(name) : this.#view(name).slice()]);
  }

  /** Where the uploads of what was executed last lie. @param {Execute} request @returns {Transfers} */
  places({ uploads }) {
    return uploads.map(([name]) => [name, this.#view(name)]);
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
    if (this.control) runTogether(this.run, this.memory, this.control, this.threads, first, last);
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

  /**
   * The same memory, larger; or another with the constants copied, and what a run has written: the helpers get it, too.
   * @param {Binding} binding
   */
  #grow({ layout: { total, arena }, grows }) {
    const old = this.bytes;
    if (extend(this.memory, total)) {
      this.bytes = new Uint8Array(this.memory.buffer);
      return;
    }
    this.memory = allocate(total, total * GROWTH);
    this.bytes = new Uint8Array(this.memory.buffer);
    this.bytes.set(grows ? old : old.subarray(0, total - arena));
    if (this.module) this.run = instantiate(this.module, this.memory);
    if (!this.control) return;
    const seen = announceMemory(this.control, this.helpers.length);
    for (const helper of this.helpers) helper.post({ memory: this.memory, seen });
  }

  /** @param {string} name */
  #view(name) {
    const { layout: plan } = /** @type {Binding} */ (this.bound);
    const address = /** @type {number} */ (plan.offsets.get(name) ?? plan.constants.get(name));
    return this.bytes.subarray(address, address + (plan.sizes.get(name) ?? 0));
  }

  /** Where each tensor of a weights file belongs. @param {WeightFile} file */
  #destinations(file) {
    const { constants } = this.first.layout;
    const owners = this.program.buffers.filter(({ name }) => constants.has(name));
    const addresses = new Map(owners.map(({ name, tensor }) => [tensor, constants.get(name)]));
    return Object.entries(file.tensors).flatMap(([tensor, [begin, end]]) => {
      const address = addresses.get(tensor);
      return address === undefined ? [] : [{ begin, end, view: this.bytes.subarray(address, address + end - begin) }];
    });
  }

  /** Put a chunk of the weights in its place, and use what is complete. @param {WeightFile} file @param {Uint8Array} chunk @param {number} start */
  #take(file, chunk, start) {
    scatter(chunk, start, this.destinations.get(file) ?? []);
    this.received.set(file, start + chunk.length);
    if (this.bound) this.#derive();
  }

  /** A worker for a helper, which comes up while the module is on its way: its door, and a promise that it has what it needs. */
  #openHelper() {
    const url = new URL("./wasm_helper.js", import.meta.url);
    const door = openWorker(url, () => new Worker(new URL("./wasm_helper.js", import.meta.url), { type: "module" }));
    const started = new Promise((resolve, reject) => {
      door.listen(resolve);
      door.onError((message) => reject(new InternalError(`a thread of the model failed: ${message}`)));
    });
    return { door, started };
  }
}

/** @param {number} total bytes @param {number} maximum to which it can grow in place: only addresses are taken for it */
function allocate(total, maximum) {
  const initial = Math.ceil(total / PAGE);
  if (initial > MAX_PAGES) throw new InternalError(`the model needs ${total} bytes: more than 32-bit memory holds`);
  try {
    return new WebAssembly.Memory({ initial, maximum: Math.min(Math.ceil(maximum / PAGE), MAX_PAGES), shared: true });
  } catch (error) {
    throw new InternalError(`cannot allocate ${initial * PAGE} bytes for the model (${toData(error).message})`);
  }
}

/** Grow to `total` bytes in place; false where the memory cannot. @param {WebAssembly.Memory} memory @param {number} total */
function extend(memory, total) {
  try {
    memory.grow(Math.ceil(total / PAGE) - memory.buffer.byteLength / PAGE);
    return true;
  } catch {
    return false;
  }
}
