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
from dataclasses import dataclass, replace

from webmlc.core.expr import Const, Expr, as_int, minimum
from webmlc.core.machine import Cpu
from webmlc.core.simplify import divides
from webmlc.loops.ir import LoopFunction
from webmlc.schedule.analysis import collapses
from webmlc.schedule.rules.rule import Rule
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
    axes_of_kind,
    axis_loops,
    compute_results_at,
    extent_of,
    joined_axes,
    live_axes,
    only_fold,
    order,
    product,
)
from webmlc.schedule.rules.tiling.tile import Reduction, make_tile, strip_counts
from webmlc.schedule.rules.wasm.contraction_facts import (
    PAIRED_STEPS,
    ContractionFacts,
    ContractionParameters,
    Prefetch,
    contraction_facts,
    start_nest,
)
from webmlc.schedule.schedule import Schedule


def match(function: LoopFunction, machine: Cpu) -> ContractionFacts | None:
    """Matches a product of tensors with its epilogue."""
    schedule = Schedule(function)
    update = only_fold(schedule)
    return None if update is None else contraction_facts(schedule, update, machine)


def schedule_contraction(
    schedule: Schedule, facts: ContractionFacts, parameters: ContractionParameters, fixed: int = 0
) -> None:
    """Schedule a contraction with its epilogue. The outermost `fixed` loops around it are not its
    own: they choose the block of rows.
    """
    nest = start_nest(schedule, facts.update, facts.group_size)
    _Tiling(schedule, facts, parameters, fixed).run(nest)


CONTRACTION = Rule(
    "contraction", match, ContractionFacts.space, ContractionFacts.default, schedule_contraction
)


@dataclass(frozen=True, slots=True)
class Roles:
    """The loops around a tile, by their roles; `None` if there is no such loop.

    `row`: the joined rows, then the rows of a block or of a part. `walk`: other axes of rows; a
    panel is read again in each of their iterations. `groups`: groups of channels inside a block of
    rows. `lane`: the columns, then the columns of one panel. `half`: the two halves of the matrix;
    a tile has one panel of each half. `together`: panels of a half that are fetched together.
    """

    row: str | None
    walk: tuple[str, ...]
    groups: tuple[str, ...]
    lane: str | None
    half: str | None = None
    together: str | None = None


