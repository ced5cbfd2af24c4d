// Plan the memory of a program, and the transfers between its devices.
//
// Each activation gets a place in the arena, the memory that a run reuses. Buffers that are not alive during the same steps share
// addresses (placement.js). The twin of webmlc/package/memory_plan.py and webmlc/package/transfers.py, which explain the
// algorithms.
//
//   in:  a manifest, the target of the program, the device to plan for, the value of each symbol, the number of threads
//   out: stages (segments with their uploads and downloads) and layouts (addresses in the memory of a device)

import { InputError } from "./errors.js";
import { align, place } from "./placement.js";
import { bufferBytes, lengthOf, loops, symbolsOf } from "./sizes.js";

/** @typedef {import("./types.d.ts").Buffer} Buffer */
/** @typedef {import("./types.d.ts").Device} Device */
/** @typedef {import("./placement.js").Interval} Interval */
/** @typedef {import("./types.d.ts").Layout} Layout */
/** @typedef {import("./types.d.ts").Manifest} Manifest */
/** @typedef {import("./types.d.ts").Program} Program */
/** @typedef {import("./types.d.ts").Run} Run */
/** @typedef {import("./types.d.ts").Segment} Segment */
/** @typedef {import("./types.d.ts").Stage} Stage */
/** @typedef {import("./types.d.ts").Step} Step */
/** @typedef {import("./types.d.ts").Symbols} Symbols */

// Addresses in linear memory, in bytes; see memory_plan.py and webmlc/target/wasm/threads.py.
export const RUNNING = 128; // a word that is 1 while helpers should look for work
export const AWAKE = 132; // a word that is 1 if the leader must not sleep
export const SCRATCH_BASE = 256; // a word with the address of the first thread's scratch, then a word with the stride
export const MACHINE = 264; // a word with the number of the machine's class
export const SLOT_TABLE = 1024; // the addresses of buffers and the values of symbols, one word each

export const PAGE = 65536; // bytes of a page of WebAssembly memory
const ALIGNMENT = { wasm: 64, webgpu: 256 }; // of buffers in the arena, in bytes
export const CONSTANT_ALIGNMENT = 256; // bytes
const LARGE = 1 << 18; // weights of at least this many bytes are aligned to a page of the operating system
const LARGE_ALIGNMENT = 4096; // bytes of such a page
export const LENGTH = "#length"; // in uploads: the length of the session, whose place is a word of the slot table
export const GROWTH = 1.5; // the smallest factor by which memory grows

/** The segments that run steps. @param {Program} program @returns {Run[]} */
export function runs(program) {
  return program.segments.filter((s) => "device" in s);
}

/** The symbols that segments bind, in order. @param {Program} program @returns {string[]} */
export function boundSymbols(program) {
  return program.segments.flatMap((s) => ("bind" in s ? s.symbols : []));
}

/** True if a buffer holds the same bytes in every run. @param {Pick<Buffer, "kind">} buffer */
function isResident({ kind }) {
  return kind === "constant" || kind === "derived";
}

/** True if a buffer is in the arena, for the time of a run at most. @param {Pick<Buffer, "kind">} buffer */
function isActivation({ kind }) {
  return kind === "input" || kind === "scratch";
}

/** The buffers that a step writes. @param {Step} step */
export function outputsOf(step) {
  return step.arguments.slice(step.arguments.length - step.outputs);
}

/** The buffers that the host reads after a run: outputs, and counts of what was out of range. @param {Manifest} manifest @returns {Set<string>} */
export function resultBuffers({ outputs, checks }) {
  return new Set([...outputs.map((o) => o.buffer), ...checks.map(([buffer]) => buffer)]);
}

/**
 * The segments of the program for `target`, with the uploads before each and the downloads after it.
 * @param {Manifest} manifest
 * @param {Device} target
 * @returns {Stage[]}
 */
