"""Folds along lanes: depthwise convolution, pooling, reductions over any axis but the contiguous
one.

In: a fold whose result's last axis is contiguous in everything it reads. Out: a tile of pixels
times channels in registers while the window is walked; small windows are unrolled, so that
neighbouring pixels share what they load. Where windows run along the lanes and beyond their ends,
both ends are parted from what lies between:

    for c in range(96):                      for c in range(4): ...
        squares[c] += select(                for c in range(4, 92):
            0 <= c + r - 2 < 96,       ->        squares[c] += x[c + r - 2] ** 2
            x[c + r - 2] ** 2, 0)            for c in range(92, 96): ...
"""

from __future__ import annotations

from dataclasses import dataclass

from webmlc.core.expr import Const, Expr, as_int
from webmlc.core.machine import Machine
from webmlc.loops.ir import Block, loads
from webmlc.schedule.analysis import axis_ranges, flat_index, fold_of, is_vectorizable, stride
from webmlc.schedule.rules.wasm.nests import (
    Nest,
    accumulate_locally,
    axis_loops,
    compute_results_at,
    extent_of,
    nest_under,
    product,
)
from webmlc.schedule.rules.wasm.tile import (
    Part,
    cover_columns,
    make_tile,
    partition_into,
    split_off,
)
from webmlc.schedule.schedule import Schedule

PIXELS = 4
"""Pixels of a tile: neighbours share what they load, and little spills."""
UNROLLED_TAPS = 25
"""The largest window that is unrolled."""


def schedule_window(schedule: Schedule, update: str, machine: Machine, fixed: int = 0) -> bool:
    """Schedule the fold `update` with its epilogue; False where its lanes are not contiguous."""
    block = schedule.block(update)
    spatial = [axis for axis in block.axes if axis.kind == "spatial"]
    loops = axis_loops(schedule, update)[: len(spatial)]
    live = [p for p, axis in enumerate(spatial) if as_int(axis.extent) != 1 and loops[p]]
    if fold_of(block) is None or not live:
        return False
    last = loops[live[-1]]
    assert last is not None
    if last in schedule.loops(update)[:fixed]:
        return False
    is_small = _is_small(schedule, update)
    edge = _edge(schedule, update, last, machine, is_small)
    if edge is None:
        return False
    nest = accumulate_locally(schedule, update)
    named = axis_loops(schedule, nest.result)
    column = named[live[-1]]
    assert column is not None
    inner = schedule.loops(nest.result)[fixed:]
    if column != inner[-1]:
        schedule.reorder(*[loop for loop in inner if loop != column], column)
    compute_results_at(schedule, nest, column)
    row = named[live[-2]] if len(live) > 1 else None
    if edge:
        _Tiles(schedule, machine, is_small).between_edges(nest, column, edge)
        return True
    if row is None or row not in inner or not is_small or inner.index(row) != len(inner) - 2:
        row = None
    _Tiles(schedule, machine, is_small).rows(nest, row, column)
    return True


def _is_small(schedule: Schedule, update: str) -> bool:
    """True of a window that is unrolled."""
    taps = product([schedule.extent(loop) for loop in schedule.reduce_loops(update)])
    return taps is not None and taps <= UNROLLED_TAPS


