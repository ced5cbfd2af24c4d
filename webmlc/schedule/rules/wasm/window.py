"""Folds along lanes: depthwise convolution, pooling, and reductions over any axis except the
contiguous axis.

In: a fold whose result's last axis is contiguous in all operands. Out: a tile of pixels times
channels in registers while the window is walked. Small windows are unrolled, so that neighbouring
pixels share loads. Where windows run along the lanes and beyond their ends, both ends are separated
from the middle:

    for c in range(96):                      for c in range(4): ...
        squares[c] += select(                for c in range(4, 92):
            0 <= c + r - 2 < 96,       ->        squares[c] += x[c + r - 2] ** 2
            x[c + r - 2] ** 2, 0)            for c in range(92, 96): ...
"""

from __future__ import annotations

from dataclasses import dataclass

from msgspec import Struct

from webmlc.core.expr import Call, Const, as_int
from webmlc.core.machine import Cpu
from webmlc.core.rewrite import walk
from webmlc.loops.ir import Block, Load, LoopFunction, expressions, loads
from webmlc.schedule.analysis import axis_ranges, flat_index, fold_of, is_vectorizable, stride
from webmlc.schedule.rules.rule import rule_of
from webmlc.schedule.rules.space import Product, Space
from webmlc.schedule.rules.tiling.cover import (
    Part,
    cover,
    cover_columns,
    partition_into,
    split_off,
)
from webmlc.schedule.rules.tiling.nests import (
    Nest,
    accumulate_locally,
    axes_of_kind,
    axis_loops,
    compute_results_at,
    extent_of,
    live_axes,
    only_fold,
    size_of,
)
from webmlc.schedule.rules.tiling.tile import make_tile
from webmlc.schedule.schedule import Schedule

PIXELS = 4
"""Pixels of a tile, by default: neighbours share loads, and few registers spill (an estimate, as
old as the rule)."""
UNROLLED_TAPS = 25
"""Taps of the largest window that is unrolled, by default: 5x5."""
UNROLLED_SELECTIONS = 9
"""Taps of the largest window that is unrolled if each tap selects by the values that it loads: 3x3.
An update is then a dozen instructions for each lane; tiles of 5x5 would nest a thousand values.
"""


class WindowParameters(Struct, frozen=True):
    """The parameters of one fold along lanes."""

    pixels: int
    """Pixels of a tile: neighbours in a row."""
    columns: int
    """Columns of a tile of several pixels."""
    single_columns: int
    """Columns of a tile of one pixel."""
    rest_columns: int
    """Columns of a tile of one pixel, if their number is symbolic: a loop that may be empty is
    worth less code."""
    is_unrolled: bool
    """Whether the window is unrolled."""


