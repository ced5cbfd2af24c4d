// Compute the addresses of buffers in the memory of a device, for sizes that a run knows.
//
// The plan in the manifest (`Memory`) says which buffers a device holds, and in which order they lie. Buffers that are not alive
// during the same steps share addresses. webmlc/package/memory_plan.py computes the same.
//
//   in:  a manifest with one program, the device to plan for, the value of each symbol, the number of threads
//   out: a layout: addresses in the memory of a device

import { InputError } from "./errors.js";
import { ALIGNMENT, CONSTANT_ALIGNMENT, CONTROL, LARGE, PAGE_BYTES } from "./manifest_records.js";
import { bufferBytes, lengthOf, loops, symbolsOf } from "./sizes.js";

/** @import { Buffer, Chosen, Device, Layout, Manifest, Memory, Program, Run, Segment, StatePlace, StatePlaces, States, Symbols } from "./types.d.ts" */

/** The plan of a device that a program does not use. @type {Memory} */
const NO_MEMORY = { constants: [], temporary: [], derived: [], states: [], arena: [] };
export const NOWHERE = -1; // the address of a block that has none yet
export const LENGTH = "#length"; // in uploads: the length of the session, whose place is a word of the slot table
export const GROWTH = 1.5; // the smallest factor by which memory grows

/** Round `value` up to a multiple of `alignment`. @param {number} value @param {number} alignment */
export function align(value, alignment) {
  return Math.ceil(value / alignment) * alignment;
}

/** The segments that run steps. @param {Program} program @returns {Run[]} */
export function runs({ segments }) {
  return segments.filter((segment) => segment.type === "run");
}

/** The number in the module behind that of the last step of a segment. @param {Run} segment */
export function moduleLast({ first, last, module_first: start }) {
  return start + last - first;
}

/** What `boundSymbols` returns, because each iteration of a loop of the host asks for it. @type {WeakMap<Program, string[]>} */
const BOUND_SYMBOLS = new WeakMap();

/** The symbols that segments bind, in order. @param {Program} program @returns {string[]} */
export function boundSymbols(program) {
  let symbols = BOUND_SYMBOLS.get(program);
  if (!symbols) {
    symbols = program.segments.flatMap((segment) => (segment.type === "bind" || segment.type === "measure" ? segment.symbols : []));
    BOUND_SYMBOLS.set(program, symbols);
  }
  return symbols;
}

/** The buffers whose values a segment reads on the host. @param {Segment} segment @returns {string[]} */
export function readByHost(segment) {
  if (segment.type === "bind" || segment.type === "measure") return [segment.buffer];
  if (segment.type === "move") return segment.sources;
  if (segment.type === "collect") return [segment.target, segment.source];
  if (segment.type === "stack") return [segment.target];
  return segment.type === "jump_unless" ? [segment.unless] : [];
}

/** The plan of a device. @param {Program} program @param {Device} device */
export function memoryOf({ memory }, device) {
  return memory[device] ?? NO_MEMORY;
}

/** The numbers of all buffers that have a place on a device. @param {Memory} memory */
export function buffersOf({ constants, temporary, derived, states, arena }) {
  return [...constants, ...temporary, ...derived, ...states, ...arena.map(([number]) => number)];
}

/** True if a buffer holds the same bytes in every run. @param {Buffer} buffer */
function isResident({ kind }) {
  return kind === "constant" || kind === "derived";
}

/** The buffers that the host reads after a run: outputs, and counts of what was out of range. @param {Pick<Manifest, "outputs" | "checks">} manifest */
export function resultBuffers({ outputs, checks }) {
  return new Set([...outputs.map((o) => o.buffer), ...checks.map(([buffer]) => buffer)]);
}

/**
 * Plan the memory of a device. Buffers whose size depends on a symbol without a value get no place.
 * @param {Chosen} manifest
 * @param {Device} device
 * @param {Symbols} symbols
 * @param {number} [threads]
 * @param {number} [redZone]  bytes before and behind each buffer, to detect writes outside them; buffers then share no bytes
 * @returns {Layout}
 */
export function layout(manifest, device, symbols, threads = 1, redZone = 0) {
  const { program } = manifest;
  const memory = memoryOf(program, device);
  const sizes = bufferBytes(program, symbols);
  const { addresses: states, end: stateBytes } = placeInOrder(program, memory.states, sizes, ALIGNMENT[device]);
  const growing = (/** @type {number} */ number) => symbolsOf(program.buffers[number].shape, program.sizes).has(lengthOf(manifest));
  const replacedStates = new Set(memory.states.filter((number) => !growing(number)).map((number) => program.buffers[number].name));
  const { places, total, residentEnd } = arenaPlaces(program, memory, device, sizes, redZone);
  const plan = { sizes, states, stateBytes, replacedStates };
  if (device === "webgpu") return { offsets: places, arena: total, constants: new Map(), scratch: 0, total, ...plan };
  const slots = program.buffers.length + manifest.symbols.length + boundSymbols(program).length + 2 * loops(program).length;
  const scratch = align(CONTROL.slots + 4 * slots, CONSTANT_ALIGNMENT);
  const start = align(scratch + threads * scratchStride(program), CONSTANT_ALIGNMENT);
  const { addresses: constants, end } = placeInOrder(program, memory.constants, sizes, CONSTANT_ALIGNMENT, start);
  const residents = new Set(program.buffers.filter(isResident).map(({ name }) => name));
  const largest = Math.max(0, ...[...places.keys()].map((name) => (residents.has(name) ? (sizes.get(name) ?? 0) : 0)));
  const base = align(end, weightsAlignment(largest, ALIGNMENT[device]));
  /** @type {Map<string, number>} */
  const offsets = new Map();
  for (const [name, offset] of places) (residents.has(name) ? constants : offsets).set(name, base + offset);
  return { offsets, arena: total - residentEnd, constants, scratch, total: base + total, ...plan };
}