export function stages(manifest, target) {
  const program = /** @type {Program} */ (manifest.programs[target]);
  const results = resultBuffers(manifest);
  const residents = new Set(program.buffers.filter((b) => !isActivation(b)).map((b) => b.name));
  /** @type {Record<Device, Set<string>>} */
  const valid = { wasm: new Set(), webgpu: new Set() };
  /** @type {Set<string>} */
  const everWritten = new Set();
  const traffic = program.segments.map((segment) => {
    /** @type {Set<string>} */
    const writes = new Set();
    /** @type {Set<string>} */
    const needs = new Set();
    if ("bind" in segment) return { segment, uploads: [], needs, writes };
    for (const step of program.steps.slice(segment.first, segment.last)) {
      const outputs = outputsOf(step);
      for (const name of step.arguments) {
        // A step may write a part of an output, so that it needs the bytes of an earlier segment.
        const isDefined = writes.has(name) || (outputs.includes(name) && !everWritten.has(name));
        if (!isDefined && !residents.has(name)) needs.add(name);
      }
      for (const name of outputs) writes.add(name);
    }
    const uploads = [...needs].filter((name) => !valid[segment.device].has(name));
    for (const name of writes) everWritten.add(name);
    for (const name of [...needs, ...writes]) valid[segment.device].add(name);
    for (const name of writes) valid[segment.device === "wasm" ? "webgpu" : "wasm"].delete(name);
    return { segment, uploads, needs, writes };
  });
  // Backwards: the later readers of each buffer's value. The host reads results, and the buffers of binds.
  /** @type {Map<string, Set<string>>} */
  const readers = new Map([...results].map((name) => [name, new Set(["host"])]));
  const read = (/** @type {string} */ name, /** @type {string} */ reader) => {
    readers.set(name, (readers.get(name) ?? new Set()).add(reader));
  };
  /** @type {Stage[]} */
  const list = [];
  for (const { segment, uploads, needs, writes } of traffic.reverse()) {
    /** @type {string[]} */
    const downloads = [];
    if ("bind" in segment) read(segment.bind, "host");
    else {
      for (const name of writes) {
        if ([...(readers.get(name) ?? [])].some((reader) => reader !== segment.device)) downloads.push(name);
        readers.delete(name);
      }
      for (const name of needs) read(name, segment.device);
    }
    list.push({ segment, uploads, downloads });
  }
  list.reverse();
  const unwritten = [...results].filter((name) => residents.has(name));
  if (unwritten.length) {
    const end = Math.max(0, ...runs(program).map((s) => s.module_last ?? 0));
    const count = program.steps.length;
    const segment = { device: target, first: count, last: count, module_first: end, module_last: end };
    list.push({ segment, uploads: [], downloads: unwritten });
  }
  return list;
}

/**
 * The buffers that need a place on `device`: those that its steps use and, on the target, those that no step uses.
 * @param {Program} program
 * @param {Device} device
 * @param {Device} target
 * @returns {Set<string>}
 */
export function usedOn(program, device, target) {
  const names = new Set(program.steps.filter((s) => s.device === device).flatMap((s) => s.arguments));
  if (device === target) {
    const used = new Set(program.steps.flatMap((s) => s.arguments));
    for (const { name } of program.buffers) if (!used.has(name)) names.add(name);
  }
  return names;
}

/**
 * The first and last step during which each activation must keep its bytes on `device`.
 * @param {Program} program
 * @param {Stage[]} stageList
 * @param {Device} device
 * @param {Device} target
 * @returns {Map<string, [number, number]>}
 */
function lifetimes(program, stageList, device, target) {
  /** @type {Map<string, [number, number]>} */
  const spans = new Map();
  const keep = (/** @type {string} */ name, /** @type {number} */ step) => {
    const [first, last] = spans.get(name) ?? [step, step];
    spans.set(name, [Math.min(first, step), Math.max(last, step)]);
  };
  for (const { segment, uploads, downloads } of stageList) {
    if ("bind" in segment || segment.device !== device) continue;
    for (const name of uploads) keep(name, segment.first);
    for (let i = segment.first; i < segment.last; i++) for (const name of program.steps[i].arguments) keep(name, i);
    for (const name of downloads) keep(name, Math.max(segment.last - 1, segment.first));
  }
  const transferred = new Set(stageList.flatMap(({ uploads, downloads }) => [...uploads, ...downloads]));
  for (const [first, last] of loopRanges(program)) {
    // What enters or leaves a loop, or is transferred for it, must keep its bytes during all iterations.
    for (const [name, [begin, end]] of spans) {
      const isInside = first <= begin && end <= last && !transferred.has(name);
      if (!isInside && begin <= last && first <= end) spans.set(name, [Math.min(begin, first), Math.max(end, last)]);
    }
  }
  for (const name of usedOn(program, device, target)) {
    if (!spans.has(name)) spans.set(name, [0, Math.max(program.steps.length - 1, 0)]);
  }
  const activations = program.buffers.filter((b) => isActivation(b) && spans.has(b.name));
  return new Map(activations.map((b) => [b.name, /** @type {[number, number]} */ (spans.get(b.name))]));
}

/** The steps from the head of each loop to its end, inner loops first. @param {Program} program @returns {[number, number][]} */
function loopRanges({ steps }) {
  return steps.flatMap(({ control }, last) => (control?.kind === "next" ? [[control.target - 1, last]] : []));
}

/**
 * Plan the memory of `device` for the program of `target`. Buffers whose size depends on a symbol without a value get no place.
 * @param {Manifest} manifest
 * @param {Device} target
 * @param {Device} device
 * @param {Symbols} symbols
 * @param {number} threads
 * @param {typeof place} placing  tests place buffers apart, to detect writes outside them
 * @returns {Layout}
 */
