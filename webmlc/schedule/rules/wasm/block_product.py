"""Products with block-quantised weights: integer products of blocks, then the sum of the scaled
products.

In: a fold that multiplies the words of a block (`dots`), and a fold over blocks that reads its
results, with an epilogue. Out: register tiles of rows times columns under a loop over panels. The
products of a block stay in registers:

    for i, b, j: for w: dots[i, b, j] += ...     for panel in T.parallel(72):
    for i, j: for b: y[i, j] += ... dots ...         for tile in range(m // 4):
                                          ->             y[0:4, 0:8] = 0
                                                         for b:
                                                             dots[0:4, 0:8] = 0
                                                             dots[0:4, 0:8] += ...   (unrolled)
                                                             y[0:4, 0:8] += ... dots ...
                                                     for row in range(m % 4): ...

A panel comes from memory once, for all rows. Its scales and minimums are fetched before its values:
a processor notices a stream of few bytes late. Measured in Chromium on a Zen 4 core with 576 x 3072
weights of 4 bits in memory: the loop over the panels of one row alone takes 64 instead of 83
microseconds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from msgspec import Struct

from webmlc.core.expr import Const, Expr, as_int
from webmlc.core.machine import Cpu
from webmlc.core.rewrite import variables
from webmlc.loops.ir import Axis, Block, LoopFunction, loads
from webmlc.schedule.analysis import collapses, fold_of
from webmlc.schedule.rules.rule import Rule
from webmlc.schedule.rules.space import Product, Space
from webmlc.schedule.rules.tiling.cover import (
    Part,
    cover,
    cover_columns,
    divisors,
    partition_into,
    split_off,
)
from webmlc.schedule.rules.tiling.nests import (
    accumulate_locally,
    axes_of_kind,
    axis_loops,
    compute_results_at,
    epilogue_of,
    extent_of,
    is_parameter,
    joined_axes,
    live_axes,
    order,
    product,
    readers,
    written_buffer,
)
from webmlc.schedule.rules.tiling.tile import put_inside, write_out_tile
from webmlc.schedule.rules.wasm.contraction_facts import FETCHED_LINES
from webmlc.schedule.schedule import Schedule

UNROLLED_PRODUCTS = 16
"""The most products of a row and a column that are unrolled, by default. A word of 4-bit values has
two products, or eight if the values are multiplied as floats: unrolling 32 float products took four
times as long to build, for no speed. Chosen by hand.
"""
TILE_ROWS = 4
"""Rows of a register tile, by default. Its 8 sums and 8 products of a block exceed the registers,
but the sums wait in memory while a block is multiplied. Measured in Chromium on 64 rows of 576
elements times 1536 columns of 4 bits: 3 to 6 rows take 1 to 3 % longer, 2 rows 7 %.
"""
UNROLLED_WORDS = 8
"""The most words of a block whose products are unrolled, by default: a block of 32 values of 8 bits
has 8 words. Measured in Chromium on one row of 576 elements times 1536 columns of 8 bits: a loop
over 4 words takes 25 % longer. With 64 rows of 4 bits, a loop over single words takes 12 % longer.
"""


@dataclass(frozen=True, slots=True)
class Facts:
    """A product with block-quantised weights.

    `dots` and `update` are its two folds. `scales` are the buffers of the scales and minimums.
    `joined` counts the last axes of rows that are one loop (0: there is one row). A block has
    `words` words, of `products` products each.
    """

    dots: str
    update: str
    scales: tuple[str, ...]
    joined: int
    rows: Expr
    columns: Expr
    words: int
    products: int
    lanes: int
    panel: int


class Parameters(Struct, frozen=True):
    """The register tiles."""

    rows: int
    """Rows of a register tile."""
    single_columns: int
    """Columns of a register tile of one row."""
    words: int
    """Words of a block whose products are unrolled."""
    fetches_scales: bool
    """Whether the scales of a panel come from memory at once, before its values do."""


def match(function: LoopFunction, machine: Cpu) -> Facts | None:
    """Matches a fold of products whose results another fold reads, block by block."""
    schedule = Schedule(function)
    names = schedule.blocks()
    if len(names) not in (2, 3):
        return None
    dots, update = (schedule.block(name) for name in names[:2])
    if not _reads_blocks(function, dots, update):
        return None
    if not (_is_repeated(dots) and _is_repeated(update)):
        return None  # one word, or one block
    epilogue = epilogue_of(function, update)
    if len(names) == 3 and (epilogue is None or epilogue.name != names[2]):
        return None
    *rows, column = (axis for axis in update.axes if axis.kind == "spatial")
    words, *sizes = (as_int(axis.extent) for axis in dots.axes if axis.kind == "reduce")
    products = prod(size or 1 for size in sizes)
    if as_int(column.extent) is None or words is None:
        return None
    live, blocks = live_axes(rows), (update,) if epilogue is None else (update, epilogue)

    def can_join(outer: Axis, inner: Axis) -> bool:
        first, second = rows.index(outer), rows.index(inner)
        if second != first + 1:
            return False
        spatial = [axes_of_kind(block, "spatial") for block in blocks]
        pairs = zip(blocks, spatial, strict=True)
        return all(collapses(axes[first], axes[second], block) for block, axes in pairs)

    joined = joined_axes(live, can_join)
    return Facts(
        dots.name,
        update.name,
        _scales(function, update),
        joined,
        product(axis.extent for axis in live[len(live) - joined :]),
        column.extent,
        words,
        products,
        machine.lanes,
        machine.tile.columns,
    )


def _is_repeated(fold: Block) -> bool:
    """True for a fold of several values."""
    return bool(live_axes(axes_of_kind(fold, "reduce")))


def _reads_blocks(function: LoopFunction, dots: Block, update: Block) -> bool:
    """True if only `update` reads `dots`, in the order of its axes, and folds along one axis."""
    buffer = written_buffer(dots)
    if buffer is None or is_parameter(function, buffer):
        return False
    folds = (fold_of(dots), fold_of(update))
    if any(fold is None or fold.combine != "add" for fold in folds):
        return False
    if readers(function, buffer) != [update]:
        return False
    reduced = [axis.var for axis in update.axes if axis.kind == "reduce"]
    *rows, column = (axis.var for axis in update.axes if axis.kind == "spatial")
    indices = [load.indices for load in loads(update.body) if load.buffer == buffer]
    return len(reduced) == 1 and all(index == (*rows, *reduced, column) for index in indices)


def _scales(function: LoopFunction, update: Block) -> tuple[str, ...]:
    """The parameters that the sum reads at its column, besides its own result."""
    column = [axis.var for axis in update.axes if axis.kind == "spatial"][-1]
    reads = [x for x in loads(update.body) if any(column in variables(i) for i in x.indices)]
    buffers = dict.fromkeys(x.buffer for x in reads if x.buffer != written_buffer(update))
    return tuple(buffer.name for buffer in buffers if is_parameter(function, buffer))


def space(facts: Facts, machine: Cpu) -> Product[Parameters]:
    """Tiles, how much of a block is unrolled, and whether scales are fetched."""
    words = divisors(facts.words, facts.words)
    panel = facts.panel
    return Space.of(
        Parameters,
        rows=tuple(range(1, machine.tile.rows + 1)),
        single_columns=(panel, 2 * panel, machine.narrow_tile.columns),
        words=words,
        fetches_scales=(False, True),
    )


def default(facts: Facts, _machine: Cpu) -> Parameters:
    """Tiles that keep the products of a block in registers."""
    most = min(facts.words, UNROLLED_WORDS, max(1, UNROLLED_PRODUCTS // facts.products))
    words = divisors(facts.words, most)[-1]
    return Parameters(TILE_ROWS, facts.panel, words, fetches_scales=True)


def build(schedule: Schedule, facts: Facts, parameters: Parameters) -> None:
    """Put the products under their sum, panels outermost, then tile columns and rows."""
    nest = accumulate_locally(schedule, facts.update)
    *outer, column = [n for n in axis_loops(schedule, nest.result) if n is not None]
    compute_results_at(schedule, nest, column)
    (block,) = schedule.reduce_loops(facts.update)
    schedule.compute_at(facts.dots, block)
    schedule.set_scope(facts.dots, "local")
    walk, rows = outer[: len(outer) - facts.joined], outer[len(outer) - facts.joined :]
    row = schedule.fuse(*rows) if len(rows) > 1 else next(iter(rows), None)
    heights = cover(facts.rows, parameters.rows)
    has_single = any(part.size == 1 for part in heights)
    widest = parameters.single_columns if has_single else facts.panel
    widths = cover_columns(facts.columns, widest, facts.panel, facts.lanes)
    order(schedule, column, *walk, row)
    tiling = _Tiling(schedule, facts, parameters, heights)
    roles = Roles(tuple(walk), row, column)
    names = _Blocks(facts.dots, facts.update, tuple(filter(None, (nest.copy, nest.result))))
    for copy, width in partition_into(schedule, column, widths):
        tiling.columns(copy.with_blocks(names), copy.with_loops(roles), width)


BLOCK_PRODUCT = Rule("block product", match, space, default, build, needs_proof=True)


@dataclass(frozen=True, slots=True)
class Roles:
    """The loops around a tile, outermost first: `walk` runs along axes that share no panel, `row`
    along rows (`None` if there is one), `lane` along columns.
    """

    walk: tuple[str, ...]
    row: str | None
    lane: str | None


@dataclass(frozen=True, slots=True)
class _Blocks:
    """The products of a block, their sum, and the blocks that read the sum."""

    dots: str
    update: str
    results: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Tiling:
    """The steps of one kernel, with these parts of its rows."""

    schedule: Schedule
    facts: Facts
    parameters: Parameters
    heights: tuple[Part, ...]

    def columns(self, names: _Blocks, roles: Roles, width: Part) -> None:
        """Tile one part of the columns: panels around parts of the rows."""
        schedule, row, panel = self.schedule, roles.row, self.facts.panel
        assert roles.lane is not None
        panels, lane = split_off(schedule, roles.lane, width.size)
        order(schedule, panels, *roles.walk, row, lane)
        if row is None:
            self.tile(names, None, lane)
            self.fetch_scales(panels)
            return
        roles = replace(roles, lane=lane)
        for copy, height in partition_into(schedule, row, self.heights):
            own_lane = copy.with_loops(roles).lane
            tiles, inner = split_off(schedule, copy.loop, height.size)
            narrow = None
            is_wide = own_lane is not None and (extent_of(schedule, own_lane) or 0) > panel
            if own_lane is not None and is_wide and height.size > 1:
                narrow, own_lane = schedule.split(own_lane, [None, panel])
            order(schedule, narrow, tiles, inner, own_lane)
            self.tile(copy.with_blocks(names), inner, own_lane)
        self.fetch_scales(panels)

    def fetch_scales(self, panels: str | None) -> None:
        """Fetch the scales of a panel before its values."""
        schedule = self.schedule
        if panels is None or not self.parameters.fetches_scales:
            return
        for scales in self.facts.scales:
            lines = schedule.loops(schedule.prefetch(panels, scales, Const(1)))[-1]
            if lines != panels:  # several lines
                count = divisors(extent_of(schedule, lines) or 1, FETCHED_LINES)[-1]
                _, lines = schedule.split(lines, [None, count])
                schedule.unroll(lines)

    def tile(self, names: _Blocks, row: str | None, lane: str | None) -> None:
        """Make one register tile."""
        schedule, lanes = self.schedule, self.facts.lanes
        dots, update = names.dots, names.update
        tile = [loop for loop in (row, lane) if loop is not None]
        for loop in reversed(tile):
            schedule.fission(loop)
        starts = [put_inside(schedule, update, len(tile))]
        inner = schedule.loops(update)[len(schedule.loops(update)) - len(tile) :]
        for loop in reversed(inner):
            schedule.fission(loop)
        word, *parts = schedule.reduce_loops(dots)
        if self.parameters.words != self.facts.words:
            _, word = schedule.split(word, [None, self.parameters.words])
        starts.append(put_inside(schedule, dots, len(tile)))
        write_out_tile(schedule, (*starts, update, dots, *names.results), row, lane, lanes)
        for loop in (*parts, word):
            schedule.unroll(loop)
