"""The facts of a contraction: the role of each axis, the sizes of its operands, and its parameters.

In: a block that multiplies and adds. The outermost loops around it may not be its own. Out:
`ContractionFacts`, which know the space and the default parameters:

    Y[n, y, x, o] += A[n, y * 2 + r, x * 2 + s, k] * B[o // 8, r, s, k, o % 8]

    rows: n, y, x (only x can be a tile's rows), column: o, depth: r * s * k

The default follows the fastest hand-written kernels: a register tile of pixels (or rows) times
channels (or columns), the packed panel `[K][8]` of the right operand in the first-level cache, and
blocks of the left operand in the second-level cache.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from msgspec import Struct

from webmlc.core.expr import Call, Const, Expr, Var, as_int
from webmlc.core.machine import PAGE_BYTES, Cpu
from webmlc.core.rewrite import rewrite, variables
from webmlc.loops.ir import Axis, Block, Buffer
from webmlc.schedule.analysis import (
    Contraction,
    axis_ranges,
    calls_operator,
    collapses,
    contraction_of,
    flat_index,
    lane_stride,
)
from webmlc.schedule.primitives.prefetch import LINE_BYTES
from webmlc.schedule.rules.space import Product, Space
from webmlc.schedule.rules.tiling.cover import divisors
from webmlc.schedule.rules.tiling.nests import (
    Nest,
    accumulate_locally,
    axes_of_kind,
    axis_loops,
    joined_axes,
    live_axes,
    product,
    size_of,
)
from webmlc.schedule.rules.wasm.tile_costs import UNROLLED_STEPS, tile_height
from webmlc.schedule.schedule import Schedule

STRIPS = 6
"""The most strips of a panel that are read side by side: more strips gain nothing (measured on
ResNet-18 and ZFNet, which took 7 % and 3 % less with strips)."""
REUSED_ROWS = 64
"""Rows whose products take as long as a panel takes to arrive from memory. With more rows, a panel
is fetched beforehand and read from end to end. Measured in Chromium on ResNet-50: with this fetch,
18 rows take 23 % longer, 25 rows 3 %, 49 rows 1 %, and 196 rows 4 % less time."""
PAIRED_STEPS = 8
"""Steps of a single row that are added up in 16 bits before they are widened. Derived: parts of
four bits leave room for eight (`target.wasm.sum_in_pairs`)."""
FETCHED_LINES = 8
"""Cache lines that one iteration of a prefetch asks for, by default (an estimate)."""


class Blocks(Struct, frozen=True, tag="blocks"):
    """Blocks of rows. Each block is multiplied by all columns before the next block starts."""

    rows: int
    """Rows of a block: as many as a cache holds."""
    tail_rows: int
    """Rows of a register tile behind the last whole block."""
    has_groups: bool
    """Whether a block is multiplied by all groups before the next block starts."""


class Prefetch(Struct, frozen=True, tag="prefetch"):
    """Panels that come from memory before tiles read them."""

    largest_bytes: int
    """Bytes of the largest panel that is fetched."""
    burst_bytes: int
    """Bytes of panels that are fetched together, at most."""
    lines: int
    """Cache lines that one iteration of the prefetch asks for."""


class ContractionParameters(Struct, frozen=True):
    """The loops of a contraction, its register tiles, and how its right operand is read."""

    joined: int
    """Axes of rows, from the innermost, that one loop of tiles walks."""
    walks_batch: bool
    """Whether the axis of rows around the joined axes is walked under the loop over panels, so that
    a panel is read for the whole axis; else the axis is an outer loop."""
    walks_outside: bool
    """Whether the other axes of rows are walked outside of the panels, so that threads share them;
    else under the panels."""
    blocks: Blocks | None
    """The blocks of rows; `None`: one block has all rows."""
    rows: int
    """Rows of a register tile."""
    single_columns: int
    """Columns of a register tile of one row."""
    pair_columns: int
    """Columns of a register tile of two rows."""
    takes_turns: bool
    """Whether the accumulators of a wide tile take turns along the reduction of one panel, rather
    than read several panels side by side: a third faster for panels that come from memory."""
    has_halves: bool
    """Whether one row, if it takes turns, reads two panels, the first of either half: a core asks
    memory for more lines along two streams."""
    strips: int
    """Strips of a panel that are read side by side, at most; by single rows only where the run
    decides how many rows there are."""
    steps: int
    """Steps that one iteration of the reduction takes, at most, where it reads no strips."""
    prefetch: Prefetch | None
    """How panels come from memory before tiles read them; `None`: tiles read them from there."""


@dataclass(frozen=True, slots=True)
class RowAxis:
    """An axis of rows by its position among the spatial axes. `extent`: the number of its values;
    `steps`: the iterations of the loop along it. These are fewer if a loop that is not the
    contraction's own picks a block of rows, and 1 if there is no loop.
    """

    position: int
    extent: Expr
    steps: Expr


@dataclass(frozen=True, slots=True)
class ContractionFacts:
    """A contraction with its epilogue.

    `group_size`: the channels of a group, if groups have their own axis; `group`: the position of
    the axis of groups, and the number of groups. `rows`: the axes of rows that run more than once,
    outermost first. The last `joinable` of these axes can be one loop. `others`: the positions of
    all other axes but the column. `depth`: products of each sum, 0 if symbolic. `panel_bytes`: the
    size of the right operand if it comes in packed panels of a known number, else 0; `panel_width`
    and `element_bytes`: the size of its last dimension and of its elements. `is_streamed`: whether
    the panels outgrow the second-level cache. `owns_rows`: whether all loops are its own.
    `in_pairs`: whether words of bytes are multiplied, and the machine sums their products in pairs
    for single rows.
    """

    update: str
    group_size: int | None
    group: tuple[int, Expr] | None
    rows: tuple[RowAxis, ...]
    joinable: int
    others: tuple[int, ...]
    column: int
    column_extent: Expr
    depth: int
    right: str
    panel_bytes: int
    panel_width: int
    element_bytes: int
    is_streamed: bool
    owns_rows: bool
    in_pairs: bool
    lanes: int
    panel: int

    def panel_size(self, columns: int) -> int:
        """Bytes of a panel of `columns` columns, 0 if symbolic."""
        return self.depth * columns * self.element_bytes

    def in_blocks(self, steps: int) -> ContractionFacts:
        """The same contraction, if a block has `steps` rows."""
        rows = (a if as_int(a.steps) == 1 else replace(a, steps=Const(steps)) for a in self.rows)
        return replace(self, rows=tuple(rows))

    def space(self, machine: Cpu) -> Product[ContractionParameters]:
        """The parameters to choose from for a contraction."""
        panel, widest = self.panel, machine.narrow_tile.columns
        both = (False, True)
        is_packed = self.panel_bytes > 0
        heights = tuple(range(1, machine.tile.rows + 1))
        block_rows: dict[int, None] = {}
        if self.owns_rows and self.rows:
            block_rows = dict.fromkeys(machine.tile.rows * n for n in (1, 2, 4, 8, 16))
            chosen = self.default(machine).blocks
            block_rows |= {} if chosen is None else {chosen.rows: None}
        blocks = Space.of(
            Blocks,
            rows=tuple(block_rows),
            tail_rows=heights,
            has_groups=both if self.group is not None else (False,),
        )
        prefetch = Space.of(
            Prefetch,
            largest_bytes=(machine.l2_bytes // 2,) if is_packed else (),
            burst_bytes=(0, machine.l1_bytes // 2, machine.l1_bytes),
            lines=(4, FETCHED_LINES, 16),
        )
        return Space.of(
            ContractionParameters,
            joined=tuple(range(min(1, self.joinable), self.joinable + 1)),
            walks_batch=both if self.joinable > 1 else (False,),
            walks_outside=both if len(self.rows) > 1 else (False,),
            blocks=Space.either(None, blocks),
            rows=heights,
            single_columns=(panel, 2 * panel, widest),
            pair_columns=(panel, 2 * panel),
            takes_turns=both if self.depth else (False,),
            has_halves=both,
            strips=tuple(range(1, STRIPS + 1)) if is_packed else (1,),
            steps=(1, 2, UNROLLED_STEPS),
            prefetch=Space.either(None, prefetch),
        ).where(
            "strips have several steps of all turns",
            lambda takes_turns, strips, single_columns: (
                not takes_turns
                or strips == 1
                or self.depth >= 2 * strips * (single_columns // self.panel)
            ),
        )

    def default(self, machine: Cpu) -> ContractionParameters:
        """Blocks for the caches, tiles for the registers; panels from memory are read in order."""
        joined = _default_joined(self, machine)
        rows, others = self.rows[len(self.rows) - joined :], self.rows[: len(self.rows) - joined]
        has_batch = 0 < joined < self.joinable
        walk = others[:-1] if has_batch else others
        is_small = _has_small_right(self, machine)
        block = _cache_block(self, rows, machine) if rows and not walk else None
        is_streamed = self.is_streamed
        # A panel that comes from memory is read for every image at once.
        walks_batch = has_batch and is_streamed and not is_small and block is None
        group = None if walk or walks_batch else _group_block(self, rows, machine)
        block = block if group is None else group
        block = block if self.owns_rows else None
        enough = machine.parallel_iterations
        has_enough = any((as_int(axis.extent) or enough) >= enough for axis in walk)
        steps = product([axis.steps for axis in rows])
        blocks = None
        if block is not None:
            blocks = Blocks(block, tile_height(steps % block, machine), group is not None)
        prefetch = Prefetch(machine.l2_bytes // 2, machine.l1_bytes, FETCHED_LINES)
        # A processor fetches ahead to the end of a page: strips have a page at least.
        strips = min(STRIPS, self.panel_size(self.panel_width) // PAGE_BYTES)
        is_reused = (as_int(steps) or 0) >= REUSED_ROWS
        return ContractionParameters(
            joined=joined,
            walks_batch=walks_batch,
            walks_outside=bool(walk) and is_small and has_enough,
            blocks=blocks,
            rows=tile_height(steps if block is None else Const(block), machine),
            single_columns=2 * self.panel if self.in_pairs else machine.narrow_tile.columns,
            pair_columns=machine.narrow_tile.columns // 2,
            takes_turns=self.panel_bytes > machine.l2_bytes // 4 and not self.in_pairs,
            has_halves=True,
            strips=max(1, strips) if is_streamed and not (is_reused or self.in_pairs) else 1,
            steps=UNROLLED_STEPS if is_streamed else 1,
            prefetch=prefetch if is_streamed else None,
        )


def contraction_facts(
    schedule: Schedule, update: str, machine: Cpu, fixed: int = 0
) -> ContractionFacts | None:
    """The facts of the contraction `update`; `None` if it is no contraction, or has no lanes.

    The outermost `fixed` loops around it are not its own.
    """
    trial = schedule.copy()
    contraction = contraction_of(trial.block(update))
    if contraction is None:
        return None
    group_size = None if contraction.columns else _group_size(contraction)
    if not contraction.columns and group_size is None:
        return None
    if group_size is None and not _has_lanes(trial.block(update), contraction, machine.lanes):
        return None
    nest = start_nest(trial, update, group_size)
    block, result = trial.block(update), trial.block(nest.result)
    contraction = contraction_of(block)
    if contraction is None or not contraction.columns:
        return None
    if group_size is not None and not _has_lanes(block, contraction, machine.lanes):
        return None
    spatial = axes_of_kind(block, "spatial")
    positions = {axis.var: position for position, axis in enumerate(spatial)}
    loops = axis_loops(trial, nest.result, fixed)
    live = live_axes(contraction.rows)
    column, batch = contraction.columns[-1], contraction.batch

    def can_join(outer: Axis, inner: Axis) -> bool:
        """True if two axes of rows are one in memory, for the reduction and its result block."""
        first, second = positions[outer.var], positions[inner.var]
        is_next = second == first + 1 and collapses(outer, inner, block)
        return is_next and collapses(result.axes[first], result.axes[second], result)

    has_group = group_size is not None and bool(batch)
    group = (positions[batch[-1].var], batch[-1].extent) if has_group else None
    skipped = {*(axis.var for axis in live), column.var}
    right = contraction.right.buffer
    panel_bytes = _panel_bytes(right, machine)
    return ContractionFacts(
        update,
        group_size,
        group,
        tuple(_row_axis(trial, axis, positions[axis.var], loops) for axis in live),
        joined_axes(live, can_join),
        tuple(positions[axis.var] for axis in spatial if axis.var not in skipped),
        positions[column.var],
        column.extent,
        size_of([axis.extent for axis in contraction.reduced]) or 0,
        right.name,
        panel_bytes,
        as_int(right.shape[-1]) or 0,
        right.dtype.bytes,
        panel_bytes > machine.l2_bytes,
        fixed == 0,
        "pairs" in machine.features and calls_operator(block.body, "dot_u8_i8"),
        machine.lanes,
        machine.tile.columns,
    )


def start_nest(schedule: Schedule, update: str, group_size: int | None) -> Nest:
    """Let a contraction accumulate in a `local` buffer, and give its groups an axis."""
    contraction = contraction_of(schedule.block(update))
    nest = accumulate_locally(schedule, update)
    if group_size is not None and contraction is not None:
        _split_groups(schedule, nest, contraction.batch[-1], group_size)
    return nest


def _row_axis(schedule: Schedule, axis: Axis, position: int, loops: list[str | None]) -> RowAxis:
    loop = loops[position]
    return RowAxis(position, axis.extent, Const(1) if loop is None else schedule.extent(loop))


def _panel_bytes(right: Buffer, machine: Cpu) -> int:
    """The bytes of packed panels; 0 if symbolic, or if the operand is not packed."""
    size = size_of(right.shape)
    is_packed = as_int(right.shape[-1]) == machine.tile.columns
    return size * right.dtype.bytes if is_packed and size is not None else 0


def _group_size(contraction: Contraction) -> int | None:
    """Output channels of a group, if the last axis runs along channels and their group picks the
    left operand; `None` for another contraction.
    """
    if not contraction.batch:
        return None
    channel = contraction.batch[-1].var
    sizes: set[int | None] = set()

    def group(node: Expr) -> Expr | None:
        match node:
            case Call(op="floordiv", args=(Var() as var, Const() as size)) if var == channel:
                sizes.add(as_int(size))
                return Const(0)
        return None

    if any(channel in variables(rewrite(index, group)) for index in contraction.left.indices):
        return None
    extent, size = as_int(contraction.batch[-1].extent), next(iter(sizes))
    return size if len(sizes) == 1 and size and extent and extent % size == 0 else None


def _split_groups(schedule: Schedule, nest: Nest, channel: Axis, size: int) -> None:
    """Give groups and the channels of a group an axis and a loop each."""
    spatial = axes_of_kind(schedule.block(nest.update), "spatial")
    position = spatial.index(channel)
    writers = [nest.update] if nest.copy is None else [nest.update, nest.copy]
    loops = [axis_loops(schedule, block)[position] for block in (*writers, nest.result)]
    for writer in writers:
        schedule.split_dimension(writer, position, size)
    for loop in loops:
        assert loop is not None
        schedule.split(loop, [None, size])


def _has_lanes(block: Block, contraction: Contraction, lanes: int) -> bool:
    """True if the last columns, the result's last axis, are vectors of the right operand."""
    axis = contraction.columns[-1]
    spatial = [a for a in block.axes if a.kind == "spatial" and as_int(a.extent) != 1]
    if not spatial or spatial[-1] != axis:
        return False
    index = flat_index(contraction.right.buffer, contraction.right.indices)
    return lane_stride(index, axis.var, lanes, axis_ranges(block)) == 1