def _edge(
    schedule: Schedule, update: str, lane: str, machine: Machine, is_small: bool
) -> int | None:
    """Iterations at both ends of the lane axis whose windows reach beyond it, in whole vectors;
    `None` where the others do not make vectors.
    """
    size, lanes = extent_of(schedule, lane) or 0, machine.lanes
    widest = min(UNROLLED_TAPS, (size - lanes) // 2) if is_small else 0
    edges = range(0, max(widest, 0) + 1, lanes)
    fits = (is_vectorizable(schedule.function, update, lane, lanes, edge=edge) for edge in edges)
    return next((edge for edge, fit in zip(edges, fits, strict=True) if fit), None)


@dataclass(frozen=True, slots=True)
class _Tiles:
    """One fold's steps: parts of rows, parts of columns, a register tile for each."""

    schedule: Schedule
    machine: Machine
    unrolled: bool

    def rows(self, nest: Nest, row: str | None, column: str) -> None:
        """Partition the rows into tiles of pixels."""
        schedule = self.schedule
        if row is None:
            self.columns(nest, None, column, self.machine.narrow_tile.columns)
            return
        heights = _cover_pixels(schedule.extent(row))
        for loop, height in zip(partition_into(schedule, row, heights), heights, strict=True):
            part = nest if loop == row else nest_under(schedule, loop)
            column = schedule.loops(part.result)[-1]
            _, pixel = split_off(schedule, loop, height.size)
            if pixel is not None:
                schedule.reorder(column, pixel)
            widest = self.machine.tile.columns
            if pixel is None:  # a remainder that may be empty is worth half the code
                widest = self.machine.narrow_tile.columns // (1 if as_int(height.count) else 2)
            self.columns(part, pixel, column, widest)

    def between_edges(self, nest: Nest, column: str, edge: int) -> None:
        """Part both ends of the columns from the others: windows along them share no rows."""
        schedule = self.schedule
        inside = schedule.extent(column) - 2 * edge
        for loop in partition_into(
            schedule, column, (Part(edge, Const(1)), Part(1, inside), Part(edge, Const(1)))
        ):
            self.columns(nest_under(schedule, loop), None, loop, self.machine.tile.columns)

    def columns(self, nest: Nest, pixel: str | None, column: str, widest: int) -> None:
        """Partition the columns into panels of at most `widest`, and make the tiles."""
        schedule, machine = self.schedule, self.machine
        widths = cover_columns(schedule.extent(column), widest, machine)
        for loop, width in zip(partition_into(schedule, column, widths), widths, strict=True):
            part = nest if loop == column else nest_under(schedule, loop)
            names = schedule.loops(part.result)
            inner = names[names.index(loop) + 1] if pixel is not None else None
            _, lane = split_off(schedule, loop, width.size)
            if lane is not None and inner is not None:
                schedule.reorder(inner, lane)
            make_tile(schedule, part, inner, lane, machine)
            if self.unrolled:
                self.unroll_taps(part.update)

    def unroll_taps(self, update: str) -> None:
        """Write out the window. Where pixels are `step` elements apart, so are the taps that follow
        each other: what neighbouring pixels share is needed for the next tap and no longer.
        """
        schedule = self.schedule
        taps = schedule.reduce_loops(update)
        step = _step(schedule.block(update))
        if taps and 1 < step < (extent_of(schedule, taps[-1]) or 0):
            along, phase = schedule.split(taps[-1], [None, step])
            schedule.reorder(phase, along)
            taps[-1:] = [phase, along]
        for tap in taps:
            schedule.unroll(tap)


def _step(block: Block) -> int:
    """How many taps of a row further the next pixel's are: the stride of a convolution."""
    axes = [axis for axis in block.axes if as_int(axis.extent) != 1]
    rows = [axis for axis in axes if axis.kind == "spatial"][-2:-1]
    taps = [axis for axis in axes if axis.kind == "reduce"][-1:]
    ranges = axis_ranges(block)
    for load in loads(block.body):
        index = flat_index(load.buffer, load.indices)
        match [stride(index, axis.var, ranges) for axis in (*rows, *taps)]:
            case [Const(value=int(far)), Const(value=int(near))] if near and far % near == 0:
                return max(1, far // near)
    return 1


def _cover_pixels(extent: Expr) -> tuple[Part, ...]:
    size = as_int(extent)
    if size is None:
        return Part(PIXELS, extent // PIXELS), Part(1, extent % PIXELS)
    full, rest = divmod(size, PIXELS)
    parts = [Part(PIXELS, Const(full))] if full else []
    return (*parts, Part(rest, Const(1))) if rest else tuple(parts)