export function layout(manifest, target, device, symbols, threads = 1, placing = place) {
  const program = /** @type {Program} */ (manifest.programs[target]);
  const sizes = bufferBytes(program, symbols);
  const groups = sizeGroups(program);
  const loading = device === "wasm" ? loadLifetimes(manifest, target, device) : new Map();
  for (const name of loading.keys()) groups.set(name, -1);
  const activations = lifetimes(program, stages(manifest, target), device, target);
  const spans = [...loading, ...activations].filter(([name]) => sizes.has(name));
  const alignment = ALIGNMENT[device];
  /** @type {Interval[]} */
  const intervals = spans.map(([name, [first, last]]) => {
    const size = sizes.get(name) ?? 0;
    return [size, first, last, loading.has(name) ? weightsAlignment(size, alignment) : alignment, groups.get(name) ?? 0];
  });
  const { offsets, total } = placing(intervals);
  const places = new Map(spans.map(([name], i) => [name, offsets[i]]));
  const states = placeStates(program, device, sizes, lengthOf(manifest));
  if (device === "webgpu") return { offsets: places, sizes, arena: total, constants: new Map(), scratch: 0, total, ...states };
  const slots =
    program.buffers.length + manifest.symbols.length + boundSymbols(program).length + 2 * loops(program).length;
  const scratch = align(SLOT_TABLE + 4 * slots, CONSTANT_ALIGNMENT);
  const start = align(scratch + threads * scratchStride(program), CONSTANT_ALIGNMENT);
  const { addresses, end: constantsEnd } = placeConstants(manifest, target, device, start);
  const end = align(constantsEnd, Math.max(1, ...intervals.map((interval) => interval[3])));
  let loadEnd = 0;
  for (const [name, offset] of places) {
    places.set(name, end + offset);
    if (!loading.has(name)) continue;
    loadEnd = Math.max(loadEnd, align(offset + (sizes.get(name) ?? 0), alignment));
    addresses.set(name, end + offset);
    places.delete(name);
  }
  const arena = total - loadEnd;
  return { offsets: places, sizes, arena, constants: addresses, scratch, total: end + total, ...states };
}

/**
 * Place the states of a session that are on a device one after another. `sizes` hold for the session's capacity.
 * @param {Program} program
 * @param {Device} device
 * @param {Map<string, number>} sizes
 * @param {string} length  the symbol on which the sizes of states depend that grow
 */
function placeStates(program, device, sizes, length) {
  const used = new Set(program.steps.filter((step) => step.device === device).flatMap((step) => step.arguments));
  /** @type {Map<string, number>} */
  const states = new Map();
  /** @type {Set<string>} */
  const replacedStates = new Set();
  let stateBytes = 0;
  for (const { name, kind, shape } of program.buffers) {
    if (kind !== "state" || !used.has(name) || !sizes.has(name)) continue;
    states.set(name, stateBytes);
    if (!symbolsOf(shape).has(length)) replacedStates.add(name);
    stateBytes = align(stateBytes + (sizes.get(name) ?? 0), ALIGNMENT[device]);
  }
  return { states, stateBytes, replacedStates };
}

/**
 * The places of the states of a session in its block.
 * @param {Layout} layout
 * @param {import("./types.d.ts").States} states
 * @returns {import("./types.d.ts").StatePlaces}
 */
export function statePlaces({ states: offsets, sizes, replacedStates }, { capacity }) {
  const place = (/** @type {string} */ name, /** @type {number} */ offset) => {
    const grows = !replacedStates.has(name);
    return { offset, rowBytes: Math.floor((sizes.get(name) ?? 0) / (grows ? capacity : 1)), grows };
  };
  return new Map([...offsets].map(([name, offset]) => [name, place(name, offset)]));
}

/** The bytes of the valid rows of a state. @param {import("./types.d.ts").StatePlace} place @param {number} length */
export function stateBytes({ rowBytes, grows }, length) {
  return rowBytes * (grows ? length : 1);
}

/**
 * Throw `InputError` if the states of a session have other rows in this layout.
 * @param {import("./types.d.ts").StatePlaces} places
 * @param {Layout} layout
 * @param {import("./types.d.ts").States} states
 */
export function checkPlaces(places, layout, states) {
  const expected = statePlaces(layout, states);
  if ([...places].every(([name, { rowBytes }]) => expected.get(name)?.rowBytes === rowBytes)) return;
  throw new InputError("the session began with other sizes of the inputs; open another session");
}

/** Throw `InputError` if states without memory had some: a device was restored since. @param {import("./types.d.ts").States} states */
export function checkNew({ symbols }) {
  if (symbols) throw new InputError("the session was lost with its device; open another session");
}

