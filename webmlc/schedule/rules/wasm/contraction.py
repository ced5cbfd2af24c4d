"""Contractions: matrix products, convolutions (also grouped), matrix times vector.

In: a block that multiplies and adds, whose result's last axis is contiguous in the right operand.
Out: register tiles of rows times columns, under loops over panels and over blocks of rows:

    for i, j: for k: Y[i, j] += A[i, k] * B[j, k]   ->   for panel in range(64):
                                                             <prefetch of the panel>
                                                             for tile in range(16):
                                                                 Y[0:6, 0:8] = 0
                                                                 for k: Y[0:6, 0:8] += A · panel
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from webmlc.core.expr import Const, Expr, as_int, minimum
from webmlc.core.machine import Cpu
from webmlc.core.simplify import divides
from webmlc.loops.ir import LoopFunction
from webmlc.schedule.analysis import collapses
from webmlc.schedule.rules.rule import Rule
from webmlc.schedule.rules.space import Space
from webmlc.schedule.rules.tiling.cover import (
    Part,
    cover,
    cover_columns,
    divisors,
    partition_into,
    split_off,
)
from webmlc.schedule.rules.tiling.nests import (
    Nest,
    axis_loops,
    compute_results_at,
    extent_of,
    innermost,
    nest_under,
    only_fold,
)
from webmlc.schedule.rules.tiling.strips import strip_counts
from webmlc.schedule.rules.tiling.tile import make_tile
from webmlc.schedule.rules.wasm.contraction_defaults import (
    ContractionParameters,
    contraction_space,
    default_contraction,
)
from webmlc.schedule.rules.wasm.contraction_facts import (
    ContractionFacts,
    contraction_facts,
    start_nest,
)
from webmlc.schedule.rules.wasm.threads import (
    Sharing,
    default_sharing,
    share_work,
    sharing_space,
)
from webmlc.schedule.schedule import Schedule


@dataclass(frozen=True, slots=True)
class Facts:
    """A kernel of one contraction with its epilogue."""

    function: LoopFunction
    contraction: ContractionFacts


@dataclass(frozen=True, slots=True)
class Parameters:
    """The parameters of the contraction, and how threads share it."""

    contraction: ContractionParameters
    sharing: Sharing


def match(function: LoopFunction, machine: Cpu) -> Facts | None:
    """Matches a product of tensors with its epilogue."""
    schedule = Schedule(function)
    update = only_fold(schedule)
    if update is None:
        return None
    contraction = contraction_facts(schedule, update, machine)
    return None if contraction is None else Facts(function, contraction)


def space(facts: Facts, machine: Cpu) -> Space:
    """What the contraction may have, and how threads may share it."""
    contraction = contraction_space(facts.contraction, machine).under("contraction")
    return contraction + sharing_space(machine).under("sharing")


def default(facts: Facts, machine: Cpu) -> Parameters:
    """The default contraction, shared if that pays."""
    return Parameters(default_contraction(facts.contraction, machine), default_sharing(machine))


def build(facts: Facts, parameters: Parameters) -> Schedule:
    """Tile the contraction, and share its tiles."""
    schedule = Schedule(facts.function)
    schedule_contraction(schedule, facts.contraction, parameters.contraction)
    return share_work(schedule, parameters.sharing)


CONTRACTION = Rule("contraction", match, space, default, build)


def schedule_contraction(
    schedule: Schedule, facts: ContractionFacts, parameters: ContractionParameters, fixed: int = 0
) -> None:
    """Schedule a contraction with its epilogue. The outermost `fixed` loops around it are not its
    own: they choose the block of rows.
    """
    nest = start_nest(schedule, facts.update, facts.group_size)
    _Tiling(schedule, facts, parameters, fixed).run(nest)


@dataclass(frozen=True, slots=True)
class _Tiling:
    """One kernel's steps: common loops, parts of columns and rows, a register tile for each."""

    schedule: Schedule
    facts: ContractionFacts
    parameters: ContractionParameters
    fixed: int

    def run(self, nest: Nest) -> None:
        """Order the loops, then tile."""
        schedule, facts, parameters = self.schedule, self.facts, self.parameters
        loops = axis_loops(schedule, nest.result, self.fixed)
        named = {position: loop for position, loop in enumerate(loops) if loop is not None}
        positions = [axis.position for axis in facts.rows]
        first = len(positions) - parameters.joined
        joined, around = positions[first:], positions[:first]
        walked = around
        if 0 < parameters.joined < facts.joinable:
            batch = around[-1:] if parameters.walks_batch else []
            walked = [*batch, *around[:-1]]
        grouped = []
        if parameters.has_groups_inside and facts.group is not None:
            grouped = [facts.group[0]]
        inside = {*joined, *walked, *grouped, facts.column}
        outside = sorted({*positions, *facts.others} - inside)
        outer, rows, walk, groups = (
            [named[p] for p in chosen if p in named]
            for chosen in (outside, joined, walked, grouped)
        )
        column = named[facts.column]
        if parameters.walks_outside:
            outer, walk = [*outer, *walk], []
        schedule.reorder(*outer, *rows, *groups, *walk, column)
        compute_results_at(schedule, nest, column)
        self.fuse_reduction(nest.update)
        if rows:
            row = schedule.fuse(*rows) if len(rows) > 1 else rows[0]
            self.rows_outermost(nest, row, len(groups), len(walk))
        else:
            self.columns(nest, None, 0, parameters.rows)

    def fuse_reduction(self, update: str) -> None:
        """Fuse the inner reduction loops that step evenly through both operands: a longer inner
        loop.
        """
        schedule = self.schedule
        block = schedule.block(update)
        axes = [axis for axis in block.axes if axis.kind == "reduce"]
        loops = schedule.reduce_loops(update)
        if len(loops) != len([a for a in axes if as_int(a.extent) != 1]) or len(loops) < 2:
            return
        axes = [axis for axis in axes if as_int(axis.extent) != 1]
        joined = 1
        while joined < len(axes) and collapses(axes[-joined - 1], axes[-joined], block):
            joined += 1
        if joined > 1:
            schedule.fuse(*loops[-joined:])

    def rows_outermost(self, nest: Nest, row: str, groups: int, walks: int) -> None:
        """Block the rows for a cache, if they need it; then tile."""
        schedule, parameters = self.schedule, self.parameters
        if parameters.block_rows is None:
            self.columns(nest, row, walks, parameters.rows)
            return
        parts = cover(schedule.extent(row), parameters.block_rows)
        first, *others = partition_into(schedule, row, parts)
        tails = [(nest_under(schedule, loop), loop, parameters.tail_rows) for loop in others]
        _, inner = schedule.split(first, [None, parameters.block_rows])
        for part, loop, height in ((nest, inner, parameters.rows), *tails):
            names = schedule.loops(part.result)
            below = names.index(loop) + 1
            self.order(*names[below : below + groups], loop)
            self.columns(part, loop, walks, height)

    def columns(self, nest: Nest, row: str | None, walks: int, height: int) -> None:
        """Partition the columns, and tile each part in tiles of `height` rows."""
        schedule, facts = self.schedule, self.facts
        extent = Const(1) if row is None else schedule.extent(row)
        heights = cover(extent, height)
        widest = max(self.tile_columns(part.size) for part in heights)
        parts = cover_columns(facts.column_extent, widest, facts.panel, facts.lanes)
        widths = self.in_pairs(parts, heights)
        column = innermost(schedule, nest.result)
        loops = schedule.loops(nest.result)
        if row is not None:
            schedule.reorder(column, *loops[loops.index(row) : -1])
        for loop, width in zip(partition_into(schedule, column, widths), widths, strict=True):
            part = nest_under(schedule, loop) if loop != column else nest
            self.column_part(part, loop, width, heights, walks, row is not None)

    def column_part(
        self,
        nest: Nest,
        loop: str,
        width: Part,
        heights: tuple[Part, ...],
        walks: int,
        has_rows: bool,
    ) -> None:
        """Tile one part of the columns: panels outermost, then parts of rows, then narrower
        panels.
        """
        schedule = self.schedule
        inside = schedule.loops(nest.result)
        inside = inside[inside.index(loop) + 1 :]
        panels, lane = split_off(schedule, loop, width.size)
        half: str | None = None
        if panels is not None and self.reads_halves(heights) and divides(2, width.count):
            half, panels = schedule.split(panels, [2, None])
        times = self.fetches(heights, inside[1 : 1 + walks] if has_rows else ())
        is_fetched = self.is_fetched(nest.update, width.size, heights[0]) and as_int(times) != 0
        together: str | None = None
        if panels is not None and is_fetched:
            count = self.burst(extent_of(schedule, panels) or 1, width.size)
            if count > 1:
                panels, together = schedule.split(panels, [None, count])
        around, within = (together, None) if half is None else (None, together)
        self.order(panels, around, *inside, half, within, lane)
        if not has_rows:
            make_tile(schedule, nest, half, lane, self.facts.lanes, self.phases(1, half))
            return
        row, walk = inside[0], inside[1 : 1 + walks]
        fetched = panels
        for each, height in zip(partition_into(schedule, row, heights), heights, strict=True):
            part = nest_under(schedule, each) if each != row else nest
            names = schedule.loops(part.result)
            below = names[names.index(each) + 1 :]
            streams_below = iter(below[len(walk) :])
            streams = [
                next(streams_below) if name is not None else None for name in (half, within, lane)
            ]
            if half is not None and each == row:
                fetched = streams[0]
            self.row_part(part, each, height, below[: len(walk)], streams)
        if is_fetched and fetched is not None:
            self.prefetch(fetched, times)

    def fetches(self, heights: tuple[Part, ...], walk: Sequence[str]) -> Expr:
        """How many times a panel is fetched before it is read: once, but not where one tile is all
        that reads it, in order. The run decides where that depends on how many rows there are, or
        how often they are walked.
        """
        (first, *others), count = heights, as_int(heights[0].count)
        if count is None and self.phases(1) > 1:
            return minimum(first.count, 1)
        if others or count != 1:
            return Const(1)
        walks: Expr = Const(1)
        for loop in walk:
            walks = walks * self.schedule.extent(loop)
        return minimum(walks - 1, 1)

    def order(self, *loops: str | None) -> None:
        """Put those loops that there are in this order."""
        present = [loop for loop in loops if loop is not None]
        if len(present) > 1:
            self.schedule.reorder(*present)

    def in_pairs(self, widths: Sequence[Part], heights: tuple[Part, ...]) -> list[Part]:
        """The same columns, of which the last of an odd number of panels is alone where others are
        read by two.
        """
        if not self.reads_halves(heights):
            return list(widths)
        parts: list[Part] = []
        for width in widths:
            count = as_int(width.count) or 1
            if count > 1 and count % 2:
                parts += [Part(width.size, Const(count - 1)), Part(width.size, Const(1))]
            else:
                parts.append(width)
        return parts

    def reads_halves(self, heights: tuple[Part, ...]) -> bool:
        """True where one row may be all there is of a matrix in halves."""
        is_known = all(as_int(part.count) is not None for part in heights)
        is_alone = heights == (Part(1, Const(1)),) or not is_known
        return self.parameters.has_halves and is_alone and self.phases(1) > 1

    def row_part(
        self,
        nest: Nest,
        row: str,
        height: Part,
        walk: list[str],
        streams: list[str | None],
    ) -> None:
        """The register tiles of one part of the rows; `streams`: the loops over the two halves of
        the matrix, over panels of one that are fetched together, and over a panel's columns.
        """
        schedule = self.schedule
        half, together, lane = streams
        columns = self.tile_columns(height.size)
        narrow: str | None = None
        if lane is not None and (extent_of(schedule, lane) or 0) > columns:
            narrow, lane = schedule.split(lane, [None, columns])
        tiles, inner = split_off(schedule, row, height.size)
        if half is not None and height.size == 1:
            self.order(*walk, tiles, together, half, lane)
            make_tile(schedule, nest, half, lane, self.facts.lanes, self.phases(1, half))
            return
        self.order(half, together, narrow, *walk, tiles, inner, lane)
        phases = self.phases(height.size)
        strips = self.strips(height)
        steps = self.parameters.steps if strips == 1 else 1
        make_tile(schedule, nest, inner, lane, self.facts.lanes, phases, strips, steps)

    def tile_columns(self, rows: int) -> int:
        """The columns of a tile of `rows` rows."""
        return self.facts.panel if self.phases(rows) > 1 else self.widest_columns(rows)

    def widest_columns(self, rows: int) -> int:
        """The columns of a tile whose accumulators do not take turns."""
        match rows:
            case 1:
                return self.parameters.single_columns
            case 2:
                return self.parameters.pair_columns
        return self.facts.panel

    def phases(self, rows: int, half: str | None = None) -> int:
        """How many tiles of `rows` rows take turns along the reduction; half as many where each
        has a panel of both halves.
        """
        panels, depth = self.widest_columns(rows) // self.facts.panel, self.facts.depth
        if not self.parameters.takes_turns or not depth or depth % panels:
            return 1
        return panels if half is None else panels // 2

    def strips(self, height: Part) -> int:
        """The strips of a panel, at most. Tiles of several rows are many where the run decides how
        many: they read a panel from end to end.
        """
        is_many = height.size > 1 and as_int(height.count) is None
        return 1 if is_many else self.parameters.strips

    def is_fetched(self, update: str, columns: int, height: Part) -> bool:
        """True where panels are fetched before tiles read them: not in strips, and not those that a
        cache could not hold.
        """
        most = self.parameters.prefetched_bytes
        if most is None or self.facts.panel_size(columns) > most:
            return False
        return all(n == 1 for n in strip_counts(self.schedule, update, self.strips(height)))

    def prefetch(self, loop: str, times: Expr) -> None:
        """Let what an iteration of `loop` reads of the right operand come from memory at once,
        before it begins. `times` is 0 in a run where that does not pay.
        """
        schedule, count = self.schedule, self.parameters.fetched_lines
        lines = schedule.loops(schedule.prefetch(loop, self.facts.right, times))[-1]
        if (extent_of(schedule, lines) or 1) % count == 0:
            _, lines = schedule.split(lines, [None, count])
            schedule.unroll(lines)

    def burst(self, panels: int, columns: int) -> int:
        """How many of the panels, a number that divides theirs, are fetched together."""
        most = self.parameters.burst_bytes // max(1, self.facts.panel_size(columns))
        return divisors(panels, max(1, min(most, panels - 1)))[-1]