@dataclass(frozen=True, slots=True)
class _Tiling:
    """The steps of one kernel: common loops, parts of columns and rows, and a register tile for
    each part.
    """

    schedule: Schedule
    facts: ContractionFacts
    parameters: ContractionParameters
    fixed: int

    def run(self, nest: Nest) -> None:
        """Order the loops by the roles of their axes, then tile."""
        schedule, facts, parameters = self.schedule, self.facts, self.parameters
        positions = [axis.position for axis in facts.rows]
        first = len(positions) - parameters.joined
        joined, walked, grouped = positions[first:], positions[:first], list[int]()
        if 0 < parameters.joined < facts.joinable:
            *walked, batch = walked
            walked = [batch, *walked] if parameters.walks_batch else walked
        blocks = parameters.blocks
        if blocks is not None and blocks.has_groups and facts.group is not None:
            grouped = [facts.group[0]]
        inside = {*joined, *walked, *grouped, facts.column}
        outside = sorted({*positions, *facts.others} - inside)
        loops = axis_loops(schedule, nest.result, self.fixed)
        outer, rows, walk, groups, (column,) = (
            [loop for position in chosen if (loop := loops[position]) is not None]
            for chosen in (outside, joined, walked, grouped, [facts.column])
        )
        if parameters.walks_outside:
            outer, walk = [*outer, *walk], []
        schedule.reorder(*outer, *rows, *groups, *walk, column)
        compute_results_at(schedule, nest, column)
        self.fuse_reduction(nest.update)
        row = schedule.fuse(*rows) if len(rows) > 1 else next(iter(rows), None)
        self.rows_outermost(nest, Roles(row, tuple(walk), tuple(groups), column))

    def fuse_reduction(self, update: str) -> None:
        """Fuse the inner reduction loops that step evenly through both operands."""
        schedule = self.schedule
        block = schedule.block(update)
        axes = live_axes(axes_of_kind(block, "reduce"))
        loops = schedule.reduce_loops(update)
        joined = joined_axes(axes, lambda outer, inner: collapses(outer, inner, block))
        if joined > 1 and len(loops) == len(axes):
            schedule.fuse(*loops[-joined:])

    def rows_outermost(self, nest: Nest, roles: Roles) -> None:
        """Block the rows for a cache, if they need it; then tile."""
        schedule, blocks, height = self.schedule, self.parameters.blocks, self.parameters.rows
        if blocks is None or roles.row is None:
            self.columns(nest, roles, height)
            return
        for copy, _ in partition_into(
            schedule, roles.row, cover(schedule.extent(roles.row), blocks.rows)
        ):
            copied, row = copy.with_loops(roles), copy.loop
            if row == roles.row:
                _, row = schedule.split(row, [None, blocks.rows])
            order(schedule, *copied.groups, row)
            self.columns(copy.with_blocks(nest), replace(copied, row=row), height)
            height = blocks.tail_rows

    def columns(self, nest: Nest, roles: Roles, height: int) -> None:
        """Partition the columns, and tile each part in tiles of `height` rows."""
        schedule, facts, column = self.schedule, self.facts, roles.lane
        assert column is not None
        extent = Const(1) if roles.row is None else schedule.extent(roles.row)
        heights = cover(extent, height)
        widest = max(self.tile_columns(part.size) for part in heights)
        parts = cover_columns(facts.column_extent, widest, facts.panel, facts.lanes)
        widths = self.in_pairs(parts, heights)
        if roles.row is not None:
            schedule.reorder(column, roles.row, *roles.walk)
        for copy, width in partition_into(schedule, column, widths):
            self.column_part(copy.with_blocks(nest), copy.with_loops(roles), width, heights)

    def column_part(self, nest: Nest, roles: Roles, width: Part, heights: tuple[Part, ...]) -> None:
        """Tile a part of the columns: panels outermost, then rows, then narrower panels."""
        schedule, row = self.schedule, roles.row
        assert roles.lane is not None
        panels, lane = split_off(schedule, roles.lane, width.size)
        half: str | None = None
        if panels is not None and self.reads_halves(heights) and divides(2, width.count):
            half, panels = schedule.split(panels, [2, None])
        times = self.fetches(heights, roles.walk)
        prefetch = self.prefetch_of(nest.update, width.size, heights[0])
        together: str | None = None
        if panels is None or as_int(times) == 0:
            prefetch = None
        elif prefetch is not None:
            most = prefetch.burst_bytes // max(1, self.facts.panel_size(width.size))
            panel_count = extent_of(schedule, panels) or 1
            count = divisors(panel_count, max(1, min(most, panel_count - 1)))[-1]
            if count > 1:
                panels, together = schedule.split(panels, [None, count])
        around, within = (together, None) if half is None else (None, together)
        order(schedule, panels, around, row, *roles.walk, half, within, lane)
        if row is None:
            steps = PAIRED_STEPS if self.facts.in_pairs else 1
            reduction = Reduction(self.phases(1, half), steps=steps)
            make_tile(schedule, nest, half, lane, self.facts.lanes, reduction)
            return
        roles = replace(roles, half=half, together=within, lane=lane)
        for copy, height in partition_into(schedule, row, heights):
            self.row_part(copy.with_blocks(nest), copy.with_loops(roles), height)
        fetched = half or panels
        if fetched is not None and prefetch is not None:
            self.fetch(fetched, times, prefetch)

    def fetches(self, heights: tuple[Part, ...], walk: Sequence[str]) -> Expr:
        """How many times a panel is fetched before tiles of `heights` read it: once or never.

        A panel that a single tile reads once, in order, is not fetched: the hardware's prefetcher
        does the same. If the number of full tiles is known only at run time and they have phases,
        the panel is fetched unless there is no full tile. If `walk` repeats a single tile, the
        panel is fetched unless `walk` has one iteration.
        """
        (first, *others), count = heights, as_int(heights[0].count)
        if count is None and self.phases(1) > 1:
            return minimum(first.count, 1)
        if others or count != 1:
            return Const(1)
        return minimum(product(map(self.schedule.extent, walk)) - 1, 1)

    def in_pairs(self, widths: Sequence[Part], heights: tuple[Part, ...]) -> list[Part]:
        """The same columns; where panels come in pairs, an odd last panel is a part by itself."""
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
        """True if the right operand is read in halves, and all rows may be a single row."""
        is_known = all(as_int(part.count) is not None for part in heights)
        is_alone = heights == (Part(1, Const(1)),) or not is_known
        return self.parameters.has_halves and is_alone and self.phases(1) > 1

    def row_part(self, nest: Nest, roles: Roles, height: Part) -> None:
        """Make the register tiles of one part of the rows."""
        schedule, half, lane = self.schedule, roles.half, roles.lane
        assert roles.row is not None
        columns = self.tile_columns(height.size)
        narrow: str | None = None
        if lane is not None and (extent_of(schedule, lane) or 0) > columns:
            narrow, lane = schedule.split(lane, [None, columns])
        tiles, inner = split_off(schedule, roles.row, height.size)
        if half is not None and height.size == 1:
            order(schedule, *roles.walk, tiles, roles.together, half, lane)
            make_tile(schedule, nest, half, lane, self.facts.lanes, Reduction(self.phases(1, half)))
            return
        order(schedule, half, roles.together, narrow, *roles.walk, tiles, inner, lane)
        strips = self.strips(height)
        steps = self.parameters.steps if strips == 1 else 1
        if height.size == 1 and self.facts.in_pairs:
            steps = PAIRED_STEPS
        reduction = Reduction(self.phases(height.size), strips, steps)
        make_tile(schedule, nest, inner, lane, self.facts.lanes, reduction)

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
        """The number of phases of a tile of `rows` rows: the sets of accumulators that take turns
        along the reduction, so that a multiply-add need not wait for the one before it. Half the
        number if each set has a panel of both halves.
        """
        panels, depth = self.widest_columns(rows) // self.facts.panel, self.facts.depth
        if not self.parameters.takes_turns or depth <= panels or depth % panels:
            return 1  # a tile that has a single turn has no loop
        return panels if half is None else panels // 2

    def strips(self, height: Part) -> int:
        """The most strips of a panel. A panel that several tiles read is read from end to end, as
        one strip. Tiles of several rows count as several tiles if their number is known only at run
        time.
        """
        is_many = height.size > 1 and as_int(height.count) is None
        return 1 if is_many else self.parameters.strips

    def prefetch_of(self, update: str, columns: int, height: Part) -> Prefetch | None:
        """How panels are fetched before tiles read them; `None` for panels that no cache holds, or
        that are read in strips.
        """
        prefetch = self.parameters.prefetch
        if prefetch is None or self.facts.panel_size(columns) > prefetch.largest_bytes:
            return None
        counts = strip_counts(self.schedule, update, self.strips(height))
        return prefetch if all(count == 1 for count in counts) else None

    def fetch(self, loop: str, times: Expr, prefetch: Prefetch) -> None:
        """Fetch all elements of the right operand that an iteration of `loop` reads from memory at
        once, before the iteration begins. `times` is 0 in a run where this does not pay.
        """
        schedule, count = self.schedule, prefetch.lines
        lines = schedule.loops(schedule.prefetch(loop, self.facts.right, times))[-1]
        if (extent_of(schedule, lines) or 1) % count == 0:
            _, lines = schedule.split(lines, [None, count])
            schedule.unroll(lines)