/** The group of each buffer: 0 if its size is known from the start, n after the n-th bind. @param {Program} program */
function sizeGroups(program) {
  /** @type {Map<string, number>} */
  const groups = new Map();
  let number = 0;
  for (const segment of program.segments) {
    if (!("bind" in segment)) continue;
    number++;
    for (const name of segment.symbols) groups.set(name, number);
  }
  const group = (/** @type {Set<string>} */ names) => Math.max(0, ...[...names].map((name) => groups.get(name) ?? 0));
  return new Map(program.buffers.map((b) => [b.name, group(symbolsOf(b.shape))]));
}

/** The bytes from the scratch of one thread to that of the next. @param {Program} program */
export function scratchStride(program) {
  return align(program.resources.scratch_per_thread, 64);
}

/**
 * The first and last step during which each derived buffer, and each constant that only loading reads, must keep its bytes on
 * `device`.
 * @param {Manifest} manifest
 * @param {Device} target
 * @param {Device} device
 * @returns {Map<string, [number, number]>}
 */
function loadLifetimes(manifest, target, device) {
  const program = /** @type {Program} */ (manifest.programs[target]);
  /** @type {Map<string, [number, number]>} */
  const spans = new Map();
  const loadRuns = runs(program).filter((run) => run.once && run.device === device);
  if (!loadRuns.length) return spans;
  const atLoad = (/** @type {number} */ i) => loadRuns.some(({ first, last }) => first <= i && i < last);
  const outputs = resultBuffers(manifest);
  const names = usedOn(program, device, target);
  /** @type {Map<string, number[]>} */
  const users = new Map(program.buffers.map(({ name }) => [name, []]));
  for (const [i, step] of program.steps.entries()) for (const name of new Set(step.arguments)) users.get(name)?.push(i);
  for (const { name, kind, tensor } of program.buffers) {
    if (!isResident({ kind }) || !names.has(name)) continue;
    const uses = users.get(name) ?? [];
    const isTemporary = uses.length > 0 && uses.every(atLoad) && !outputs.has(name);
    const last = isTemporary ? uses[uses.length - 1] : program.steps.length;
    if (kind === "derived") spans.set(name, [uses[0], last]);
    else if (isTemporary && program.buffers.filter((b) => b.tensor === tensor).length === 1) spans.set(name, [0, last]);
  }
  return spans;
}

/**
 * The alignment of weights of `size` bytes: a page if they are large, else `least`.
 * @param {number} size
 * @param {number} least
 */
function weightsAlignment(size, least) {
  return size >= LARGE ? LARGE_ALIGNMENT : least;
}

/**
 * Place the constants that `device` needs in every run, in the order of the weights files; with `atLoad`, those that only
 * loading reads. Also returns the end of the last one.
 * @param {Manifest} manifest
 * @param {Device} target
 * @param {Device} device
 * @param {number} base
 * @param {boolean} [atLoad]
 * @returns {{ addresses: Map<string, number>, end: number }}
 */
export function placeConstants(manifest, target, device, base, atLoad = false) {
  const program = /** @type {Program} */ (manifest.programs[target]);
  const loading = loadLifetimes(manifest, target, device);
  const names = atLoad ? new Set(loading.keys()) : usedOn(program, device, target);
  if (!atLoad) for (const name of loading.keys()) names.delete(name);
  /** @type {Map<string, string[]>} */
  const owners = new Map();
  for (const { name, tensor } of program.buffers) {
    if (tensor !== undefined && names.has(name)) owners.set(tensor, [...(owners.get(tensor) ?? []), name]);
  }
  const addresses = new Map();
  for (const file of manifest.weights.files) {
    for (const [tensor, [begin, end]] of Object.entries(file.tensors)) {
      const buffers = owners.get(tensor);
      if (!buffers) continue;
      base = align(base, weightsAlignment(end - begin, CONSTANT_ALIGNMENT));
      for (const name of buffers) addresses.set(name, base);
      base = align(base + Math.max(end - begin, 1), CONSTANT_ALIGNMENT);
    }
  }
  return { addresses, end: base };
}

/**
 * Place the derived buffers of a GPU one after another. Also returns the end of the last one.
 * @param {Manifest} manifest
 * @param {Device} target
 * @returns {{ addresses: Map<string, number>, end: number }}
 */
export function placeDerived(manifest, target) {
  const program = /** @type {Program} */ (manifest.programs[target]);
  const loading = loadLifetimes(manifest, target, "webgpu");
  const sizes = bufferBytes(program, {});
  const addresses = new Map();
  let end = 0;
  for (const { name, kind } of program.buffers) {
    if (kind !== "derived" || !loading.has(name)) continue;
    addresses.set(name, end);
    end = align(end + Math.max(sizes.get(name) ?? 0, 1), CONSTANT_ALIGNMENT);
  }
  return { addresses, end };
}
