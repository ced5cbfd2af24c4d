// The leader of a model: own the memory, bind symbols, and run stages with the helpers.
//
//   in:  the manifest, the module, the weights in chunks; then stages with the bytes of their uploads
//   out: the bytes of their downloads
//
// Derived buffers are computed as soon as their constants have arrived, while other weights are downloaded.
//
// Linear memory consists of the control area, the slot table, the scratch of each thread, the constants and the activations (see
// memory_plan.js). It is exactly as large as the plan needs. If shapes are symbolic it grows: in place up to its maximum, and
// beyond that a larger memory replaces it. The blocks of sessions are at its end, behind `room` bytes that all runs share.

import { InputError, InternalError, toData } from "./errors.js";
import { CONTROL, PAGE } from "./manifest_records.js";
import {
  boundSymbols,
  checkNew,
  checkPlaces,
  GROWTH,
  layout,
  LENGTH,
  moduleLast,
  NOWHERE,
  runs,
  scratchStride,
  stateBytes,
  statePlaces,
} from "./memory_plan.js";
import { canShareMemory } from "./platform.js";
import { lengthOf, loops, tripCount, valuesOf } from "./sizes.js";
import { announceMemory, instantiate, withHelpers } from "./threads.js";
import { hashOf, scatter } from "./weights.js";

/** @import { Execute, Layout, ModuleExports, Open, StatePlaces, States, Symbols, Transfers, WeightFile } from "./types.d.ts" */
/**
 * `stateSlots` are the slots of states, with their offsets in the block of a session, and `lengthSlot` that of the length.
 * `isMidRun` is true if earlier steps of the run have written to memory already.
 * @typedef {{ symbols: Symbols, layout: Layout, slots: number[], stateSlots: [number, number][], lengthSlot: number, isMidRun: boolean }} Binding
 */
/** The states of a session: where they are in memory. @typedef {{ address: number, bytes: number, places: StatePlaces }} Block */
/** A step that runs at load, and the bytes of weights files that it needs. */
/** @typedef {{ step: number, needs: { file: number, end: number }[] }} LoadStep */

const MAX_PAGES = 65536;
const STATE_ROOM = 1 << 30; // bytes of addresses for sessions, so that memory grows in place
const SPARSE_BYTES = 1 << 14; // of memory that is copied, or not, at once: some pages of the system
const MAX_PLANS = 16; // the number of bindings whose plans are cached
const WARMING_CALLS = 10_000; // the number of calls of a loop in one call of `warm`
const WARMINGS = 4; // calls of `warm` for each loop: enough for V8 to optimise even the shortest loops

export class Leader {
  /** @type {Map<string, Binding>} */
  bindings = new Map();
  /** @type {Binding | null} */
  binding = null;
  exports = /** @type {ModuleExports} */ ({ run() {}, warm: () => 0 });
  /** The object of the symbols that are bound. @type {Symbols | undefined} */
  symbols;
  /** The id of the session whose states are bound. @type {number | undefined} */
  session;
  /** @type {Map<number, Block>} By id of the session. */
  blocks = new Map();
  /** @type {Block[]} Blocks of sessions that ended. */
  free = [];
  warmings = 0;
  /** @type {WebAssembly.Module | null} */
  module = null;
  moves = 0; // counts how often blocks may have moved
  nextStep = 0; // the first of `loadSteps` that has not run

