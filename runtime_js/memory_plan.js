// Where every buffer lives: the twin of webmlc/package/memory_plan.py and webmlc/package/transfers.py, which explain it.
//
//   in:  a manifest, the program's device, the value of each symbol
//   out: stages (what to upload and download around each segment) and layouts (addresses in a device's memory)

import { bufferBytes, loops, symbolsOf } from "./sizes.js";

/** @typedef {import("./types.d.ts").Buffer} Buffer */
/** @typedef {import("./types.d.ts").Device} Device */
/** @typedef {import("./types.d.ts").Layout} Layout */
/** @typedef {import("./types.d.ts").Manifest} Manifest */
/** @typedef {import("./types.d.ts").Program} Program */
/** @typedef {import("./types.d.ts").Run} Run */
/** @typedef {import("./types.d.ts").Segment} Segment */
/** @typedef {import("./types.d.ts").Stage} Stage */
/** @typedef {import("./types.d.ts").Step} Step */
/** @typedef {import("./types.d.ts").Symbols} Symbols */

export const SLOT_TABLE = 1024;
export const RUNNING = 128; // 1 while helpers are wanted
export const AWAKE = 132; // 1 where the leader may not sleep
export const SCRATCH_BASE = 256;
export const PAGE = 65536;
const ALIGNMENT = { wasm: 64, webgpu: 256 };
export const CONSTANT_ALIGNMENT = 256;
const LARGE = 1 << 18; // bytes of weights that start at a page of the operating system's; see memory_plan.py
const LARGE_ALIGNMENT = 4096;
const NOWHERE = -1; // the offset of what has no place yet
const ROUNDS = 16; // orders that are tried for a smaller arena
const BLOCK = 16; // steps of a block of firstFit
const LONG = -1; // the block of what is alive in more than two
export const GROWTH = 1.5; // times its size: what memory that may grow has room for, or grows by

/** @param {number} value @param {number} alignment */
export function align(value, alignment) {
  return Math.ceil(value / alignment) * alignment;
}

/** The segments that run steps. @param {Program} program @returns {Run[]} */
export function runs(program) {
  return program.segments.filter((s) => "device" in s);
}

/** The symbols that segments bind, in order. @param {Program} program @returns {string[]} */
export function boundSymbols(program) {
  return program.segments.flatMap((s) => ("bind" in s ? s.symbols : []));
}

/** @typedef {[bytes: number, first: number, last: number, alignment: number, group: number]} Interval */

/**
 * Offsets for intervals such that no two that are alive together overlap.
 * @param {Interval[]} intervals
 * @returns {{ offsets: number[], total: number }}
 */
export function place(intervals) {
  const sizes = intervals.map(([bytes, , , alignment]) => align(Math.max(bytes, 1), alignment));
  let offsets = intervals.map(() => NOWHERE);
  let total = 0;
  const groups = [...new Set(intervals.map((interval) => interval[4]))].sort((a, b) => a - b);
  for (const group of groups) {
    const order = [...intervals.keys()].filter((i) => intervals[i][4] === group);
    const placed = [...intervals.keys()].filter((i) => offsets[i] !== NOWHERE);
    const floor = Math.max(total, largestLiveSet(intervals, sizes, [...placed, ...order]));
    order.sort((i, j) => intervals[j][0] - intervals[i][0] || i - j);
    let best = offsets;
    let least = -1;
    for (let round = 0; round < ROUNDS; round++) {
      const trial = firstFit(intervals, sizes, order, offsets);
      const ends = order.map((i) => trial[i] + sizes[i]);
      const end = Math.max(total, ...ends);
      if (least < 0 || end < least) [best, least] = [trial, end];
      if (least <= floor) break;
      order.unshift(...order.splice(ends.indexOf(Math.max(...ends)), 1));
    }
    [offsets, total] = [best, least];
  }
  return { offsets, total };
}

/**
 * Bytes that some step needs at once, so that no placement of `members` takes less.
 * @param {Interval[]} intervals @param {number[]} sizes @param {number[]} members
 */
function largestLiveSet(intervals, sizes, members) {
  /** @type {Map<number, number>} */
  const changes = new Map();
  for (const i of members) {
    const [, first, last] = intervals[i];
    changes.set(first, (changes.get(first) ?? 0) + sizes[i]);
    changes.set(last + 1, (changes.get(last + 1) ?? 0) - sizes[i]);
  }
  let live = 0;
  let largest = 0;
  for (const [, change] of [...changes].sort(([a], [b]) => a - b)) largest = Math.max(largest, (live += change));
  return largest;
}

