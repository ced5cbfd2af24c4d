"""Register tiles: the micro-kernel, made by primitives.

In: a reduction and its result block under common loops, `columns` (the lane axis) innermost but for
the reduction, `rows` somewhere around it. Out: the same nests tiled so that a tile of the result
stays in registers while the reduction runs:

    for ..., ro, ri(6), c(8):                    for ..., ro:
        for k: Y[r, c] += A[r, k] * B[k, c]          Y[0:6, 0:8] = 0
        C[r, c] = max(Y[r, c], 0)            ->      for k: Y[0:6, 0:8] += A[0:6, k] * B[k, 0:8]
                                                     C[0:6, 0:8] = max(Y[0:6, 0:8], 0)

with the tile's loops unrolled and vectorized: `target` turns the tile of `Y` into registers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from webmlc.core.expr import Const, Expr, as_int
from webmlc.core.machine import Machine
from webmlc.core.simplify import simplify
from webmlc.schedule.analysis import is_vectorizable
from webmlc.schedule.errors import ScheduleError
from webmlc.schedule.rules.wasm.nests import Nest, extent_of
from webmlc.schedule.rules.wasm.stream import Stream
from webmlc.schedule.schedule import Schedule


@dataclass(frozen=True, slots=True)
class Part:
    """A stretch of an axis: `count` tiles of `size`, from where the last part ended. A symbolic
    count has no number.
    """

    size: int
    count: Expr

    @property
    def extent(self) -> Expr:
        """Steps of the axis that the part covers."""
        return self.count * self.size


def cover_rows(extent: Expr, machine: Machine, widens: bool = True) -> tuple[Part, ...]:
    """Tiles of rows that cover `extent` exactly: as many full ones as fit, then one of what is
    left (of a symbolic number of rows, one a row).

    The full tile's height is the one whose tiles take the fewest cycles altogether. `widens`: tiles
    of one or two rows may have more columns than others.
    """
    size = as_int(extent)
    tallest = machine.tile.rows
    if size is None:  # what is left of full tiles has none, whole blocks of them leave nothing
        parts = [Part(tallest, extent // tallest), Part(1, extent % tallest)]
        return tuple(part for part in parts if simplify(part.count) != Const(0))
    heights = range(1, tallest + 1)
    best = min(heights, key=lambda rows: (_row_cycles(size, rows, widens), -rows))
    full, rest = divmod(size, best)
    whole = (Part(best, Const(full)),) if full else ()
    return (*whole, Part(rest, Const(1))) if rest else whole


_CYCLES = (0.0, 1.1, 2.2, 4.0, 4.75, 5.4, 6.1)
"""Cycles a reduction step takes for a tile of so many rows and 8 columns: 2 multiply-adds a cycle,
at least 8 in flight.