  /** @param {Open} open */
  constructor({ manifest, threads, files, control, ports }) {
    this.manifest = manifest;
    this.program = manifest.program;
    this.threads = threads;
    this.control = control;
    this.helpers = ports;
    // Allocate memory for the smallest run, in which every symbol is 1. That is enough for loading.
    const symbols = Object.fromEntries(manifest.symbols.map((s) => [s.name, 1]));
    this.smallest = this.#plan(JSON.stringify(symbols), symbols);
    const { total } = this.smallest.layout;
    const isFixed = !manifest.symbols.length && !boundSymbols(this.program).length;
    const spare = lengthOf(manifest) ? STATE_ROOM : 0;
    this.memory = allocate(total, isFixed ? total : total * GROWTH + spare);
    this.bytes = new Uint8Array(this.memory.buffer);
    this.room = this.bytes.length;
    this.files = files;
    this.destinations = files.map((file) => this.#destinations(file));
    this.receivedBytes = files.map(() => 0);
    this.loadSteps = this.#loadSteps(files);
  }

  /**
   * Instantiate the module here and in the helpers, and compute derived buffers if their constants are there.
   * @param {WebAssembly.Module} module
   */
  start(module) {
    this.module = module;
    this.exports = instantiate(module, this.memory);
    this.#bind(this.smallest.symbols);
    const { threads, memory, control } = this;
    for (const [i, helper] of this.helpers.entries()) {
      helper.postMessage({ tid: i + 1, threads, module, memory, control, generation: 0 });
    }
    this.#derive();
  }

  /** The steps that compute the derived buffers. @param {WeightFile[]} files @returns {LoadStep[]} */
  #loadSteps(files) {
    const ends = new Map(files.flatMap(({ tensors }, file) => Object.entries(tensors).map(([name, [, end]]) => [name, { file, end }])));
    const tensors = new Map(this.program.buffers.map(({ name, tensor }) => [name, tensor]));
    return runs(this.program)
      .filter(({ once, device }) => once && device === "wasm")
      .flatMap(({ first, last, module_first: base }) =>
        this.program.steps.slice(first, last).map(({ arguments: names }, i) => {
          const needs = names.flatMap((name) => ends.get(tensors.get(name) ?? "") ?? []);
          return { step: base + i, needs };
        }),
      );
  }