/**
 * Offsets of `fixed`, and of those in `order`, each at the lowest that the ones before it leave.
 * @param {Interval[]} intervals @param {number[]} sizes @param {number[]} order @param {number[]} fixed
 */
function firstFit(intervals, sizes, order, fixed) {
  const offsets = [...fixed];
  const placed = [...offsets.keys()].filter((i) => offsets[i] !== NOWHERE).sort((i, j) => offsets[i] - offsets[j] || i - j);
  /** @type {Map<number, number[]>} */
  const blocks = new Map();
  const touched = (/** @type {number} */ i) => {
    const [first, last] = [1, 2].map((end) => Math.floor(intervals[i][end] / BLOCK));
    return last - first > 1 ? [LONG] : [first, last];
  };
  const enter = (/** @type {number} */ i) => {
    for (const block of new Set(touched(i))) blocks.set(block, blocks.get(block) ?? []).get(block)?.push(i);
  };
  placed.forEach(enter);
  for (const i of order) {
    const [, first, last, alignment] = intervals[i];
    let own = 0;
    const near = new Set([...touched(i), LONG].flatMap((block) => blocks.get(block) ?? []));
    const few = !touched(i).includes(LONG) && 2 * near.size < placed.length;
    for (const j of few ? [...near].sort((a, b) => offsets[a] - offsets[b]) : placed) {
      const other = intervals[j];
      if (other[2] < first || last < other[1]) continue;
      if (offsets[j] >= own + sizes[i]) break;
      own = Math.max(own, align(offsets[j] + sizes[j], alignment));
    }
    offsets[i] = own;
    const at = placed.findIndex((j) => offsets[j] > own);
    placed.splice(at < 0 ? placed.length : at, 0, i);
    enter(i);
  }
  return offsets;
}

/** True of a buffer that holds the same bytes in every run. @param {Pick<Buffer, "kind">} buffer */
function isResident({ kind }) {
  return kind === "constant" || kind === "derived";
}

/** @param {Step} step */
function written(step) {
  return step.arguments.slice(step.arguments.length - step.outputs);
}

/** The buffers that hosts read after a run: those of outputs and of checks. @param {Manifest} manifest @returns {Set<string>} */
function resultBuffers({ outputs, checks }) {
  return new Set([...outputs.map((o) => o.buffer), ...checks.map(([buffer]) => buffer)]);
}

/**
 * The program's segments with what crosses between host and device around each.
 * @param {Manifest} manifest
 * @param {Device} own
 * @returns {Stage[]}
 */
export function stages(manifest, own) {
  const program = /** @type {Program} */ (manifest.programs[own]);
  const outputs = resultBuffers(manifest);
  const constants = new Set(program.buffers.filter(isResident).map((b) => b.name));
  /** @type {Record<Device, Set<string>>} */
  const valid = { wasm: new Set(), webgpu: new Set() };
  /** @type {Set<string>} */
  const everWritten = new Set();
  const traffic = program.segments.map((segment) => {
    /** @type {Set<string>} */
    const here = new Set();
    /** @type {Set<string>} */
    const outside = new Set();
    if ("bind" in segment) return { segment, uploads: [], needs: outside, writes: here };
    for (const step of program.steps.slice(segment.first, segment.last)) {
      const results = written(step);
      for (const name of step.arguments) {
        const defined = here.has(name) || (results.includes(name) && !everWritten.has(name));
        if (!defined && !constants.has(name)) outside.add(name);
      }
      for (const name of results) here.add(name);
    }
    const uploads = [...outside].filter((name) => !valid[segment.device].has(name));
    for (const name of here) everWritten.add(name);
    for (const name of [...outside, ...here]) valid[segment.device].add(name);
    for (const name of here) valid[segment.device === "wasm" ? "webgpu" : "wasm"].delete(name);
    return { segment, uploads, needs: outside, writes: here };
  });
  // Backwards: who reads each buffer's present value later, the host (outputs, binds) included.
  /** @type {Map<string, Set<string>>} */
  const readers = new Map([...outputs].map((name) => [name, new Set(["host"])]));
  const read = (/** @type {string} */ name, /** @type {string} */ reader) => {
    readers.set(name, (readers.get(name) ?? new Set()).add(reader));
  };
  /** @type {Stage[]} */
  const result = [];
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
    result.push({ segment, uploads, downloads });
  }
  result.reverse();
  const fixed = [...outputs].filter((name) => constants.has(name));
  if (fixed.length) {
    const end = Math.max(0, ...runs(program).map((s) => s.module_last ?? 0));
    const at = program.steps.length;
    const segment = { device: own, first: at, last: at, module_first: end, module_last: end };
    result.push({ segment, uploads: [], downloads: fixed });
  }
  return result;
}