Tiles of one or two rows are 32 or 16 columns wide, which keeps 8 in flight, and count a fraction.
"""
_LATENCY = 4.0
"""Cycles that a multiply-add takes: the least of a step of a tile that is no wider."""


def _row_cycles(size: int, rows: int, widens: bool) -> float:
    full, rest = divmod(size, rows)
    least = 0.0 if widens else _LATENCY
    return full * max(_CYCLES[rows], least) + (max(_CYCLES[rest], least) if rest else 0.0)


def columns_for(rows: int, machine: Machine) -> int:
    """How many columns a tile of `rows` has: enough for 8 accumulators, as many as registers
    allow.
    """
    if rows <= 1:
        return machine.narrow_tile.columns
    return machine.narrow_tile.columns // 2 if rows == 2 else machine.tile.columns


def cover_columns(extent: Expr, widest: int, machine: Machine) -> tuple[Part, ...]:
    """Tiles of columns that cover `extent` exactly: `widest`, then 8, then a vector, then
    scalars.
    """
    size = as_int(extent)
    lanes = machine.lanes
    if size is None:
        width = machine.tile.columns
        return Part(width, extent // width), Part(1, extent % width)
    parts: list[Part] = []
    widths = {width for width in (widest, machine.tile.columns, lanes) if width <= widest}
    for width in sorted(widths, reverse=True):
        full, size = divmod(size, width)
        if full:
            parts.append(Part(width, Const(full)))
    if size:
        parts.append(Part(size, Const(1)))
    return tuple(parts) or (Part(1, Const(0)),)


def partition_into(schedule: Schedule, loop: str, parts: Sequence[Part]) -> list[str]:
    """Partition a loop into parts; returns the loop of each."""
    loops: list[str] = []
    for part in parts[:-1]:
        first, loop = schedule.partition(loop, part.extent)
        loops.append(first)
    return [*loops, loop]


def split_off(schedule: Schedule, loop: str, size: int) -> tuple[str | None, str | None]:
    """Split tiles of `size` off a loop: the loop over tiles and the loop within one, `None` for one
    of one step.
    """
    if extent_of(schedule, loop) == size:
        return (None, loop) if size > 1 else (loop, None)
    if size == 1:
        return loop, None
    outer, inner = schedule.split(loop, [None, size])
    return outer, inner


def make_tile(
    schedule: Schedule,
    nest: Nest,
    rows: str | None,
    columns: str | None,
    machine: Machine,
    phases: int = 1,
    stream: Stream | None = None,
) -> None:
    """Turn the two innermost common loops, `rows` around `columns`, into one register tile.

    `phases`: every so many steps of the innermost reduction loop have a tile of their own; the
    tiles are added at the end. `stream`: the right operand where it comes from memory, strip by
    strip.
    """
    is_ragged = rows is not None and _is_ragged(schedule, nest, columns, machine)
    if is_ragged and nest.copy is None:
        nest = replace(nest, copy=schedule.cache_write(nest.update, "local"))
    partial = _split_phases(schedule, nest.update, phases) if phases > 1 else None
    if stream is not None:
        stream.split_strips(schedule, partial or nest.update)
    for loop in (columns, rows):
        if loop is not None:
            schedule.fission(loop)
    if is_ragged and columns is not None and nest.copy is not None:
        _round_up(schedule, (columns, schedule.loops(nest.copy)[-1]), machine)
    tile = [loop for loop in (rows, columns) if loop is not None]
    sums = [nest.update] if partial is None else [partial, nest.update]
    starts = [_put_inside(schedule, s, len(tile)) for s in sums if schedule.reduce_loops(s)]
    for block in dict.fromkeys((*starts, *sums, *nest.unrolled)):
        loops = schedule.loops(block)[-len(tile) :] if tile else []
        if columns is not None:
            vectorize_columns(schedule, block, loops[-1], machine)
        if rows is not None:
            schedule.unroll(loops[0])
    if nest.copy is not None and columns is not None:
        loop = schedule.loops(nest.result)[-1]
        vectorize_columns(schedule, nest.result, loop, machine, unroll=rows is not None)


def _is_ragged(schedule: Schedule, nest: Nest, columns: str | None, machine: Machine) -> bool:
    """True for columns that would fill vectors if there were more of them."""
    if columns is None or (extent_of(schedule, columns) or 0) % machine.lanes == 0:
        return False
    return is_vectorizable(schedule.function, nest.update, columns, machine.lanes)


def _round_up(schedule: Schedule, loops: Sequence[str], machine: Machine) -> None:
    """Compute whole vectors of columns, where the right operand is padded to them."""
    try:
        for loop in loops:
            schedule.round_up(loop, machine.lanes)
    except ScheduleError:
        return


def _split_phases(schedule: Schedule, update: str, phases: int) -> str:
    """Give `phases` neighbouring steps of a reduction an accumulator each; returns the block that
    fills them.
    """
    _, phase = schedule.split(schedule.reduce_loops(update)[-1], [None, phases])
    partial = schedule.rfactor(phase, 0)
    schedule.set_scope(partial, "local")
    schedule.unroll(phase)
    schedule.unroll(schedule.reduce_loops(update)[-1])
    return partial


def _put_inside(schedule: Schedule, update: str, depth: int) -> str:
    """Put the `depth` loops of a tile inside the loops of a reduction, and what initialises it
    before them; returns the block that does.
    """
    loops, reduced = schedule.loops(update), schedule.reduce_loops(update)
    start = loops.index(reduced[0])
    tile = loops[start - depth : start]
    if tile:
        schedule.reorder(*loops[start:], *tile)
    return schedule.decompose_reduction(update, reduced[0])


def vectorize_columns(
    schedule: Schedule,
    block: str,
    loop: str,
    machine: Machine,
    unroll: bool = True,
    gathers: bool = False,
) -> None:
    """Make whole vectors of a tile's columns where there are any, else scalars; and unroll them.

    `gathers`: vectors may be made of elements that are not adjacent.
    """
    size, lanes = extent_of(schedule, loop), machine.lanes
    is_whole = size is not None and size % lanes == 0
    if is_whole and is_vectorizable(schedule.function, block, loop, lanes, gathers):
        if size == lanes:
            schedule.vectorize(loop)
            return
        loop, lane = schedule.split(loop, [None, lanes])
        schedule.vectorize(lane)
    if unroll:
        schedule.unroll(loop)