  /** Compute derived buffers in order, if their constants are there. Helpers take part only after the download has ended. */
  #derive() {
    const { loadSteps, receivedBytes, files } = this;
    const threads = receivedBytes.every((bytes, i) => bytes === files[i].bytes) ? this.threads : 1;
    for (; this.nextStep < loadSteps.length; this.nextStep++) {
      const { step, needs } = loadSteps[this.nextStep];
      if (!needs.every(({ file, end }) => end <= receivedBytes[file])) break;
      this.#runSteps(step, step + 1, threads);
    }
  }

  /**
   * Run a segment. The downloads are views of the memory if it can be shared, else copies.
   * @param {Execute} request
   * @returns {Transfers}
   */
  execute(request) {
    const { segment } = request;
    this.#prepare(request);
    this.#runSteps(segment.module_first, moduleLast(segment));
    return segment.downloads.map((name) => [name, canShareMemory ? this.#view(name) : this.#view(name).slice()]);
  }

  /** Views of the uploads of the request that was executed last. @param {Execute} request @returns {Transfers} */
  places({ uploads }) {
    return uploads.map(([name]) => [name, this.#view(name)]);
  }

  /** Measure the milliseconds of each step. @param {Execute} request @returns {number[]} */
  profile(request) {
    const { segment } = request;
    this.#prepare(request);
    const times = [];
    for (let step = segment.module_first; step < moduleLast(segment); step++) {
      const before = performance.now();
      this.#runSteps(step, step + 1);
      times.push(performance.now() - before);
    }
    return times;
  }

  /** Bind the symbols, and write the uploads. @param {Execute} request */
  #prepare({ symbols, uploads, states }) {
    this.#bind(symbols, states);
    for (const [name, data] of uploads) this.#view(name).set(data);
  }

  /** For some tenths of a millisecond, call a loop so that the engine optimises it. Returns false after the last loop. */
  warm() {
    return this.exports.warm(Math.floor(this.warmings++ / WARMINGS), WARMING_CALLS) !== 0;
  }

  /** Run the steps `first` to `last - 1` of the module. @param {number} first @param {number} last */
  #runSteps(first, last, threads = this.threads) {
    if (first === last) return;
    const { run } = this.exports;
    if (this.control && threads > 1) withHelpers(this.memory, this.control, false, () => run(first, last, 0, threads));
    else run(first, last, 0, 1);
  }

  /** Write the slot table for these symbols and this session. The length is an upload. @param {Symbols} symbols @param {States} [states] */
  #bind(symbols, states) {
    if (this.binding && symbols === this.symbols && states?.id === this.session) return; // a repeated request
    const key = JSON.stringify(symbols);
    const binding = this.bindings.get(key) ?? this.#plan(key, symbols);
    this.symbols = symbols;
    if (binding === this.binding && states?.id === this.session) return;
    const isNew = states !== undefined && !this.blocks.has(states.id);
    const lacksBlock = states !== undefined && !this.#hasBlock(states, binding);
    if (binding.layout.total > this.room || lacksBlock) this.#grow(binding, states);
    const words = new Int32Array(this.bytes.buffer);
    const slots = [...binding.slots];
    const block = states && this.blocks.get(states.id);
    if (block) {
      for (const [slot, offset] of binding.stateSlots) slots[slot] = block.address + offset;
      // The page may have written the length already.
      if (binding.lengthSlot >= 0) slots[binding.lengthSlot] = words[CONTROL.slots / 4 + binding.lengthSlot];
      if (isNew) for (const [, view] of this.readStates({ ...states, length: 0 })) view.fill(0);
    }
    words.set(slots, CONTROL.slots / 4);
    words.set([binding.layout.scratch, scratchStride(this.program)], CONTROL.scratch / 4);
    words[CONTROL.machine / 4] = this.manifest.machine;
    this.binding = binding;
    this.session = states?.id;
  }

  /** Give a session a block of memory, if a free one is large enough. @param {States} states @param {Binding} binding */
  #hasBlock(states, { layout: plan }) {
    const block = this.blocks.get(states.id);
    if (block) {
      checkPlaces(block.places, plan, states);
      return true;
    }
    checkNew(states);
    const index = this.free.findIndex(({ bytes }) => bytes >= plan.stateBytes);
    if (index < 0) return false;
    const [free] = this.free.splice(index, 1);
    this.blocks.set(states.id, { ...free, places: statePlaces(plan, states) });
    return true;
  }

  /** Views of the valid rows of each state. @param {States} states @returns {Transfers} */
  readStates({ id, length }) {
    const block = this.blocks.get(id);
    return [...(block?.places ?? [])].map(([name, place]) => {
      const start = /** @type {Block} */ (block).address + place.offset;
      return [name, this.bytes.subarray(start, start + stateBytes(place, length))];
    });
  }

  /** Replace the rows of the states of a session. @param {Symbols} symbols @param {States} states @param {Transfers} rows */
  writeStates(symbols, states, rows) {
    this.#bind(symbols, this.blocks.has(states.id) ? states : { ...states, symbols: null });
    const contents = new Map(rows);
    const views = this.readStates(states);
    if (views.length !== rows.length || views.some(([name, view]) => contents.get(name)?.length !== view.length)) {
      throw new InputError("the rows of the states are not those of this model");
    }
    for (const [name, view] of views) view.set(/** @type {Uint8Array} */ (contents.get(name)));
  }

  /** Free the states of a session. @param {States} states */
  release({ id }) {
    const block = this.blocks.get(id);
    if (block) this.free.push(block);
    this.blocks.delete(id);
    if (this.session === id) this.binding = null;
  }

  /** Plan memory for these symbols. @param {string} key @param {Symbols} symbols @returns {Binding} */
  #plan(key, symbols) {
    const { program, manifest, threads } = this;
    const plan = layout(manifest, "wasm", symbols, threads);
    const expected = program.resources.arena.wasm ?? plan.arena;
    if (plan.arena !== expected) throw new InternalError(`the arena takes ${plan.arena} bytes, the manifest says ${expected}`);
    const addresses = program.buffers.map(({ name }) => plan.offsets.get(name) ?? plan.constants.get(name) ?? 0);
    const names = [...manifest.symbols.map((s) => s.name), ...boundSymbols(program)];
    const values = { ...Object.fromEntries(names.map((name) => [name, 0])), ...symbols };
    const sizes = valuesOf(program, values);
    // For each loop: its symbol, which the module increments, and its trip count.
    const counts = loops(program).flatMap((loop) => [0, tripCount(loop, sizes)]);
    const slots = [...addresses, ...names.map((name) => values[name]), ...counts];
    const positions = new Map(program.buffers.map(({ name }, slot) => [name, slot]));
    const stateSlots = [...plan.states].map(([name, offset]) => /** @type {[number, number]} */ ([positions.get(name), offset]));
    const lengthSlot = lengthOf(manifest) ? program.buffers.length + names.indexOf(lengthOf(manifest)) : -1;
    const isMidRun = boundSymbols(program).some((name) => name in symbols);
    const binding = { symbols, layout: plan, slots, stateSlots, lengthSlot, isMidRun };
    if (this.bindings.size >= MAX_PLANS) this.bindings.delete([...this.bindings.keys()][0]);
    this.bindings.set(key, binding);
    return binding;
  }

  /**
   * Enlarge the memory, for a binding and perhaps for a new session. If it cannot grow in place, a larger one replaces it, here
   * and in the helpers. It gets a copy of the constants, during a run of the activations, and of all states.
   * @param {Binding} binding
   * @param {States} [states]
   */
  #grow({ layout: plan, isMidRun }, states) {
    const old = this.bytes;
    const content = isMidRun || this.blocks.size ? this.room : plan.total - plan.arena;
    const blocks = [...this.blocks];
    if (states && !this.blocks.has(states.id)) blocks.push([states.id, { address: NOWHERE, bytes: plan.stateBytes, places: statePlaces(plan, states) }]);
    const blockBytes = blocks.reduce((sum, [, { bytes }]) => sum + bytes, 0);
    const total = (blocks.length ? Math.max(plan.total, this.room) : plan.total) + blockBytes;
    const isInPlace = extend(this.memory, total);
    if (!isInPlace) this.memory = allocate(total, total * GROWTH);
    this.bytes = new Uint8Array(this.memory.buffer);
    if (!isInPlace) this.bytes.set(old.subarray(0, content));
    this.room = this.bytes.length - blockBytes;
    this.free = [];
    if (this.blocks.size) this.moves++;
    let end = this.bytes.length;
    for (const [id, block] of blocks.reverse()) {
      end -= block.bytes; // blocks move to higher addresses, the last one first
      const { address, bytes } = block;
      const source = isInPlace ? this.bytes : old;
      // The length is known of the session that runs, unless earlier steps of the run have appended rows already.
      const isLengthKnown = id === states?.id && !isMidRun;
      if (isLengthKnown && address !== NOWHERE) copyRows(source, block, states.length, this.bytes, end);
      else if (address !== NOWHERE) copySparse(source, address, this.bytes, end, bytes);
      this.blocks.set(id, { ...block, address: end });
    }
    if (isInPlace) return;
    if (this.module) this.exports = instantiate(this.module, this.memory);
    if (!this.control) return;
    const generation = announceMemory(this.control);
    for (const helper of this.helpers) helper.postMessage({ memory: this.memory, generation });
  }

  /** The bytes of a buffer. @param {string} name */
  #view(name) {
    const { layout: plan, lengthSlot } = /** @type {Binding} */ (this.binding);
    const state = plan.states.get(name);
    if (name === LENGTH) return this.bytes.subarray(CONTROL.slots + 4 * lengthSlot, CONTROL.slots + 4 * lengthSlot + 4);
    const inBlock = state !== undefined && /** @type {Block} */ (this.blocks.get(this.session ?? NaN)).address + state;
    const address = inBlock || /** @type {number} */ (plan.offsets.get(name) ?? plan.constants.get(name));
    return this.bytes.subarray(address, address + (plan.sizes.get(name) ?? 0));
  }

  /** The places of the tensors in a weights file. @param {WeightFile} file */
  #destinations(file) {
    const { constants } = this.smallest.layout;
    const owners = this.program.buffers.filter(({ name }) => constants.has(name));
    const addresses = new Map(owners.map(({ name, tensor }) => [tensor, constants.get(name)]));
    return Object.entries(file.tensors).flatMap(([tensor, [begin, end]]) => {
      const address = addresses.get(tensor);
      return address === undefined ? [] : [{ begin, end, view: this.bytes.subarray(address, address + end - begin) }];
    });
  }

  /**
   * Copy a chunk of a weights file to its place, and compute the derived buffers that need it. Returns the hash of the chunk if
   * the page has not computed it.
   * @param {number} file
   * @param {Uint8Array<ArrayBuffer>} chunk
   * @param {number} begin
   * @param {boolean} isHashed
   */
  async take(file, chunk, begin, isHashed) {
    const hash = isHashed ? null : await hashOf(chunk);
    scatter(chunk, begin, this.destinations[file]);
    this.receivedBytes[file] = begin + chunk.length;
    if (this.module) this.#derive();
    return hash;
  }
}

