// The leading thread of a model: owns the memory, binds symbols, runs stages with its helpers.
//
//   in:  the manifest, the module and the weights, chunk by chunk; then stages with the bytes of their uploads
//   out: the bytes of their downloads
//
// Derived buffers are made as soon as their constants are there, while more weights arrive.
//
// Linear memory: control area, slot table, scratch of each thread, constants, activations (see memory_plan.js). It is
// exactly as large as the plan needs. For symbolic shapes it grows, in place as far as its maximum goes; then a larger
// one replaces it.

import { InputError, InternalError, toData } from "./errors.js";
import { boundSymbols, GROWTH, layout, PAGE, runs, SCRATCH_BASE, scratchStride, SLOT_TABLE, stages, usedOn } from "./memory_plan.js";
import { canShareMemory } from "./platform.js";
import { loops, tripCount } from "./sizes.js";
import { announceMemory, instantiate, withHelpers } from "./threads.js";
import { scatter, verify } from "./weights.js";

/** @typedef {import("./types.d.ts").Execute} Execute */
/** @typedef {import("./types.d.ts").Layout} Layout */
/** @typedef {import("./types.d.ts").Program} Program */
/** @typedef {import("./types.d.ts").ModuleExports} ModuleExports */
/** @typedef {import("./types.d.ts").Open} Open */
/** @typedef {import("./types.d.ts").Run} Run */
/** @typedef {import("./types.d.ts").Symbols} Symbols */
/** @typedef {import("./types.d.ts").Transfers} Transfers */
/** @typedef {import("./types.d.ts").WeightFile} WeightFile */
/** `grows` says that it continues a run: memory holds what earlier steps wrote. */
/** @typedef {{ symbols: Symbols, layout: Layout, slots: number[], grows: boolean }} Binding */
/** A step of loading, and the bytes of weights files that it waits for. */
/** @typedef {{ step: number, needs: { file: number, end: number }[] }} EarlyStep */

const MAX_PAGES = 65536;
const MAX_BINDINGS = 16; // cached plans
const WARMING_CALLS = 10_000; // of a loop, at a time
const WARMINGS = 4; // of each loop: then V8 optimises the shortest ones, too

export class Leader {
  /** @type {Map<string, Binding>} */
  bindings = new Map();
  /** @type {Binding | null} */
  bound = null;
  exports = /** @type {ModuleExports} */ ({ run() {}, warm: () => 0 });
  warmings = 0;
  /** @type {WebAssembly.Module | null} */
  module = null;
  ready = 0; // early steps that are done

  /** @param {Open} open */
  constructor({ manifest, own, threads, files, control, ports }) {
    this.manifest = manifest;
    this.own = own;
    this.threads = threads;
    this.program = /** @type {Program} */ (manifest.programs[own]);
    this.stages = stages(manifest, own);
    this.control = control;
    this.helpers = ports;
    // Memory for the smallest run, in which every symbol is 1: loading takes no more, and a batch of one neither.
    const smallest = Object.fromEntries(manifest.symbols.map((s) => [s.name, 1]));
    this.first = this.#plan(JSON.stringify(smallest), smallest);
    const { total } = this.first.layout;
    const fixed = !manifest.symbols.length && !boundSymbols(this.program).length;
    this.memory = allocate(total, fixed ? total : total * GROWTH);
    this.bytes = new Uint8Array(this.memory.buffer);
    this.files = files;
    this.destinations = files.map((file) => this.#destinations(file));
    this.received = files.map(() => 0);
    this.early = this.#early(files);
  }

  /** Instantiate the module, here and in every helper; make what can be made. @param {WebAssembly.Module} module */
  start(module) {
    this.module = module;
    this.exports = instantiate(module, this.memory);
    this.#bind(this.first.symbols);
    const { threads, memory, control } = this;
    for (const [i, helper] of this.helpers.entries()) {
      helper.postMessage({ tid: i + 1, threads, module, memory, control, generation: 0 });
    }
    this.#derive();
  }

  /** The steps that make the derived buffers. @param {WeightFile[]} files @returns {EarlyStep[]} */
  #early(files) {
    const ends = new Map(files.flatMap(({ tensors }, file) => Object.entries(tensors).map(([name, [, end]]) => [name, { file, end }])));
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

  /** Make the derived buffers whose constants have come, in order: alone, as long as a core has more of them to receive. */
  #derive() {
    const { early, received, files } = this;
    const threads = received.every((bytes, i) => bytes === files[i].bytes) ? this.threads : 1;
    for (; this.ready < early.length; this.ready++) {
      const { step, needs } = early[this.ready];
      if (!needs.every(({ file, end }) => end <= received[file])) break;
      this.#runSteps(step, step + 1, threads);
    }
  }

  /** The downloads: views of the memory where it may be shared, else copies. @param {Execute} request @returns {Transfers} */
  execute(request) {
    const { run, downloads } = this.#prepare(request);
    this.#runSteps(run.module_first ?? 0, run.module_last ?? 0);
    return downloads.map((name) => [name, canShareMemory ? this.#view(name) : this.#view(name).slice()]);
  }

  /** Where the uploads of what was executed last lie. @param {Execute} request @returns {Transfers} */
  places({ uploads }) {
    return uploads.map(([name]) => [name, this.#view(name)]);
  }

  /** Milliseconds of each step. @param {Execute} request @returns {number[]} */
  profile(request) {
    const { run } = this.#prepare(request);
    const times = [];
    for (let step = run.module_first ?? 0; step < (run.module_last ?? 0); step++) {
      const before = performance.now();
      this.#runSteps(step, step + 1);
      times.push(performance.now() - before);
    }
    return times;
  }

  /** @param {Execute} request */
  #prepare({ stage, symbols, uploads }) {
    this.#bind(symbols);
    for (const [name, data] of uploads) this.#view(name).set(data);
    const { segment, downloads } = this.stages[stage];
    return { run: /** @type {Run} */ (segment), downloads };
  }

  /** For some tenths of a millisecond, bring the engine to optimise the module's loops, one after the other; false at the end. */
  warm() {
    return this.exports.warm(Math.floor(this.warmings++ / WARMINGS), WARMING_CALLS) !== 0;
  }

  /** @param {number} first @param {number} last */
  #runSteps(first, last, threads = this.threads) {
    if (first === last) return;
    const { run } = this.exports;
    if (this.control && threads > 1) withHelpers(this.memory, this.control, false, () => run(first, last, 0, threads));
    else run(first, last, 0, 1);
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
    if (this.module) this.exports = instantiate(this.module, this.memory);
    if (!this.control) return;
    const generation = announceMemory(this.control);
    for (const helper of this.helpers) helper.postMessage({ memory: this.memory, generation });
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

  /**
   * Put a chunk of a weights file in its place, and use what is complete.
   * @param {number} file
   * @param {Uint8Array<ArrayBuffer>} chunk
   * @param {number} begin
   * @param {boolean} verified
   */
  async take(file, chunk, begin, verified) {
    const { path, chunks, chunk_bytes: size } = this.files[file];
    if (!verified) await verify(path, chunk, chunks[begin / size]);
    scatter(chunk, begin, this.destinations[file]);
    this.received[file] = begin + chunk.length;
    if (this.module) this.#derive();
  }
}

/** @param {number} total bytes @param {number} maximum to which it can grow in place: only addresses are taken for it */
function allocate(total, maximum) {
  const initial = Math.ceil(total / PAGE);
  if (initial > MAX_PAGES) throw new InputError(`with these inputs the model needs ${total} bytes: more than 32-bit memory holds`);
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