@dataclass(frozen=True, slots=True)
class WindowFacts:
    """The fold `update`, whose lanes are contiguous, with its epilogue.

    `column`: the position of the axis of lanes; `row`: the position of the axis around it, if that
    axis has a loop of its own around the fold. `edge`: columns at both ends whose windows reach
    beyond the lane axis. `is_small`: whether the window is short enough to be unrolled.
    """

    update: str
    column: int
    row: int | None
    edge: int
    is_small: bool
    lanes: int

    def space(self, machine: Cpu) -> Product[WindowParameters]:
        """Tiles that fit the registers beside one vector of weights."""
        lanes, registers = machine.lanes, machine.vector_registers
        panel, widest = machine.tile.columns, machine.narrow_tile.columns
        return Space.of(
            WindowParameters,
            pixels=(1, 2, PIXELS, 6, 8) if self.row is not None else (1,),
            columns=(lanes, panel, 2 * panel),
            single_columns=(panel, 2 * panel, widest),
            rest_columns=(panel, widest // 2),
            is_unrolled=(False, True) if self.is_small else (False,),
        ).where(
            "a tile fits the registers",
            lambda pixels, columns: pixels == 1 or pixels * columns // lanes < registers,
        )

    def default(self, machine: Cpu) -> WindowParameters:
        """A few pixels share the loads of a small window; a large one is walked for one pixel."""
        widest = machine.narrow_tile.columns
        pixels = PIXELS if self.row is not None and self.is_small else 1
        return WindowParameters(pixels, machine.tile.columns, widest, widest // 2, self.is_small)

    def build(self, schedule: Schedule, parameters: WindowParameters, fixed: int = 0) -> None:
        """Schedule the fold with its epilogue, under `fixed` loops that are not its own."""
        nest = accumulate_locally(schedule, self.update)
        loops = axis_loops(schedule, nest.result)
        column = loops[self.column]
        row = None if self.row is None or parameters.pixels == 1 else loops[self.row]
        assert column is not None
        inner = schedule.loops(nest.result)[fixed:]
        if column != inner[-1]:
            schedule.reorder(*[loop for loop in inner if loop != column], column)
        compute_results_at(schedule, nest, column)
        tiles = _Tiles(schedule, self.lanes, parameters)
        if self.edge:
            tiles.between_edges(nest, column, self.edge)
        elif row is not None:
            tiles.rows(nest, row, column)
        else:
            tiles.columns(nest, None, column, parameters.single_columns)


def window_facts(schedule: Schedule, update: str, lanes: int, fixed: int = 0) -> WindowFacts | None:
    """The facts of the fold `update`, under `fixed` loops that are not its own; `None` if its lanes
    are not contiguous.
    """
    block, loops = schedule.block(update), axis_loops(schedule, update)
    spatial = enumerate(axes_of_kind(block, "spatial"))
    live = [p for p, axis in spatial if as_int(axis.extent) != 1 and loops[p]]
    inner = schedule.loops(update)[fixed:]
    lane = loops[live[-1]] if live else None
    if fold_of(block) is None or lane is None or lane not in inner:
        return None
    taps = size_of([schedule.extent(loop) for loop in schedule.reduce_loops(update)])
    longest = UNROLLED_SELECTIONS if _has_data_conditions(block) else UNROLLED_TAPS
    is_small = taps is not None and taps <= longest
    edge = _edge(schedule, update, lane, lanes, is_small)
    if edge is None:
        return None
    outer = [loop for loop in inner if loop not in (lane, *schedule.reduce_loops(update))]
    has_rows = len(live) > 1 and outer[-1:] == [loops[live[-2]]] and edge == 0
    return WindowFacts(update, live[-1], live[-2] if has_rows else None, edge, is_small, lanes)


def _has_data_conditions(block: Block) -> bool:
    """True if the update selects by elements that it reads, as the place of a maximum does."""
    return any(
        isinstance(condition, Load)
        for value in expressions(block.body)
        for node in walk(value)
        if isinstance(node, Call) and node.op == "select"
        for condition in walk(node.args[0])
    )


def _edge(schedule: Schedule, update: str, lane: str, lanes: int, is_small: bool) -> int | None:
    """Iterations at both ends of the lane axis whose windows reach beyond it, in whole vectors;
    `None` if the iterations between the ends do not make vectors.
    """
    size = extent_of(schedule, lane) or 0
    widest = min(UNROLLED_TAPS, (size - lanes) // 2) if is_small else 0
    edges = range(0, max(widest, 0) + 1, lanes)
    fits = (is_vectorizable(schedule.function, update, lane, lanes, edge=edge) for edge in edges)
    return next((edge for edge, fit in zip(edges, fits, strict=True) if fit), None)


@dataclass(frozen=True, slots=True)
class _Tiles:
    """The steps of one fold: parts of rows, parts of columns, and a register tile for each part."""

    schedule: Schedule
    lanes: int
    parameters: WindowParameters

    def rows(self, nest: Nest, row: str, column: str) -> None:
        """Partition the rows into tiles of pixels."""
        schedule, parameters = self.schedule, self.parameters
        heights = cover(schedule.extent(row), parameters.pixels)
        for copy, height in partition_into(schedule, row, heights):
            across = copy.loops.get(column, column)
            _, pixel = split_off(schedule, copy.loop, height.size)
            widest = parameters.columns
            if pixel is not None:
                schedule.reorder(across, pixel)
            elif as_int(height.count) is not None:
                widest = parameters.single_columns
            else:
                widest = parameters.rest_columns
            self.columns(copy.with_blocks(nest), pixel, across, widest)

    def between_edges(self, nest: Nest, column: str, edge: int) -> None:
        """Separate both ends of the columns; windows along the columns share no rows."""
        schedule = self.schedule
        inside = schedule.extent(column) - 2 * edge
        parts = Part(edge, Const(1)), Part(1, inside), Part(edge, Const(1))
        for copy, _ in partition_into(schedule, column, parts):
            self.columns(copy.with_blocks(nest), None, copy.loop, self.parameters.columns)

    def columns(self, nest: Nest, pixel: str | None, column: str, widest: int) -> None:
        """Partition the columns into panels of at most `widest`, and make the tiles."""
        schedule, lanes = self.schedule, self.lanes
        widths = cover_columns(schedule.extent(column), widest, self.parameters.columns, lanes)
        for copy, width in partition_into(schedule, column, widths):
            part = copy.with_blocks(nest)
            inner = None if pixel is None else copy.loops.get(pixel, pixel)
            _, lane = split_off(schedule, copy.loop, width.size)
            if lane is not None and inner is not None:
                schedule.reorder(inner, lane)
            make_tile(schedule, part, inner, lane, lanes)
            if self.parameters.is_unrolled:
                self.unroll_taps(part.update)

    def unroll_taps(self, update: str) -> None:
        """Unroll the window. If pixels are `step` elements apart, taps also follow each other in
        steps of `step`: a load that neighbouring pixels share is needed for the next tap and no
        longer.
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
    axes = live_axes(block.axes)
    rows = [axis for axis in axes if axis.kind == "spatial"][-2:-1]
    taps = [axis for axis in axes if axis.kind == "reduce"][-1:]
    ranges = axis_ranges(block)
    for load in loads(block.body):
        index = flat_index(load.buffer, load.indices)
        match [stride(index, axis.var, ranges) for axis in (*rows, *taps)]:
            case [Const(value=int(far)), Const(value=int(near))] if near and far % near == 0:
                return max(1, far // near)
    return 1


def match(function: LoopFunction, machine: Cpu) -> WindowFacts | None:
    """Matches a fold whose lanes are contiguous, alone or with its epilogue."""
    schedule = Schedule(function)
    update = only_fold(schedule)
    return None if update is None else window_facts(schedule, update, machine.lanes)


WINDOW = rule_of("window", match)
