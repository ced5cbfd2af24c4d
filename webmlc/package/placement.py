"""Place buffers in an arena so that buffers that are never alive together share bytes.

In: the size, the lifetime and the alignment of each buffer. Out: their offsets, by one
deterministic algorithm. `stack` gives the order of buffers that holds for any sizes; the manifest
stores this order. A host adds up sizes in this order (`memory_plan.layout`).

The largest buffer is placed first, and each buffer at the lowest offset that fits (Pisarchyk and
Lee, "Efficient Memory Management for Deep Neural Net Inference", 2020, greedy by size). If the
arena is larger than the largest live set, the buffer that ends highest is placed first instead.
This repeats for some rounds, and the smallest arena is used.

    >>> place([Interval(100, 0, 1, 64), Interval(100, 1, 2, 64), Interval(60, 2, 3, 64)])
    Placement(offsets=(0, 128, 0), total=256)
"""

from __future__ import annotations

from bisect import insort
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

ROUNDS, PAIRS = 16, 2_000_000
"""The number of orders to try for a smaller arena, and the number of pairs of buffers that all
orders together may compare. With more than 350 buffers, fewer orders are tried. Chosen by hand:
Python compares 2,000,000 pairs in a second, and the order of loading a language model of 30 layers
has 700,000 pairs.
"""
BLOCK, LONG = 16, -1
"""The steps of a block of `first_fit`. `LONG` is the block of all buffers that are alive in more
than two blocks.
"""


@dataclass(frozen=True, slots=True)
class Interval:
    """A buffer of `bytes` that is alive during the steps `first..last`, both included.

    Its offset is a multiple of `alignment`. Buffers of a lower `group` are placed earlier,
    regardless of all other properties.
    """

    bytes: int
    first: int
    last: int
    alignment: int
    group: int = 0


@dataclass(frozen=True, slots=True)
class Placement:
    """The offsets, in the order of the intervals, and the size of the arena."""

    offsets: tuple[int, ...]
    total: int


def align(value: int, alignment: int) -> int:
    """Round `value` up to a multiple of `alignment`."""
    return -(-value // alignment) * alignment


def place(intervals: Sequence[Interval]) -> Placement:
    """Choose offsets such that no two buffers that are alive together overlap."""
    sizes = [align(max(interval.bytes, 1), interval.alignment) for interval in intervals]
    offsets: dict[int, int] = {}
    total = 0
    for group in sorted({interval.group for interval in intervals}):
        members = [i for i, interval in enumerate(intervals) if interval.group == group]
        order = sorted(members, key=lambda i: (-intervals[i].bytes, i))
        floor = max(total, largest_live_set(intervals, sizes, [*offsets, *members]))
        best, least = offsets, -1
        for _ in range(max(2, min(ROUNDS, PAIRS // len(order) ** 2))):
            trial = first_fit(intervals, sizes, order, offsets)
            highest = max(order, key=lambda i: trial[i] + sizes[i])
            end = max(total, trial[highest] + sizes[highest])
            if least < 0 or end < least:
                best, least = trial, end
            if least <= floor:
                break
            order.remove(highest)
            order.insert(0, highest)
        offsets, total = best, least
    return Placement(tuple(offsets[i] for i in range(len(intervals))), total)


def largest_live_set(
    intervals: Sequence[Interval], sizes: Sequence[int], members: Sequence[int]
) -> int:
    """The most bytes of `members` that are alive at one step: a lower bound of every placement."""
    changes: dict[int, int] = {}
    for i in members:
        first, last = intervals[i].first, intervals[i].last
        changes[first] = changes.get(first, 0) + sizes[i]
        changes[last + 1] = changes.get(last + 1, 0) - sizes[i]
    return max(accumulate(changes[step] for step in sorted(changes)))


def first_fit(
    intervals: Sequence[Interval],
    sizes: Sequence[int],
    order: Sequence[int],
    fixed: Mapping[int, int],
) -> dict[int, int]:
    """Place the buffers in `order`, each at the lowest free offset, around the `fixed` buffers.

    A buffer that is alive in one or two blocks of steps is compared only with buffers of the same
    blocks and with longer-lived buffers. A chain of n steps therefore takes time proportional to n.
    """
    offsets = dict(fixed)
    placed = sorted(offsets, key=lambda i: (offsets[i], i))
    blocks: defaultdict[int, list[int]] = defaultdict(list)  # the placed buffers by block of steps

    def touched(i: int) -> Sequence[int]:
        """The blocks of steps during which a buffer is alive."""
        steps = range(intervals[i].first // BLOCK, intervals[i].last // BLOCK + 1)
        return steps if len(steps) <= 2 else (LONG,)

    for i in placed:
        for block in touched(i):
            blocks[block].append(i)
    for i in order:
        interval = intervals[i]
        offset = 0
        near = {j for block in (*touched(i), LONG) for j in blocks[block]}
        is_short = LONG not in touched(i) and 2 * len(near) < len(placed)
        for j in sorted(near, key=offsets.__getitem__) if is_short else placed:
            other = intervals[j]
            if other.last < interval.first or interval.last < other.first:
                continue
            if offsets[j] >= offset + sizes[i]:
                break
            offset = max(offset, align(offsets[j] + sizes[j], interval.alignment))
        offsets[i] = offset
        insort(placed, i, key=lambda j: offsets[j])
        for block in touched(i):
            blocks[block].append(i)
    return offsets


def stack(intervals: Sequence[Interval], offsets: Sequence[int]) -> list[tuple[int, list[int]]]:
    """The order of buffers in an arena, for buffers of any sizes. Each buffer has the positions, in
    this order, of the buffers on which it lies: the next lower buffer at each step.

    Buffers of a lower group lie below the buffers of a higher group, so that buffers of the higher
    group never move them.

        >>> stack([Interval(4, 0, 2, 4), Interval(4, 1, 1, 4), Interval(4, 2, 3, 4)], [0, 4, 4])
        [(0, []), (1, [0]), (2, [0])]
    """
    order = sorted(range(len(intervals)), key=lambda i: (intervals[i].group, offsets[i], i))
    begins, ends = defaultdict[int, list[int]](list), defaultdict[int, list[int]](list)
    for rank, i in enumerate(order):
        begins[intervals[i].first].append(rank)
        ends[intervals[i].last + 1].append(rank)
    below: list[set[int]] = [set() for _ in order]
    alive: list[int] = []
    for step in sorted(begins.keys() | ends.keys()):
        for rank in ends[step]:
            alive.remove(rank)
        for rank in begins[step]:
            insort(alive, rank)
        for lower, upper in pairwise(alive):
            below[upper].add(lower)
    for ranks in reversed(below):  # leave out buffers that lie below another listed buffer
        ranks -= {deeper for rank in ranks for deeper in below[rank]}
    return [(i, sorted(ranks)) for i, ranks in zip(order, below, strict=True)]