/**
 * Buffers that need a place on `device`: its steps use them, or none does and it is the program's own device.
 * @param {Program} program
 * @param {Device} device
 * @param {Device} own
 * @returns {Set<string>}
 */
export function usedOn(program, device, own) {
  const here = new Set(program.steps.filter((s) => s.device === device).flatMap((s) => s.arguments));
  if (device === own) {
    const used = new Set(program.steps.flatMap((s) => s.arguments));
    for (const { name } of program.buffers) if (!used.has(name)) here.add(name);
  }
  return here;
}

/**
 * First and last step during which each activation must keep its bytes on `device`.
 * @param {Program} program
 * @param {Stage[]} list
 * @param {Device} device
 * @param {Device} own
 * @returns {Map<string, [number, number]>}
 */
function lifetimes(program, list, device, own) {
  /** @type {Map<string, [number, number]>} */
  const spans = new Map();
  const keep = (/** @type {string} */ name, /** @type {number} */ step) => {
    const [first, last] = spans.get(name) ?? [step, step];
    spans.set(name, [Math.min(first, step), Math.max(last, step)]);
  };
  for (const { segment, uploads, downloads } of list) {
    if ("bind" in segment || segment.device !== device) continue;
    for (const name of uploads) keep(name, segment.first);
    for (let i = segment.first; i < segment.last; i++) for (const name of program.steps[i].arguments) keep(name, i);
    for (const name of downloads) keep(name, Math.max(segment.last - 1, segment.first));
  }
  const crossing = new Set(list.flatMap(({ uploads, downloads }) => [...uploads, ...downloads]));
  for (const [first, last] of loopRanges(program)) {
    // An iteration may need what the one before left.
    for (const [name, [begin, end]] of spans) {
      const inside = first <= begin && end <= last && !crossing.has(name);
      if (!inside && begin <= last && first <= end) spans.set(name, [Math.min(begin, first), Math.max(end, last)]);
    }
  }
  for (const name of usedOn(program, device, own)) {
    if (!spans.has(name)) spans.set(name, [0, Math.max(program.steps.length - 1, 0)]);
  }
  const activations = program.buffers.filter((b) => !isResident(b) && spans.has(b.name));
  return new Map(activations.map((b) => [b.name, /** @type {[number, number]} */ (spans.get(b.name))]));
}

/** First and last step of each loop, inner ones first. @param {Program} program @returns {[number, number][]} */
function loopRanges({ steps }) {
  return steps.flatMap(({ control }, last) => (control?.kind === "next" ? [[control.target - 1, last]] : []));
}

/**
 * Where everything of program `own` lies in the memory of `device`: all, or what the symbols tell that are bound so far.
 * @param {Manifest} manifest
 * @param {Device} own
 * @param {Device} device
 * @param {Symbols} symbols
 * @param {number} threads
 * @param {typeof place} placing  tests place buffers apart, to see what is written outside them
 * @returns {Layout}
 */
export function layout(manifest, own, device, symbols, threads = 1, placing = place) {
  const program = /** @type {Program} */ (manifest.programs[own]);
  const sizes = bufferBytes(program, symbols);
  const groups = sizeGroups(program);
  const loading = loadLifetimes(manifest, own, device);
  for (const name of loading.keys()) groups.set(name, -1);
  const activations = lifetimes(program, stages(manifest, own), device, own);
  const spans = [...loading, ...activations].filter(([name]) => sizes.has(name));
  const least = ALIGNMENT[device];
  /** @type {Interval[]} */
  const intervals = spans.map(([name, [first, last]]) => {
    const size = sizes.get(name) ?? 0;
    return [size, first, last, loading.has(name) ? weightsAlignment(size, least) : least, groups.get(name) ?? 0];
  });
  const { offsets, total } = placing(intervals);
  const named = new Map(spans.map(([name], i) => [name, offsets[i]]));
  if (device === "webgpu") return { offsets: named, sizes, arena: total, constants: new Map(), scratch: 0, total };
  const slots =
    program.buffers.length + manifest.symbols.length + boundSymbols(program).length + 2 * loops(program).length;
  const scratch = align(SLOT_TABLE + 4 * slots, CONSTANT_ALIGNMENT);
  const start = align(scratch + threads * scratchStride(program), CONSTANT_ALIGNMENT);
  const { addresses, end: placed } = placeConstants(manifest, own, device, start);
  const end = align(placed, Math.max(1, ...intervals.map((interval) => interval[3])));
  let loaded = 0;
  for (const [name, offset] of named) {
    named.set(name, end + offset);
    if (!loading.has(name)) continue;
    loaded = Math.max(loaded, align(offset + (sizes.get(name) ?? 0), least));
    addresses.set(name, end + offset);
    named.delete(name);
  }
  return { offsets: named, sizes, arena: total - loaded, constants: addresses, scratch, total: end + total };
}

