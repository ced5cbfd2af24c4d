"""Products with block-quantised weights: few rows by whole workgroups, many rows by register tiles.

In: folds that multiply float32 rows by unpacked weights (`graph/ops/block_quantised.py`), with
reductions of the rows before them (a normalisation) and a pointwise block after them. Out: one
dispatch of two sections. Rows that fill no tile are multiplied one by one: the threads of a
workgroup read the packed words of a panel side by side, and add their sums in workgroup memory. In
the other section, each thread owns a tile of rows times the columns of a panel:

    for i: s[i] += x[i, k] * x[i, k]           for tile (workgroups), panel (threads):
    for i, j: y[i, j] += x ... s[i] ... w         for i in 4: s[i] += ...
    for i, j: z[i, j] = y[i, j] + r[i, j]         for k: y[0:4, 0:8] += ...        (registers)
                                          ->      z[0:4, 0:8] = y + r
                                               for i in m % 4, panel (workgroups):
                                                  s += ...                         (all threads)
                                                  for t in 24 threads: p[t, 0:8] += ...
                                                  y[0:8] = sum of p[t, 0:8]        (a tree)
                                                  z[i, 0:8] = y + r

A thread reads four columns of a packed word as one vector. Where barriers are slow, each thread
also computes panels of a single row, like tiles of one row.
"""

from __future__ import annotations

from dataclasses import dataclass

from msgspec import Struct

from webmlc.core.dtypes import DType
from webmlc.core.expr import Expr, as_int
from webmlc.core.machine import MAX_INVOCATIONS, Gpu
from webmlc.core.rewrite import variables
from webmlc.core.simplify import simplify
from webmlc.loops.ir import Block, LoopFunction, blocks, loads
from webmlc.schedule.analysis import axis_ranges, flat_index, fold_of, lane_stride
from webmlc.schedule.rules.rule import Rule
from webmlc.schedule.rules.space import Product, Space
from webmlc.schedule.rules.tiling.cover import cover, divisors, partition_into, write_out
from webmlc.schedule.rules.tiling.nests import (
    axes_of_kind,
    epilogue_of,
    extent_of,
    loops_along,
    written,
    written_buffer,
)
from webmlc.schedule.rules.webgpu.reduction import STEPS, Tree, fold_together
from webmlc.schedule.rules.webgpu.rows import clear_first
from webmlc.schedule.rules.webgpu.threads import bind_groups, put_in_shared_memory
from webmlc.schedule.schedule import Schedule

PANEL = 8
"""Columns of a panel of packed weights (`graph/ops/layout.py`)."""
ROWS = 4
"""Rows of a register tile, by default: fewer rows are multiplied one by one. More rows reuse
weights more often, but a prompt of few tokens makes fewer threads (an estimate)."""
MOST_ROWS = 8
"""Rows of the largest register tile: 16 vectors hold its sums."""
SIDE_BY_SIDE = 8
"""The fewest threads that read words of one panel side by side: 256 bytes, two lines of a cache
(derived)."""
RADIX = 16
"""Sums that one thread adds at a level of the tree, by default (an estimate)."""
SQUARES = 4
"""Elements of a row that a thread of a register tile reads at once (derived: a vector)."""


@dataclass(frozen=True, slots=True)
class Facts:
    """Products, with the blocks around them. `row_folds` reduce whole rows of the data, `final` is
    the pointwise block that reads the products; `None` if there is only a product.

    `units` is the number of packed words of a column, `panels` the number of panels. On machines
    with subgroups, the threads of a single row reduce the row at once.
    """

    row_folds: tuple[str, ...]
    products: tuple[str, ...]
    final: str | None
    rows: Expr
    panels: int
    units: int
    lanes: int
    has_subgroups: bool = False


class Divided(Struct, frozen=True, tag="divided"):
    """The threads of a workgroup divide the words of each column of a single row."""

    depth: int
    """Threads among which the words of a column are divided."""
    panels: int
    """Panels that a workgroup computes."""
    radix: int
    """Sums that one thread adds at a level of the tree."""
    words: int
    """Words of a column that a thread reads at once, at most."""
    steps: int
    """Iterations of the other folds that a thread writes out, at most."""


class Apart(Struct, frozen=True, tag="apart"):
    """Each thread computes panels of a single row by itself, like tiles of one row."""

    panels: int
    """Panels that a workgroup computes, one for each of its threads."""


class Parameters(Struct, frozen=True):
    """The tiles, and how a workgroup computes a row that fills no tile."""

    rows: int
    """Rows of a register tile."""
    single: Divided | Apart
    """How a workgroup computes a single row."""


