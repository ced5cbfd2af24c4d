"""Cover an extent with tiles: as many full tiles as fit, then smaller tiles for the remainder.

In: a loop and the sizes of tiles. Out: the same loop partitioned into parts, each a whole number of
tiles of one size:

    for r in range(197): ...   ->   for r in range(192): ...   # 32 tiles of 6
                                    for r in range(5): ...     # one of 5
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from webmlc.core.expr import Const, Expr, as_int
from webmlc.core.simplify import simplify
from webmlc.schedule.primitives.partition import Copy
from webmlc.schedule.rules.tiling.nests import extent_of
from webmlc.schedule.schedule import Schedule


@dataclass(frozen=True, slots=True)
class Part:
    """A stretch of an axis: `count` tiles of `size`, from the end of the part before."""

    size: int
    count: Expr

    @property
    def extent(self) -> Expr:
        """Steps of the axis that the part covers."""
        return self.count * self.size


def cover(extent: Expr, size: int) -> tuple[Part, ...]:
    """Cover an extent with full tiles of `size`, then with one tile for the remainder. Single steps
    cover the remainder of a symbolic extent.

    There is no part without steps, unless a symbolic count can be 0 in some run.
    """
    steps = as_int(extent)
    if steps is None:
        parts = [Part(size, extent // size), Part(1, extent % size)]
        return tuple(part for part in parts if simplify(part.count) != Const(0))
    full, left = divmod(steps, size)
    whole = (Part(size, Const(full)),) if full else ()
    return (*whole, Part(left, Const(1))) if left else whole


def cover_columns(extent: Expr, widest: int, panel: int, lanes: int) -> tuple[Part, ...]:
    """Cover columns with tiles of `widest`, then of a `panel` (if that is narrower), then of
    `lanes`, then with one tile for the remainder. A symbolic extent has panels, then single
    columns. There is at least one part, as callers pair parts with loops.
    """
    size = as_int(extent)
    if size is None:
        return Part(panel, extent // panel), Part(1, extent % panel)
    parts: list[Part] = []
    widths = {width for width in (widest, panel, lanes) if width <= widest}
    for width in sorted(widths, reverse=True):
        full, size = divmod(size, width)
        if full:
            parts.append(Part(width, Const(full)))
    if size:
        parts.append(Part(size, Const(1)))
    return tuple(parts) or (Part(1, Const(0)),)


def partition_into(
    schedule: Schedule, loop: str, parts: Sequence[Part]
) -> Iterator[tuple[Copy, Part]]:
    """Partition a loop into parts; returns each part with its copy of the loop's body."""
    copies = [Copy(loop)]
    for part in parts[:-1]:
        _, last = schedule.partition(copies[-1].loop, part.extent)
        copies.append(last.of(copies[-1]))
    return zip(copies, parts, strict=True)


def split_off(schedule: Schedule, loop: str, size: int) -> tuple[str | None, str | None]:
    """Split a loop into tiles of `size`, which divides it: the loop over tiles and the loop within
    a tile. A loop that would have one step is `None`, but not both loops.
    """
    if extent_of(schedule, loop) == size:
        return (None, loop) if size > 1 else (loop, None)
    if size == 1:
        return loop, None
    outer, inner = schedule.split(loop, [None, size])
    return outer, inner


def divisors(count: int, largest: int) -> tuple[int, ...]:
    """The divisors of a count up to `largest`, smallest first: tiles that leave nothing over."""
    return tuple(n for n in range(1, largest + 1) if count % n == 0)


def unroll_factor(extent: Expr, largest: int) -> int:
    """The largest divisor of a constant extent up to `largest`; 1 for a symbolic one."""
    count = as_int(simplify(extent))
    return 1 if count is None else divisors(count, largest)[-1]


def write_out(schedule: Schedule, loop: str, most: int) -> None:
    """Unroll a loop, or the largest part of up to `most` iterations that divides it. The loads of
    written-out iterations do not wait for each other. An unrolled loop stays as it is.
    """
    extent = schedule.extent(loop)
    factor = unroll_factor(extent, most)
    if factor == 1 or schedule.loop(loop).kind != "serial":
        return
    if factor != as_int(simplify(extent)):
        _, loop = schedule.split(loop, [None, factor])
    schedule.unroll(loop)