def _default_joined(facts: ContractionFacts, machine: Cpu) -> int:
    """The number of row axes to join: all that can be joined, up to a symbolic axis (a batch)
    around rows that fill tiles without it. With a symbolic axis, the tile count would be known only
    at run time.
    """
    size: int | None = 1
    for count in range(facts.joinable):
        extent = as_int(facts.rows[-count - 1].extent)
        if extent is None and count and size is not None and size >= machine.tile.rows:
            return count
        size = None if size is None or extent is None else size * extent
    return facts.joinable


def _has_small_right(facts: ContractionFacts, machine: Cpu) -> bool:
    """True if half of the second-level cache holds the right operand."""
    columns = as_int(facts.column_extent)
    if columns is None or not facts.depth:
        return False
    return facts.depth * columns * 4 <= machine.l2_bytes // 2


def _cache_block(facts: ContractionFacts, rows: tuple[RowAxis, ...], machine: Cpu) -> int | None:
    """Rows of a block. If the first-level cache holds the right operand, a block is one tile, which
    then writes whole cache lines. Else a block has as many rows as the second-level cache holds;
    `None` if it holds all rows.
    """
    extents = [axis.extent for axis in rows]
    if 0 < facts.panel_bytes <= machine.l1_bytes // 2:
        return tile_height(product(extents), machine)
    size = size_of(extents)
    if size is None or not facts.depth:
        return None
    row_bytes = facts.depth * 4 + LINE_BYTES  # a panel writes half a line of the result
    available = machine.l2_bytes - machine.tile.columns * facts.depth * 4
    return _whole_tiles(size, row_bytes, available, machine)


def _group_block(facts: ContractionFacts, rows: tuple[RowAxis, ...], machine: Cpu) -> int | None:
    """Rows of a block that is multiplied by all groups. The cache holds the block, with all
    channels of both feature maps, beside the weights. `None` if there would be too few blocks for
    threads.
    """
    size = size_of([axis.extent for axis in rows])
    if facts.group is None or size is None or not facts.depth:
        return None
    channels = size_of([facts.group[1], Const(facts.depth) + facts.column_extent])
    if channels is None:
        return None
    block = _whole_tiles(size, channels * 4, machine.l2_bytes // 8, machine)
    return block if block is not None and size // block >= machine.parallel_iterations else None


def _whole_tiles(size: int, row_bytes: int, available: int, machine: Cpu) -> int | None:
    """Rows of equal blocks of whole tiles that fit into `available` bytes; `None` if all rows fit,
    or if equal blocks would be much smaller.
    """
    if size * row_bytes <= available:
        return None
    height = tile_height(Const(size), machine)
    tiles = size // height
    room = max(1, available // (row_bytes * height))
    block = divisors(tiles, min(room, tiles))[-1]
    return block * height if block < tiles and block * 4 >= room else None