def match(function: LoopFunction, machine: Gpu) -> Facts | None:
    """Matches folds over packed words, reductions of their rows, and one pointwise block."""
    every = list(blocks(function.body))
    products = [block for block in every if _is_product(block)]
    if not products:
        return None
    final = every[-1] if every[-1] not in products else None
    row_folds = [block for block in every if block not in products and block is not final]
    if not all(_is_row_fold(function, block, products) for block in row_folds):
        return None
    if final is None and len(products) > 1:
        return None
    if final is not None and any(epilogue_of(function, each) != final for each in products):
        return None
    sizes = {tuple(axis.extent for axis in axes_of_kind(block, "reduce")) for block in products}
    last = products[-1]
    *_, column = axes_of_kind(last, "spatial")
    columns, extents = as_int(column.extent), [as_int(extent) for extent in next(iter(sizes))]
    if len(sizes) > 1 or columns is None or columns % PANEL or extents[0] is None:
        return None
    units = extents[0] * (extents[1] or 1)
    if not divisors(units, MAX_INVOCATIONS // 2)[1:]:
        return None  # no two threads could share a row
    live = [a.extent for a in axes_of_kind(last, "spatial")[:-1] if as_int(a.extent) != 1]
    rows = simplify(live[-1]) if live else simplify(column.extent // column.extent)
    return Facts(
        tuple(block.name for block in row_folds),
        tuple(block.name for block in products),
        None if final is None else final.name,
        rows,
        columns // PANEL,
        units,
        machine.lanes,
        bool(row_folds) and "subgroups" in machine.features,
    )


def _is_product(block: Block) -> bool:
    """True for a fold by addition over blocks, words, parts and bytes, whose weights are int32
    words: four columns of a word are adjacent.
    """
    fold = fold_of(block)
    reduced, spatial = axes_of_kind(block, "reduce"), axes_of_kind(block, "spatial")
    if fold is None or fold.combine != "add" or len(reduced) != 4 or not spatial:
        return False
    if fold.target.buffer.dtype is not DType.float32:
        return False
    column, ranges = spatial[-1].var, axis_ranges(block)
    weights = [load for load in loads(block.body) if load != fold.target]
    right = [load for load in weights if any(column in variables(i) for i in load.indices)]
    if not any(load.buffer.dtype is DType.int32 for load in right):
        return False
    indices = [flat_index(load.buffer, load.indices) for load in right]
    return all(lane_stride(index, column, 4, ranges) == 1 for index in indices)


def _is_row_fold(function: LoopFunction, block: Block, products: list[Block]) -> bool:
    """True for a reduction of rows whose results are read at their rows."""
    buffer = written_buffer(block)
    if buffer is None or fold_of(block) is None or len(written(function)[buffer.name]) > 1:
        return False
    reduced = {axis.var for product in products for axis in axes_of_kind(product, "reduce")}
    columns = {axes_of_kind(product, "spatial")[-1].var for product in products}
    indices = [i for product in products for load in loads(product.body) if load.buffer == buffer
               for i in load.indices]  # fmt: skip
    return len(axes_of_kind(block, "reduce")) == 1 and all(
        not variables(index) & (reduced | columns) for index in indices
    )


def space(facts: Facts, machine: Gpu) -> Product[Parameters]:
    """Tiles, and workgroups that fit every device."""
    divided = Space.of(
        Divided,
        depth=divisors(facts.units, MAX_INVOCATIONS // 2)[1:],
        panels=divisors(facts.panels, min(SIDE_BY_SIDE, machine.workgroup_size)),
        radix=(8, RADIX, 32),
        words=(1, 2, 3, 4, 8),
        steps=STEPS,
    ).where(
        "a workgroup has at most 256 invocations",
        lambda depth, panels: 2 * depth * panels <= MAX_INVOCATIONS,
    )
    most = min(machine.workgroup_size, MAX_INVOCATIONS // 2)
    apart = Space.of(Apart, panels=divisors(facts.panels, most))
    rows = tuple(range(1, MOST_ROWS + 1))
    return Space.of(Parameters, rows=rows, single=Space.either(apart, divided))


def default(facts: Facts, machine: Gpu) -> Parameters:
    """Divide words among the fewest threads that fill the device and read whole lines of memory
    side by side. Then fill a workgroup with panels. Where barriers are slow, no words are divided.
    """
    if machine.has_slow_barriers:
        return Parameters(ROWS, Apart(_panels_apart(facts, machine)))
    depths = divisors(facts.units, MAX_INVOCATIONS // 2)[1:]
    threads = PANEL // facts.lanes * facts.panels
    enough = [d for d in depths if d >= SIDE_BY_SIDE and threads * d >= machine.filling_threads]
    depth = enough[0] if enough else depths[-1]
    most = max(1, machine.workgroup_size // (2 * depth))
    panels = divisors(facts.panels, min(most, SIDE_BY_SIDE))[-1]
    single = Divided(depth, panels, RADIX, machine.product_words, machine.fold_steps)
    return Parameters(ROWS, single)


def _panels_apart(facts: Facts, machine: Gpu) -> int:
    """The panels of a workgroup in which each thread has one panel. The most panels that still
    leave enough workgroups for the threads of a product; preferably a multiple of the adapter's
    lanes.
    """
    groups = machine.product_threads // machine.workgroup_size
    sizes = divisors(facts.panels, max(1, min(machine.workgroup_size, facts.panels // groups)))
    return max(sizes, key=lambda size: (size % machine.lanes == 0, size))


def build(schedule: Schedule, facts: Facts, parameters: Parameters) -> None:
    """Put the products under the columns of their epilogue, then tile each part of the rows."""
    final = facts.final or schedule.cache_write(facts.products[0], "local")
    *rows, column = axes_of_kind(schedule.block(final), "spatial")
    outer = loops_along(schedule.block(final), rows)
    (columns,) = loops_along(schedule.block(final), (column,))
    for product in facts.products:
        if facts.final is not None:
            schedule.set_scope(product, "local")
        schedule.compute_at(product, columns)
    vectors = PANEL // facts.lanes
    panels = parameters.single.panels if isinstance(parameters.single, Divided) else 1
    group, *inner = schedule.split(columns, [None, panels, vectors, facts.lanes])
    live = [loop for loop in outer if extent_of(schedule, loop) != 1]
    row = live[-1] if live else schedule.add_unit_loop(final) if not outer else outer[-1]
    if len(outer) > 1:
        schedule.reorder(*(loop for loop in outer if loop != row), row)
    for fold in reversed(facts.row_folds):
        schedule.compute_at(fold, group)
        schedule.set_scope(fold, "local")
    names = _Blocks(facts.row_folds, facts.products, final)
    around = schedule.loops(final)
    roles = Roles(tuple(around[: around.index(row)]), row, group, *inner)
    for copy, part in partition_into(schedule, row, cover(facts.rows, parameters.rows)):
        blocks, single = copy.with_blocks(names), parameters.single
        nest = _Nest(schedule, facts, single, blocks, copy.with_loops(roles))
        if part.size == 1 and isinstance(single, Divided):
            nest.divide(single)
        else:
            nest.tile(part.size)


BLOCK_PRODUCT = Rule(
    "block product", match, space, default, build, is_product=True, needs_proof=True
)


@dataclass(frozen=True, slots=True)
class _Blocks:
    """The reductions of a row, the products, and the block that reads both."""

    row_folds: tuple[str, ...]
    products: tuple[str, ...]
    final: str


@dataclass(frozen=True, slots=True)
class Roles:
    """The loops of one part of the rows: `outer` around all blocks, then `row` and `group`. Under
    `group` are the reductions of the row, and `panel`, `half` and `lane` around the products and
    the block that reads them.
    """

    outer: tuple[str, ...]
    row: str
    group: str
    panel: str
    half: str
    lane: str


@dataclass(frozen=True, slots=True)
class _Nest:
    """The steps of one part of the rows."""

    schedule: Schedule
    facts: Facts
    single: Divided | Apart
    blocks: _Blocks
    roles: Roles

    def divide(self, single: Divided) -> None:
        """Let the threads of a workgroup compute a row's panels together."""
        schedule = self.schedule
        at_once = self.facts.has_subgroups
        tree = Tree(self.threads, single.radix, single.steps, self.width, at_once)
        for fold in self.blocks.row_folds:
            fold_together(schedule, fold, tree)
        partials = [
            name for product in self.blocks.products for name in self.split_product(product, single)
        ]
        together = (*self.blocks.products, self.blocks.final)
        schedule.fission(self.roles.lane)
        schedule.fission(self.roles.half, together)
        first = partials[:: len(partials) // len(self.blocks.products)]
        trees = [name for name in partials if name not in first]
        *_, last = schedule.fission(self.roles.panel, (*trees, *together))
        if trees:  # after all products: their loads do not wait for a tree
            schedule.fission(last, together)
        for name in partials:
            steps = single.words if name in first else single.steps
            self.share_partial(name, steps)
        for name in self.blocks.products:
            self.put_lanes_inside(name, single.steps)
        schedule.vectorize(schedule.loops(self.blocks.final)[-1])
        panel, half = schedule.loops(self.blocks.final)[-3:-1]
        self.bind_threads(schedule.fuse(panel, half))
        self.bind_groups(*self.roles.outer, self.roles.row, self.roles.group)

    def split_product(self, product: str, single: Divided) -> list[str]:
        """Divide a product's words among threads; their sums are added level by level. Returns the
        blocks whose results other threads read.
        """
        schedule = self.schedule
        buffer = written_buffer(schedule.block(product))
        assert buffer is not None
        axis = len(buffer.shape) - 1
        loop = schedule.fuse(*self.unroll_values(product))
        if single.depth < self.facts.units:
            _, loop = schedule.split(loop, [None, single.depth])
        partials = [schedule.rfactor(loop, axis)]
        count = single.depth
        while count > single.radix:
            (loop,) = schedule.reduce_loops(product)
            count = next(d for d in divisors(count, count) if count // d <= single.radix)
            _, loop = schedule.split(loop, [None, count])
            partials.append(schedule.rfactor(loop, axis))
        return partials

    def unroll_values(self, product: str) -> tuple[str, str]:
        """Unroll a word's values; returns the loops over blocks and over their words."""
        block, word, *values = self.schedule.reduce_loops(product)
        for loop in values:
            self.schedule.unroll(loop)
        return block, word

    def share_partial(self, name: str, steps: int) -> None:
        """Let each thread compute four sums in registers, and put them where all threads see them.
        Up to `steps` of its outermost iterations are written out.
        """
        schedule = self.schedule
        loops, reduced = schedule.loops(name), schedule.reduce_loops(name)
        panel, half, lane, *inner = loops[loops.index(self.roles.group) + 1 :]
        (thread,) = (loop for loop in inner if loop not in reduced)
        schedule.reorder(thread, panel, half, *reduced, lane)
        copy = put_in_shared_memory(schedule, name, half)
        for block in (schedule.decompose_reduction(name, reduced[0]), name, copy):
            schedule.vectorize(schedule.loops(block)[-1])
        write_out(schedule, reduced[0], steps)
        schedule.bind(thread, "threadIdx.y")
        schedule.bind(schedule.fuse(panel, half), "threadIdx.x")

    def put_lanes_inside(self, product: str, steps: int) -> None:
        """Add whole vectors of a product."""
        schedule = self.schedule
        lane, *reduced = schedule.loops(product)[-1 - len(schedule.reduce_loops(product)) :]
        schedule.reorder(*reduced, lane)
        for block in (schedule.decompose_reduction(product, reduced[0]), product):
            schedule.vectorize(schedule.loops(block)[-1])
        write_out(schedule, reduced[0], steps)

    def tile(self, rows: int) -> None:
        """Let each thread compute a tile of rows times a panel's columns."""
        schedule = self.schedule
        tile, row = schedule.split(self.roles.row, [None, rows])
        across = divisors(extent_of(schedule, self.roles.group) or 1, self.threads)[-1]
        schedule.reorder(tile, self.roles.group, row)
        group, thread = schedule.split(self.roles.group, [None, across])
        if self.blocks.row_folds:
            schedule.fission(row)
        for fold in self.blocks.row_folds:
            self.fold_alone(fold)
        row = schedule.loops(self.blocks.final)[-4]
        schedule.reorder(self.roles.panel, row, self.roles.half, self.roles.lane)
        starts = {name: schedule.decompose_reduction(name, self.unroll_values(name)[0])
                  for name in self.blocks.products}  # fmt: skip
        for loop in (self.roles.lane, self.roles.half, row):
            schedule.fission(loop)
        for name in self.blocks.products:
            reduced = schedule.reduce_loops(name)
            inner = schedule.loops(name)[-3 - len(reduced) : -len(reduced)]
            schedule.reorder(*reduced, *inner)
        for name in (*starts.values(), *self.blocks.products, self.blocks.final):
            *unrolled, lane = schedule.loops(name)[-3:]
            schedule.vectorize(lane)
            for loop in unrolled:
                schedule.unroll(loop)
        self.bind_threads(thread)
        self.bind_groups(*self.roles.outer, tile, group)

    def fold_alone(self, fold: str) -> None:
        """Let a thread reduce whole rows, some elements at once."""
        schedule = self.schedule
        (loop,) = schedule.reduce_loops(fold)
        if (extent_of(schedule, loop) or 1) % SQUARES == 0:
            _, elements = schedule.split(loop, [None, SQUARES])
            schedule.unroll(elements)
        clear_first(schedule, fold)

    @property
    def width(self) -> int:
        """The threads of a workgroup that read the same word of different columns."""
        panels = self.single.panels
        return panels if isinstance(self.single, Apart) else PANEL // self.facts.lanes * panels

    @property
    def threads(self) -> int:
        """The threads of a workgroup."""
        return self.width if isinstance(self.single, Apart) else self.width * self.single.depth

    def bind_threads(self, loop: str) -> None:
        """Make the iterations of a loop the threads of a workgroup, in rows of its width."""
        rows, columns = self.schedule.split(loop, [None, self.width])
        self.schedule.bind(rows, "threadIdx.y")
        self.schedule.bind(columns, "threadIdx.x")

    def bind_groups(self, *loops: str) -> None:
        """Give each iteration of these loops to a workgroup."""
        bind_groups(self.schedule, loops)