/** When each buffer's size is known: from the start (0), or after the n-th bind. @param {Program} program */
function sizeGroups(program) {
  /** @type {Map<string, number>} */
  const bound = new Map();
  let number = 0;
  for (const segment of program.segments) {
    if (!("bind" in segment)) continue;
    number++;
    for (const name of segment.symbols) bound.set(name, number);
  }
  const last = (/** @type {Set<string>} */ names) => Math.max(0, ...[...names].map((name) => bound.get(name) ?? 0));
  return new Map(program.buffers.map((b) => [b.name, last(symbolsOf(b.shape))]));
}

/** @param {Program} program */
export function scratchStride(program) {
  return align(program.resources.scratch_per_thread, 64);
}

/**
 * First and last step during which what loading makes must keep its bytes on `device`, and the constants that nothing
 * else reads.
 * @param {Manifest} manifest
 * @param {Device} own
 * @param {Device} device
 * @returns {Map<string, [number, number]>}
 */
function loadLifetimes(manifest, own, device) {
  const program = /** @type {Program} */ (manifest.programs[own]);
  /** @type {Map<string, [number, number]>} */
  const spans = new Map();
  const early = runs(program).filter((run) => run.once);
  if (!early.length || device !== "wasm") return spans;
  const once = (/** @type {number} */ i) => early.some(({ first, last }) => first <= i && i < last);
  const outputs = resultBuffers(manifest);
  const here = usedOn(program, device, own);
  /** @type {Map<string, number[]>} */
  const users = new Map(program.buffers.map(({ name }) => [name, []]));
  for (const [i, step] of program.steps.entries()) for (const name of new Set(step.arguments)) users.get(name)?.push(i);
  for (const { name, kind, tensor } of program.buffers) {
    if (!isResident({ kind }) || !here.has(name)) continue;
    const uses = users.get(name) ?? [];
    const passing = uses.length > 0 && uses.every(once) && !outputs.has(name);
    const last = passing ? uses[uses.length - 1] : program.steps.length;
    if (kind === "derived") spans.set(name, [uses[0], last]);
    else if (passing && program.buffers.filter((b) => b.tensor === tensor).length === 1) spans.set(name, [0, last]);
  }
  return spans;
}

/** What the address of so many bytes of weights is a multiple of. @param {number} size @param {number} least */
function weightsAlignment(size, least) {
  return size >= LARGE ? LARGE_ALIGNMENT : least;
}

/**
 * Address of each constant that `device` needs in every run, in the order of the weights files, and the end.
 * @param {Manifest} manifest
 * @param {Device} own
 * @param {Device} device
 * @param {number} base
 * @returns {{ addresses: Map<string, number>, end: number }}
 */
export function placeConstants(manifest, own, device, base) {
  const program = /** @type {Program} */ (manifest.programs[own]);
  const here = usedOn(program, device, own);
  for (const name of loadLifetimes(manifest, own, device).keys()) here.delete(name);
  /** @type {Map<string, string[]>} */
  const owners = new Map();
  for (const { name, tensor } of program.buffers) {
    if (tensor !== undefined && here.has(name)) owners.set(tensor, [...(owners.get(tensor) ?? []), name]);
  }
  const addresses = new Map();
  for (const file of manifest.weights.files) {
    for (const [tensor, [begin, end]] of Object.entries(file.tensors)) {
      const names = owners.get(tensor);
      if (!names) continue;
      base = align(base, weightsAlignment(end - begin, CONSTANT_ALIGNMENT));
      for (const name of names) addresses.set(name, base);
      base = align(base + Math.max(end - begin, 1), CONSTANT_ALIGNMENT);
    }
  }
  return { addresses, end: base };
}
