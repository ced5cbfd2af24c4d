"""Contractions: matrix products, convolutions (also grouped), matrix times vector.

In: a block that multiplies and adds, whose result's last axis is contiguous in the right operand.
The schedule is that of the fastest hand-written kernels: a register tile of pixels (or rows) times
channels (or columns), the packed panel `[K][8]` of the right operand in the first-level cache,
blocks of the left one in the second.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from webmlc.core.expr import Call, Const, Expr, Var, as_int, minimum
from webmlc.core.machine import Machine
from webmlc.core.rewrite import rewrite, variables
from webmlc.core.simplify import divides
from webmlc.loops.ir import Axis, Block, Buffer
from webmlc.schedule.analysis import (
    Contraction,
    axis_ranges,
    collapses,
    contraction_of,
    flat_index,
    lane_stride,
)
from webmlc.schedule.primitives.prefetch import LINE_BYTES
from webmlc.schedule.rules.wasm.nests import (
    Nest,
    accumulate_locally,
    axis_loops,
    compute_results_at,
    extent_of,
    innermost,
    nest_under,
    product,
)
from webmlc.schedule.rules.wasm.stream import Stream
from webmlc.schedule.rules.wasm.threads import ENOUGH_FOR_THREADS
from webmlc.schedule.rules.wasm.tile import (
    Part,
    columns_for,
    cover_columns,
    cover_rows,
    make_tile,
    partition_into,
    split_off,
)
from webmlc.schedule.schedule import Schedule


@dataclass(frozen=True, slots=True)
class Plan:
    """Which spatial axes (by position) play which part, and how the loops nest.

    `outer` loops come first; `rows` are fused into the tile's row loop; `walk` are the other rows
    of the left operand (image rows above a row of pixels); `column` is the lane axis. A block of
    `block_rows` meets all columns before the next one does: as many rows as the second-level cache
    holds, or one tile, which then writes whole cache lines, where the first holds all of the right
    operand. It meets all of `groups`, whose channels alternate in memory, too. `streamed` is a
    right operand in panels that the second-level cache cannot keep from one run to the next, `cold`
    says that other kernels' operands may push it out; `depth` is how many products each sum has (0
    where symbolic).
    """

    outer: tuple[int, ...]
    groups: tuple[int, ...]
    rows: tuple[int, ...]
    walk: tuple[int, ...]
    column: int
    row_extent: Expr
    column_extent: Expr
    block_rows: int | None
    walk_outermost: bool
    streamed: Stream | None
    cold: bool
    depth: int


def schedule_contraction(schedule: Schedule, update: str, machine: Machine, fixed: int = 0) -> bool:
    """Schedule the contraction `update` with its epilogue; False where this rule does not apply.

    The outermost `fixed` loops around it are not its own: they choose the block of rows.
    """
    nest: Nest | None = None
    group: Axis | None = None
    found = contraction_of(schedule.block(update))
    if found is not None and not found.columns and (size := _group_size(found)) is not None:
        nest = accumulate_locally(schedule, update)
        _split_groups(schedule, nest, found.batch[-1], size)
        found = contraction_of(schedule.block(update))
        group = found.batch[-1] if found is not None and found.batch else None
    block = schedule.block(update)
    if found is None or not found.columns or not _has_lanes(block, found, machine):
        return False
    nest = nest or accumulate_locally(schedule, update)
    plan = _plan(schedule, block, schedule.block(nest.result), found, group, machine)
    plan = replace(plan, block_rows=None, groups=()) if fixed else plan
    _Tiling(schedule, plan, machine, fixed).run(nest)
    return True


def _group_size(found: Contraction) -> int | None:
    """Output channels of a group: the last axis is one of channels, whose group the left operand
    is of; `None` for another contraction.
    """
    if not found.batch:
        return None
    channel = found.batch[-1].var
    sizes: set[int | None] = set()

    def group(node: Expr) -> Expr | None:
        match node:
            case Call(op="floordiv", args=(Var() as var, Const() as size)) if var == channel:
                sizes.add(as_int(size))
                return Const(0)
        return None

    if any(channel in variables(rewrite(index, group)) for index in found.left.indices):
        return None
    extent, size = as_int(found.batch[-1].extent), next(iter(sizes))
    return size if len(sizes) == 1 and size and extent and extent % size == 0 else None


def _split_groups(schedule: Schedule, nest: Nest, channel: Axis, size: int) -> None:
    """Give groups and the channels of a group an axis and a loop each."""
    spatial = [axis for axis in schedule.block(nest.update).axes if axis.kind == "spatial"]
    position = spatial.index(channel)
    writers = [nest.update] if nest.copy is None else [nest.update, nest.copy]
    loops = [axis_loops(schedule, block)[position] for block in (*writers, nest.result)]
    for writer in writers:
        schedule.split_dimension(writer, position, size)
    for loop in loops:
        assert loop is not None
        schedule.split(loop, [None, size])


def _has_lanes(block: Block, found: Contraction, machine: Machine) -> bool:
    """True where the last column axis runs along vectors of the right operand, and is the result's
    last.
    """
    axis = found.columns[-1]
    spatial = [a for a in block.axes if a.kind == "spatial" and as_int(a.extent) != 1]
    if not spatial or spatial[-1] != axis:
        return False
    index = flat_index(found.right.buffer, found.right.indices)
    return lane_stride(index, axis.var, machine.lanes, axis_ranges(block)) == 1


def _plan(
    schedule: Schedule,
    update: Block,
    result: Block,
    found: Contraction,
    group: Axis | None,
    machine: Machine,
) -> Plan:
    spatial = [axis for axis in update.axes if axis.kind == "spatial"]
    positions = {axis.var: position for position, axis in enumerate(spatial)}
    column = found.columns[-1]
    rows: list[Axis] = []
    batch: Axis | None = None
    for axis in reversed([axis for axis in found.rows if as_int(axis.extent) != 1]):
        if rows and not _can_join(axis, rows[0], positions, update, result):
            break
        if as_int(axis.extent) is None and _fill_tiles(rows, machine):
            batch = axis
            break
        rows.insert(0, axis)
    others = [axis for axis in found.rows if axis not in (*rows, batch)]
    walk = [axis for axis in others if as_int(axis.extent) != 1]
    reduced = product([axis.extent for axis in found.reduced])
    size = product([axis.extent for axis in rows])
    row_extent: Expr = Const(1)
    for axis in rows:
        row_extent = row_extent * axis.extent
    right_bytes = product([a.extent for a in (*found.reduced, column)])
    small_right = right_bytes is not None and right_bytes * 4 <= machine.l2_bytes // 2
    many = any((as_int(axis.extent) or ENOUGH_FOR_THREADS) >= ENOUGH_FOR_THREADS for axis in walk)
    panels = _panel_bytes(found.right.buffer, machine)
    block_rows = None
    if rows and not walk and 0 < panels <= machine.l1_bytes // 2:
        block_rows = cover_rows(row_extent, machine)[0].size  # a tile reads all panels
    elif size is not None and reduced is not None and not walk:
        block_rows = _block_rows(size, reduced, machine)
    if batch is not None and panels > machine.l2_bytes and not small_right and block_rows is None:
        walk.insert(0, batch)  # a panel that comes from memory is read for every image at once
    groups: tuple[Axis, ...] = ()
    if group is not None and size is not None and reduced is not None and not walk:
        channels = product([group.extent, Const(reduced) + column.extent])
        block = None if channels is None else _group_block(size, channels, machine)
        if block is not None:
            groups, block_rows = (group,), block
    outer = [axis for axis in spatial if axis not in (*rows, *walk, *groups, column)]
    return Plan(
        tuple(positions[axis.var] for axis in outer),
        tuple(positions[axis.var] for axis in groups),
        tuple(positions[axis.var] for axis in rows),
        tuple(positions[axis.var] for axis in walk),
        positions[column.var],
        row_extent,
        column.extent,
        block_rows,
        bool(walk) and small_right and many,
        Stream(found.right.buffer, reduced or 0) if panels > machine.l2_bytes else None,
        panels > machine.l2_bytes // 4,
        reduced or 0,
    )


def _panel_bytes(right: Buffer, machine: Machine) -> int:
    """The size of packed panels; 0 where symbolic, and of what is not packed."""
    size = product(list(right.shape))
    packed = as_int(right.shape[-1]) == machine.tile.columns
    return size * right.dtype.bytes if packed and size is not None else 0


def _fill_tiles(rows: list[Axis], machine: Machine) -> bool:
    """True where the rows fill tiles without a symbolic axis (a batch) joined to them, which would
    make tiles that only a run can count.
    """
    size = product([axis.extent for axis in rows])
    return bool(rows) and size is not None and size >= machine.tile.rows


def _can_join(
    outer: Axis, inner: Axis, positions: dict[Var, int], update: Block, result: Block
) -> bool:
    """True where two row axes are one in memory, for the reduction and for its result block."""
    first, second = positions[outer.var], positions[inner.var]
    if second != first + 1 or not collapses(outer, inner, update):
        return False
    return collapses(result.axes[first], result.axes[second], result)


def _block_rows(size: int, reduced: int, machine: Machine) -> int | None:
    """Rows (whole tiles) of a block that fits the second-level cache beside a panel; `None` where
    everything fits: each block reads the right operand anew.
    """
    row_bytes = reduced * 4 + LINE_BYTES  # a line of the result, half of which a panel writes
    available = machine.l2_bytes - machine.tile.columns * reduced * 4
    return _whole_tiles(size, row_bytes, available, machine)


def _group_block(size: int, channels: int, machine: Machine) -> int | None:
    """Rows of a block that stays in the cache beside weights while all groups meet it: rows of all
    channels of both maps. `None` where there would be too few blocks for threads.
    """
    block = _whole_tiles(size, channels * 4, machine.l2_bytes // 8, machine)
    return block if block is not None and size // block >= ENOUGH_FOR_THREADS else None


def _whole_tiles(size: int, row_bytes: int, available: int, machine: Machine) -> int | None:
    """Rows of equal blocks of whole tiles that fit into `available` bytes; `None` where all rows
    do, or blocks would be much smaller.
    """
    if size * row_bytes <= available:
        return None
    tile = cover_rows(Const(size), machine)[0]
    tiles = as_int(tile.count)
    assert tiles is not None
    most = max(1, available // (row_bytes * tile.size))
    fitting = [d for d in range(1, tiles + 1) if tiles % d == 0 and d <= most]
    return fitting[-1] * tile.size if fitting[-1] < tiles and fitting[-1] * 4 >= most else None


@dataclass(frozen=True, slots=True)
class _Tiling:
    """One kernel's steps: common loops, parts of columns and rows, a register tile for each."""

    schedule: Schedule
    plan: Plan
    machine: Machine
    fixed: int

    def run(self, nest: Nest) -> None:
        schedule, plan = self.schedule, self.plan
        loops = axis_loops(schedule, nest.result, self.fixed)
        named = {position: loop for position, loop in enumerate(loops) if loop is not None}
        walk = [named[p] for p in plan.walk if p in named]
        rows = [named[p] for p in plan.rows if p in named]
        outer = [named[p] for p in plan.outer if p in named]
        groups = [named[p] for p in plan.groups if p in named]
        column = named[plan.column]
        if plan.walk_outermost:
            outer, walk = [*outer, *walk], []
        schedule.reorder(*outer, *rows, *groups, *walk, column)
        compute_results_at(schedule, nest, column)
        self.fuse_reduction(nest.update)
        if rows:
            row = schedule.fuse(*rows) if len(rows) > 1 else rows[0]
            self.rows_outermost(nest, row, len(groups), len(walk))
        else:
            self.columns(nest, None, 0)

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
        schedule, plan = self.schedule, self.plan
        if plan.block_rows is None:
            self.columns(nest, row, walks)
            return
        parts = cover_rows(plan.row_extent, self.machine)
        first, *rest = partition_into(schedule, row, parts)
        tails = [(nest_under(schedule, loop), loop) for loop in rest]
        _, inner = schedule.split(first, [None, plan.block_rows])
        for part, loop in ((nest, inner), *tails):
            names = schedule.loops(part.result)
            below = names.index(loop) + 1
            self.order(*names[below : below + groups], loop)
            self.columns(part, loop, walks)

    def columns(self, nest: Nest, row: str | None, walks: int) -> None:
        """Partition the columns, and tile each part."""
        schedule, machine = self.schedule, self.machine
        extent = Const(1) if row is None else schedule.extent(row)
        heights = cover_rows(extent, machine)
        widest = max(self.tile_columns(part.size) for part in heights)
        widths = self.in_pairs(cover_columns(self.plan.column_extent, widest, machine), heights)
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
        stream = self.plan.streamed
        if stream is not None and (
            as_int(times) == 0
            or any(count > 1 for count in stream.strips(schedule, nest.update))
            or not stream.fits(width.size, self.machine)
        ):
            stream = None
        together: str | None = None
        if panels is not None and stream is not None:
            count = stream.burst(extent_of(schedule, panels) or 1, width.size, self.machine)
            if count > 1:
                panels, together = schedule.split(panels, [None, count])
        around, within = (together, None) if half is None else (None, together)
        self.order(panels, around, *inside, half, within, lane)
        if not has_rows:
            make_tile(schedule, nest, half, lane, self.machine, self.phases(1, half))
            return
        row, walk = inside[0], inside[1 : 1 + walks]
        fetched = panels
        for each, height in zip(partition_into(schedule, row, heights), heights, strict=True):
            part = nest_under(schedule, each) if each != row else nest
            names = schedule.loops(part.result)
            below = names[names.index(each) + 1 :]
            own = iter(below[len(walk) :])
            streams = [next(own) if name is not None else None for name in (half, within, lane)]
            if half is not None and each == row:
                fetched = streams[0]
            self.row_part(part, each, height, below[: len(walk)], streams)
        if stream is not None and fetched is not None:
            stream.prefetch(schedule, fetched, times)

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
        given = [loop for loop in loops if loop is not None]
        if len(given) > 1:
            self.schedule.reorder(*given)

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
        """True where one row may be all there is of a cold matrix: it then reads two panels, the
        first of either half, as one core asks for more lines at once along two streams.
        """
        known = all(as_int(part.count) is not None for part in heights)
        alone = heights == (Part(1, Const(1)),) or not known
        return alone and self.phases(1) > 1

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
            make_tile(schedule, nest, half, lane, self.machine, self.phases(1, half))
            return
        self.order(half, together, narrow, *walk, tiles, inner, lane)
        phases = self.phases(height.size)
        make_tile(schedule, nest, inner, lane, self.machine, phases, self.plan.streamed)

    def tile_columns(self, rows: int) -> int:
        """The columns of a tile of so many rows."""
        if self.phases(rows) > 1:
            return self.machine.tile.columns
        return columns_for(rows, self.machine)

    def phases(self, rows: int, half: str | None = None) -> int:
        """How many tiles of so many rows take turns along the reduction; half as many where each
        has a panel of both halves.

        A wide tile would read several cold panels side by side, which is a third slower than one
        after the other; so its accumulators, which few rows need in flight, are phases of one.
        """
        wide = columns_for(rows, self.machine) // self.machine.tile.columns
        is_even = self.plan.depth > 0 and self.plan.depth % wide == 0
        if not self.plan.cold or not is_even:
            return 1
        return wide if half is None else wide // 2
