"""Products with block-quantised weights: integer products of blocks, then the sum of what their
scales make of them.

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
a processor notices a stream of few bytes late. By itself, the loop over the panels of one row takes
64 instead of 83 microseconds for 576 x 3072 weights of 4 bits that come from memory (measured in
Chromium on a Zen 4 core).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from webmlc.core.expr import Const, Expr, as_int
from webmlc.core.machine import Cpu
from webmlc.core.rewrite import variables
from webmlc.loops.ir import Block, LoopFunction, loads
from webmlc.schedule.analysis import collapses, fold_of
from webmlc.schedule.rules.rule import Rule, accepts
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
    accumulate_locally,
    axis_loops,
    blocks_under,
    compute_results_at,
    epilogue_of,
    extent_of,
    is_parameter,
    readers,
    written_buffer,
)
from webmlc.schedule.rules.tiling.tile import vectorize_columns
from webmlc.schedule.rules.wasm.contraction_defaults import FETCHED_LINES
from webmlc.schedule.rules.wasm.threads import (
    Sharing,
    default_sharing,
    share_work,
    sharing_space,
)
from webmlc.schedule.schedule import Schedule

UNROLLED_PRODUCTS = 16
"""The most products of a row and a column that are unrolled, by default. A word of 4-bit values has
two, and eight if they are multiplied as floats: unrolling 32 of these took four times as long to
build, for no speed. Chosen by hand.
"""
TILE_ROWS = 4
"""Rows of a register tile, by default. Its 8 sums and 8 products of a block exceed the registers,
but the sums wait in memory while a block is multiplied. Measured in Chromium on 64 rows of 576
elements times 1536 columns of 4 bits: 3 to 6 rows take 1 to 3 % longer, 2 rows 7 %.
"""
UNROLLED_WORDS = 8
"""The most words of a block whose products are unrolled, by default: a block of 32 values of 8 bits
has so many. Measured in Chromium on one row of 576 elements times 1536 columns of 8 bits: a loop
over 4 words takes 25 % longer. With 64 rows of 4 bits, a loop over single words takes 12 % longer.
"""


@dataclass(frozen=True, slots=True)
class Facts:
    """A product with block-quantised weights.

    `dots` and `update` are its two folds. `scales` are the buffers of the scales and minimums.
    `joined` counts the last axes of rows that are one loop (0: there is one row). `words` are those
    of a block, of `products` each.
    """

    function: LoopFunction
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


@dataclass(frozen=True, slots=True)
class Parameters:
    """The register tiles, and how threads share the panels."""

    rows: int
    """Rows of a register tile."""
    single_columns: int
    """Columns of a register tile of one row."""
    words: int
    """Words of a block whose products are unrolled."""
    fetches_scales: bool
    """Whether the scales of a panel come from memory at once, before its values do."""
    sharing: Sharing


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
    live = [axis for axis in rows if as_int(axis.extent) != 1]
    joined = min(1, len(live))
    while joined and joined < len(live):
        outer, inner = live[-joined - 1], live[-joined]
        blocks = (update,) if epilogue is None else (update, epilogue)
        is_one = all(_collapse(block, rows.index(outer)) for block in blocks)
        if not is_one or rows.index(inner) != rows.index(outer) + 1:
            break
        joined += 1
    extent: Expr = Const(1)
    for axis in live[len(live) - joined :]:
        extent = extent * axis.extent
    facts = Facts(
        function,
        dots.name,
        update.name,
        _scales(function, update),
        joined,
        extent,
        column.extent,
        words,
        products,
        machine.lanes,
        machine.tile.columns,
    )
    return facts if accepts(lambda: build(facts, default(facts, machine))) else None


def _is_repeated(fold: Block) -> bool:
    """True for a fold of more than one value."""
    return any(axis.kind == "reduce" and as_int(axis.extent) != 1 for axis in fold.axes)


def _collapse(block: Block, position: int) -> bool:
    """True where the spatial axis at a position and the next one are one in memory."""
    spatial = [axis for axis in block.axes if axis.kind == "spatial"]
    return collapses(spatial[position], spatial[position + 1], block)


def _reads_blocks(function: LoopFunction, dots: Block, update: Block) -> bool:
    """True where `update` folds what `dots` folded, over all axes but its own."""
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
    """The parameters that the sum reads at its column, besides what it adds to."""
    column = [axis.var for axis in update.axes if axis.kind == "spatial"][-1]
    reads = [x for x in loads(update.body) if any(column in variables(i) for i in x.indices)]
    buffers = dict.fromkeys(x.buffer for x in reads if x.buffer != written_buffer(update))
    return tuple(buffer.name for buffer in buffers if is_parameter(function, buffer))


def space(facts: Facts, machine: Cpu) -> Space:
    """Tiles, how much of a block is unrolled, and whether scales are fetched."""
    words = divisors(facts.words, facts.words)
    panel = facts.panel
    return Space.of(
        rows=tuple(range(1, machine.tile.rows + 1)),
        single_columns=(panel, 2 * panel, machine.narrow_tile.columns),
        words=words,
        fetches_scales=(False, True),
    ) + sharing_space(machine).under("sharing")


def default(facts: Facts, machine: Cpu) -> Parameters:
    """Tiles that keep the products of a block in registers."""
    most = min(facts.words, UNROLLED_WORDS, max(1, UNROLLED_PRODUCTS // facts.products))
    words = divisors(facts.words, most)[-1]
    return Parameters(TILE_ROWS, facts.panel, words, True, default_sharing(machine))


def build(facts: Facts, parameters: Parameters) -> Schedule:
    """Tile the product, and share its panels."""
    schedule = Schedule(facts.function)
    nest = accumulate_locally(schedule, facts.update)
    *outer, column = [n for n in axis_loops(schedule, nest.result) if n is not None]
    compute_results_at(schedule, nest, column)
    (block,) = schedule.reduce_loops(facts.update)
    schedule.compute_at(facts.dots, block)
    schedule.set_scope(facts.dots, "local")
    walk, rows = outer[: len(outer) - facts.joined], outer[len(outer) - facts.joined :]
    row = None
    if rows:
        row = schedule.fuse(*rows) if len(rows) > 1 else rows[0]
    _Tiling(schedule, facts, parameters).run(column, walk, row)
    return share_work(schedule, parameters.sharing)


BLOCK_PRODUCT = Rule("block product", match, space, default, build)


@dataclass(frozen=True, slots=True)
class _Tiling:
    """The steps of one kernel."""

    schedule: Schedule
    facts: Facts
    parameters: Parameters

    def run(self, column: str, walk: list[str], row: str | None) -> None:
        """Put panels outermost, then tile each part of the columns and of the rows."""
        schedule, facts, parameters = self.schedule, self.facts, self.parameters
        heights = cover(facts.rows, parameters.rows)
        has_single = any(part.size == 1 for part in heights)
        widest = parameters.single_columns if has_single else facts.panel
        widths = cover_columns(facts.columns, widest, facts.panel, facts.lanes)
        schedule.reorder(column, *walk, *([] if row is None else [row]))
        for loop, width in zip(partition_into(schedule, column, widths), widths, strict=True):
            self.columns(loop, width, heights, row is not None)

    def columns(self, loop: str, width: Part, heights: tuple[Part, ...], has_rows: bool) -> None:
        """Tile one part of the columns: panels around parts of the rows."""
        schedule = self.schedule
        result = blocks_under(schedule, loop)[-1]
        inside = schedule.loops(result)
        inside = inside[inside.index(loop) + 1 :]
        panels, lane = split_off(schedule, loop, width.size)
        self.order(panels, *inside, lane)
        if not has_rows:
            self.tile(blocks_under(schedule, lane or panels or loop), None, lane)
            self.fetch_scales(panels)
            return
        row = inside[-1]
        for each, height in zip(partition_into(schedule, row, heights), heights, strict=True):
            names = blocks_under(schedule, each)
            below = schedule.loops(names[-1])
            inner_lane = None if lane is None else below[-1]
            tiles, inner = split_off(schedule, each, height.size)
            narrow = None
            if inner_lane is not None and height.size > 1:
                panel = self.facts.panel
                if (extent_of(schedule, inner_lane) or 0) > panel:
                    narrow, inner_lane = schedule.split(inner_lane, [None, panel])
            self.order(narrow, tiles, inner, inner_lane)
            self.tile(names, inner, inner_lane)
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

    def order(self, *loops: str | None) -> None:
        """Put those loops that there are in this order."""
        present = [loop for loop in loops if loop is not None]
        if len(present) > 1:
            self.schedule.reorder(*present)

    def tile(self, names: list[str], row: str | None, lane: str | None) -> None:
        """Make one register tile of the blocks `names`: the products of a block, their sum, and
        what reads it.
        """
        schedule, lanes = self.schedule, self.facts.lanes
        dots, update, *results = names
        tile = [loop for loop in (row, lane) if loop is not None]
        for loop in reversed(tile):
            schedule.fission(loop)
        starts = [self.put_inside(update, len(tile))]
        inner = schedule.loops(update)[len(schedule.loops(update)) - len(tile) :]
        for loop in reversed(inner):
            schedule.fission(loop)
        word, *parts = schedule.reduce_loops(dots)
        if self.parameters.words != self.facts.words:
            _, word = schedule.split(word, [None, self.parameters.words])
        starts.append(self.put_inside(dots, len(tile)))
        for name in (*starts, update, dots, *results):
            loops = schedule.loops(name)[-len(tile) :] if tile else []
            if lane is not None:
                vectorize_columns(schedule, name, loops[-1], lanes)
            if row is not None:
                schedule.unroll(loops[0])
        for loop in (*parts, word):
            schedule.unroll(loop)

    def put_inside(self, fold: str, depth: int) -> str:
        """Put the `depth` loops of a tile inside the loops of a fold, and what clears its results
        before them; returns the block that does.
        """
        schedule = self.schedule
        loops, reduced = schedule.loops(fold), schedule.reduce_loops(fold)
        start = loops.index(reduced[0])
        tile = loops[start - depth : start]
        if tile:
            schedule.reorder(*loops[start:], *tile)
        return schedule.decompose_reduction(fold, reduced[0])