/**
 * The offset of each buffer in the arena, the end of the last one, and that of the last buffer that keeps its bytes.
 * @param {Program} program
 * @param {Memory} memory
 * @param {Device} device
 * @param {Map<string, number>} sizes
 * @param {number} redZone
 */
function arenaPlaces(program, { arena }, device, sizes, redZone) {
  /** @type {Map<string, number>} */
  const places = new Map();
  /** @type {number[]} */
  const ends = [];
  let [total, residentEnd] = [0, 0];
  for (const [number, below] of arena) {
    const buffer = program.buffers[number];
    const bytes = sizes.get(buffer.name);
    const start = Math.max(0, ...below.map((i) => ends[i]));
    if (bytes === undefined) {
      ends.push(start); // `below` leaves out what lies below these: it keeps buffers above it
      continue;
    }
    const size = Math.max(bytes, 1);
    const alignment = isResident(buffer) ? weightsAlignment(size, ALIGNMENT[device]) : ALIGNMENT[device];
    const offset = align(redZone ? total + redZone : start, alignment);
    const end = offset + (redZone ? size : align(size, alignment));
    ends.push(end);
    places.set(buffer.name, offset);
    total = Math.max(total, end);
    if (isResident(buffer)) residentEnd = Math.max(residentEnd, align(offset + size, ALIGNMENT[device]));
  }
  return { places, total: total + redZone, residentEnd };
}

/**
 * Place buffers one after another. Buffers of the same tensor, which follow each other, share a place. Also returns the end of the last one.
 * @param {Program} program
 * @param {number[]} numbers
 * @param {Map<string, number>} sizes
 * @param {number} [alignment]
 * @param {number} [base]
 * @returns {{ addresses: Map<string, number>, end: number }}
 */
export function placeInOrder({ buffers }, numbers, sizes, alignment = CONSTANT_ALIGNMENT, base = 0) {
  const addresses = new Map();
  /** @type {string | null} */
  let latest = null;
  let start = base;
  for (const buffer of numbers.map((number) => buffers[number])) {
    const size = sizes.get(buffer.name);
    if (size === undefined) continue;
    if (buffer.tensor === null || buffer.tensor !== latest) {
      start = align(base, isResident(buffer) ? weightsAlignment(size, alignment) : 1);
      base = align(start + Math.max(size, Number(isResident(buffer))), alignment);
    }
    addresses.set(buffer.name, start);
    latest = buffer.tensor;
  }
  return { addresses, end: base };
}

/** The bytes from the scratch of one thread to that of the next. @param {Program} program */
export function scratchStride({ resources }) {
  return align(resources.scratch_per_thread, 64);
}

/** The alignment of weights of `size` bytes: a page if they are large, else `least`. @param {number} size @param {number} least */
function weightsAlignment(size, least) {
  return size >= LARGE ? PAGE_BYTES : least;
}

/**
 * The places of the states of a session in its block.
 * @param {Layout} layout
 * @param {States} states
 * @returns {StatePlaces}
 */
export function statePlaces({ states: offsets, sizes, replacedStates }, { capacity }) {
  const place = (/** @type {string} */ name, /** @type {number} */ offset) => {
    const grows = !replacedStates.has(name);
    return { offset, rowBytes: Math.floor((sizes.get(name) ?? 0) / (grows ? capacity : 1)), grows };
  };
  return new Map([...offsets].map(([name, offset]) => [name, place(name, offset)]));
}

/** The bytes of the valid rows of a state. @param {StatePlace} place @param {number} length */
export function stateBytes({ rowBytes, grows }, length) {
  return rowBytes * (grows ? length : 1);
}

/**
 * Throw `InputError` if the states of a session have other rows in this layout.
 * @param {StatePlaces} places
 * @param {Layout} layout
 * @param {States} states
 */
export function checkPlaces(places, layout, states) {
  const expected = statePlaces(layout, states);
  if ([...places].every(([name, { rowBytes }]) => expected.get(name)?.rowBytes === rowBytes)) return;
  throw new InputError("the session began with other sizes of the inputs; open another session");
}

/** Throw `InputError` if states without memory had some: a device was restored since. @param {States} states */
export function checkNew({ symbols }) {
  if (symbols) throw new InputError("the session was lost with its device; open another session");
}
