// Place buffers in an arena so that those that are never alive together share bytes.
//
// The twin of webmlc/package/placement.py, which explains the algorithm.
//
//   in:  the bytes, the first and last step, the alignment and the group of each buffer
//   out: their offsets, and the bytes of the arena

export const NOWHERE = -1; // the offset of a buffer that is not placed yet
const ROUNDS = 16; // at most this many orders of a group are tried, for a smaller arena
const PAIRS = 2_000_000; // the pairs of buffers that all orders together may compare
const BLOCK = 16; // firstFit looks up intervals by blocks of so many steps
const LONG = -1; // the key of the intervals that touch more than two blocks

/** Round `value` up to a multiple of `alignment`. @param {number} value @param {number} alignment */
export function align(value, alignment) {
  return Math.ceil(value / alignment) * alignment;
}

/** @typedef {[bytes: number, first: number, last: number, alignment: number, group: number]} Interval */

/**
 * Choose offsets for intervals of steps, `first` and `last` included. Intervals that are alive at the same time do not overlap.
 * Lower groups are placed first, and do not move when sizes of later groups change.
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
    const rounds = Math.max(2, Math.min(ROUNDS, Math.floor(PAIRS / order.length ** 2)));
    for (let round = 0; round < rounds; round++) {
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
 * The most bytes of `members` that are alive at one step. No placement is smaller.
 * @param {Interval[]} intervals
 * @param {number[]} sizes
 * @param {number[]} members
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
 * Place the intervals in `order`, each at the lowest free offset, around those that have an offset in `fixed`.
 * @param {Interval[]} intervals
 * @param {number[]} sizes
 * @param {number[]} order
 * @param {number[]} fixed
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
  const add = (/** @type {number} */ i) => {
    for (const block of new Set(touched(i))) blocks.set(block, blocks.get(block) ?? []).get(block)?.push(i);
  };
  placed.forEach(add);
  for (const i of order) {
    const [, first, last, alignment] = intervals[i];
    let offset = 0;
    const near = new Set([...touched(i), LONG].flatMap((block) => blocks.get(block) ?? []));
    const isShort = !touched(i).includes(LONG) && 2 * near.size < placed.length;
    for (const j of isShort ? [...near].sort((a, b) => offsets[a] - offsets[b]) : placed) {
      const other = intervals[j];
      if (other[2] < first || last < other[1]) continue;
      if (offsets[j] >= offset + sizes[i]) break;
      offset = Math.max(offset, align(offsets[j] + sizes[j], alignment));
    }
    offsets[i] = offset;
    const index = placed.findIndex((j) => offsets[j] > offset);
    placed.splice(index < 0 ? placed.length : index, 0, i);
    add(i);
  }
  return offsets;
}