/**
 * Copy the valid rows of a session to a block whose address is not lower.
 * @param {Uint8Array} source
 * @param {Block} block
 * @param {number} length
 * @param {Uint8Array} target  may be the same memory
 * @param {number} to
 */
function copyRows(source, { address, places }, length, target, to) {
  for (const place of [...places.values()].reverse()) {
    const start = address + place.offset;
    target.set(source.subarray(start, start + stateBytes(place, length)), to + place.offset);
  }
}

/**
 * Copy bytes to an address that is not lower, and do not write zeros over zeros: a system gives memory only to pages that were
 * written, and most of a session is empty.
 * @param {Uint8Array} source
 * @param {number} from
 * @param {Uint8Array} target  may be the same memory
 * @param {number} to
 * @param {number} length
 */
function copySparse(source, from, target, to, length) {
  for (let end = length; end > 0; end -= SPARSE_BYTES) {
    const begin = Math.max(0, end - SPARSE_BYTES);
    const [read, written] = [source.subarray(from + begin, from + end), target.subarray(to + begin, to + end)];
    if (!isZero(read) || !isZero(written)) written.set(read);
  }
}

/** @param {Uint8Array} bytes  at an address that is a multiple of 4 */
function isZero({ buffer, byteOffset, length }) {
  const words = new Int32Array(buffer, byteOffset, length >> 2);
  let i = 0;
  while (i < words.length && !words[i]) i++;
  return i === words.length;
}

/** Allocate memory. @param {number} total  bytes @param {number} maximum  bytes to which it may grow: addresses, not memory */
function allocate(total, maximum) {
  const initial = Math.ceil(total / PAGE);
  if (initial > MAX_PAGES) throw new InputError(`with these inputs the model needs ${total} bytes: more than 32-bit memory holds`);
  try {
    return new WebAssembly.Memory({ initial, maximum: Math.min(Math.ceil(maximum / PAGE), MAX_PAGES), shared: true });
  } catch (error) {
    if (maximum > total) return allocate(total, total); // a phone may lack addresses
    throw new InternalError(`cannot allocate ${initial * PAGE} bytes for the model (${toData(error).message})`);
  }
}

/**
 * Grow memory to `total` bytes in place. Returns false if that fails.
 * @param {WebAssembly.Memory} memory
 * @param {number} total
 */
function extend(memory, total) {
  try {
    memory.grow(Math.max(0, Math.ceil(total / PAGE) - memory.buffer.byteLength / PAGE));
    return true;
  } catch {
    return false;
  }
}
