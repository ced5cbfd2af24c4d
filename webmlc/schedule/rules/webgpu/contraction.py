"""Matrix products and convolutions over channels-last maps: register tiles of rows by columns.

Rows are all axes of the left operand (for a convolution: image, y, x, as one index), columns the
last axis of the right one. Each thread owns a tile, 8 rows by 8 columns, in vec4 registers. The
weights of a panel of 8 columns are two vec4 loads for each step of the reduction, shared by the
rows. Rows and columns that do not fill a tile are sections of their own. Where there are too few
tiles for a GPU, several threads of a workgroup divide the reduction of a tile (`share_reduction`).

    Y[m, o] += A[m, k] * B[o // 8, k, o % 8]   ->   for k: b0, b1 = B[...]; for r in 8: Y_r += A[m +
    r, k] * (b0, b1)
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from math import prod

from webmlc.core.affine import terms
from webmlc.core.expr import Expr, as_int
from webmlc.core.machine import MAX_WORKGROUP_BYTES, Machine
from webmlc.core.simplify import prove_equal, simplify
from webmlc.loops.ir import Block, LoopFunction, Store
from webmlc.schedule.analysis import (
    Contraction,
    axis_ranges,
    contraction_of,
    flat_index,
    has_vector_types,
    lane_stride,
    stride,
)
from webmlc.schedule.errors import ScheduleError
from webmlc.schedule.rules.rule import Rule, accepts, proven
from webmlc.schedule.rules.space import Space
from webmlc.schedule.rules.tiling.axes import (
    axes_of_kind,
    fuse_all,
    loops_along,
    size_of,
    unroll_factor,
)
from webmlc.schedule.rules.tiling.cover import divisors
from webmlc.schedule.rules.tiling.fold_tile import (
    TileLoop,
    attach_epilogue,
    fold_with_followers,
    run_tile,
    unroll_reduction,
)
from webmlc.schedule.rules.tiling.sections import Section, is_zero, split_columns, split_rows
from webmlc.schedule.rules.webgpu.share_reduction import Sharing, share_reduction
from webmlc.schedule.rules.webgpu.threads import workgroup_sizes
from webmlc.schedule.schedule import Schedule

STEPS = 4
"""Steps of the innermost reduction loop that are unrolled by default: a vec4 of the left
operand."""
MOST_STEPS = 8
"""Steps of the innermost reduction loop that may be unrolled."""
BODY = 8
"""Steps of the reduction that are unrolled over several loops by default: shaders of small layers
stay short (an estimate, as old as the rule)."""
ACROSS = 8
"""Tiles of a row that a workgroup computes by default: 64 columns, and 8 rows of tiles below each
other, share lines of both operands (an estimate, as old as the rule)."""
MOST_PARTS = 64
"""Threads that may divide the reduction of a tile.

From the specification of WebGPU: the default limit `maxComputeWorkgroupSizeZ`.
"""
SHORTEST_PART = 64
"""Steps of the reduction that a part has at least by default: the sums of the parts cost as much as
about three steps (measured with lavapipe: 36 steps a part took 13 % longer than one part). A single
row needs half of them, because each of its steps loads more than it computes."""


SUM_BYTES = 4
"""Bytes of a sum in workgroup memory: contractions compute in 32 bits."""


@dataclass(frozen=True, slots=True)
class Facts:
    """A contraction with its epilogue. `rows`: how many there are, `None` if they are no loop;
    `columns`: those along the last axis; `are_rows_adjacent`: whether rows are one axis in memory,
    so that primitives can tell tiles apart; `results`: elements of the result with each symbol as
    1; `depth`: steps of the innermost reduction loop; `steps`: those of all reduction loops, 0 if
    symbolic; `row_length`: rows along the last of several axes, `None` if there is one axis (a
    workgroup with more of them would have gaps in its memory); `can_share`: whether primitives let
    threads divide the reduction.
    """

    function: LoopFunction
    fold: str
    rows: Expr | None
    columns: Expr
    are_rows_adjacent: bool
    results: int
    depth: Expr
    steps: int
    lanes: int
    row_length: int | None = None
    can_share: bool = True


@dataclass(frozen=True, slots=True)
class Parameters:
    """The tile of a thread and the tiles of a workgroup."""

    workgroup: int
    """Invocations of a workgroup."""
    rows: int
    """Rows of a thread's tile; those that are left over are a tile of their own."""
    columns: int
    """Columns of a thread's tile."""
    steps: int
    """Steps of the innermost reduction loop that are unrolled."""
    body: int
    """Steps of the reduction that are unrolled at most, over several loops."""
    across: int
    """Tiles of a row that a workgroup computes, at most."""
    parts: int = 1
    """Threads that divide the reduction of a tile."""


def match(function: LoopFunction, machine: Machine) -> Facts | None:
    """Matches one contraction with a pointwise epilogue and columns adjacent in memory."""
    fold = fold_with_followers(function)
    if fold is None or not has_vector_types(fold):
        return None
    roles = contraction_of(fold)
    if roles is None or not roles.columns or not _columns_adjacent(fold, roles):
        return None
    if not loops_along(fold, roles.columns[-1:]) or not loops_along(fold, roles.reduced):
        return None
    schedule = Schedule(function)
    try:
        nest = _prepare(schedule, fold.name)
    except ScheduleError:  # the epilogue reads another element than the one that is ready
        return None
    facts = Facts(
        function,
        fold.name,
        None if nest.rows is None else simplify(schedule.extent(nest.rows)),
        simplify(schedule.extent(nest.columns)),
        _are_rows_adjacent(fold, roles),
        prod(multiple_of(axis.extent) for axis in axes_of_kind(fold, "spatial")),
        simplify(schedule.extent(nest.reduced[-1])),
        size_of([schedule.extent(loop) for loop in nest.reduced]) or 0,
        machine.lanes,
        _row_length(roles),
    )
    if function.symbols and not accepts(lambda: build(facts, default(facts, machine))):
        facts = replace(facts, can_share=False)
    if not facts.are_rows_adjacent and not accepts(lambda: build(facts, default(facts, machine))):
        return None
    return facts


def space(facts: Facts, machine: Machine) -> Space:
    """Tiles that fit the registers, and how workgroups are made of them."""
    rows = 1 if facts.rows is None else as_int(facts.rows)
    tallest = machine.tile.rows if rows is None else min(rows, machine.tile.rows)
    depth = as_int(facts.depth)
    tiles = Space.of(
        workgroup=workgroup_sizes(machine),
        rows=tuple(range(1, tallest + 1)),
        columns=tuple(machine.tile.columns * n // 2 for n in (1, 2, 4)),
        steps=(1,) if depth is None else divisors(depth, MOST_STEPS),
        body=(STEPS, BODY, 2 * BODY),
        across=(1, 2, 4, ACROSS, 2 * ACROSS),
        parts=(1,) if depth is None else divisors(depth, MOST_PARTS),
    )
    tiles = (
        tiles.where(
            "half of the registers hold the tile",
            lambda rows, columns: 2 * rows * columns <= machine.vector_registers * machine.lanes,
        )
        .where(
            "threads divide the reduction of whole tiles, in workgroup memory",
            lambda workgroup, rows, columns, parts: can_divide(
                facts, workgroup, rows, columns, parts
            ),
        )
        .where(
            "each part is a multiple of the steps that are unrolled",
            lambda steps, parts: parts == 1 or (depth or 1) // parts % steps == 0,
        )
    )
    if facts.are_rows_adjacent:
        return tiles
    return proven(tiles, build, facts, default(facts, machine))


def default(facts: Facts, machine: Machine) -> Parameters:
    """The first choice that fills a GPU, else the one with the most threads. High tiles come first,
    because they load each element less often; then few parts of the reduction.
    """
    choices = _default_choices(facts, machine)
    threads = [facts.results // (c.rows * c.columns) * c.parts for c in choices]
    if not any(threads):
        return choices[-1]  # of the rows only a run knows how many there are: the smallest tile
    filling = [c for c, n in zip(choices, threads, strict=True) if n >= machine.filling_threads]
    return filling[0] if filling else choices[threads.index(max(threads))]


def _default_choices(facts: Facts, machine: Machine) -> list[Parameters]:
    """The tiles to choose from, high ones first: two that cover the rows at little cost, and
    divisors of the rows where threads can divide the reduction. A single row may have half as many
    columns.
    """
    tile = machine.tile
    steps = unroll_factor(facts.depth, STEPS)
    whole = Parameters(machine.workgroup_size, 1, tile.columns, steps, BODY, ACROSS)
    if facts.rows is None:
        narrow = replace(whole, columns=facts.lanes)
        shared = [replace(narrow, parts=n) for n in _default_parts(facts, narrow)[1:]]
        return [*(replace(whole, parts=n) for n in _default_parts(facts, whole)), *shared]
    count = multiple_of(facts.rows)
    covering = {_default_rows(facts.rows, most) for most in (tile.rows, tile.rows // 2)}
    divisors_of_rows = {n for n in range(3, tile.rows + 1) if count % n == 0}
    return [
        replace(whole, rows=rows, parts=parts)
        for rows in sorted(covering | divisors_of_rows, reverse=True)
        for parts in _default_parts(facts, replace(whole, rows=rows))
        if parts > 1 or rows in covering
    ]


def _default_rows(extent: Expr, tallest: int) -> int:
    """The rows of a tile, up to `tallest`, that cover the rows at the least cost."""
    height = row_tile(extent, tallest)
    return row_tile(simplify(extent // height * height), tallest)


def _default_parts(facts: Facts, tile: Parameters) -> list[int]:
    """The numbers of parts that leave each of them long enough, and no thread of a workgroup
    idle.
    """
    depth = as_int(facts.depth)
    if depth is None or not facts.can_share:
        return [1]
    shortest = SHORTEST_PART if tile.rows > 1 else SHORTEST_PART // 2
    return [
        parts
        for parts in divisors(depth, MOST_PARTS)
        if can_divide(facts, tile.workgroup, tile.rows, tile.columns, parts)
        and depth // parts % tile.steps == 0
        and tile.workgroup % parts == 0
        and (parts == 1 or facts.steps // parts >= shortest)
    ]


def can_divide(facts: Facts, workgroup: int, rows: int, columns: int, parts: int) -> bool:
    """True if the threads of a workgroup can divide the reduction in these parts: tiles cover the
    rows and the columns, and the sums of all threads fit into workgroup memory.
    """
    if parts == 1:
        return True
    row_count = 1 if facts.rows is None else multiple_of(facts.rows)
    column_count = as_int(facts.columns)
    if column_count is None or parts > workgroup or not facts.can_share:
        return False
    if facts.row_length is not None and rows > facts.row_length:
        return False
    sum_bytes = workgroup * rows * columns * SUM_BYTES
    are_whole = row_count % rows == 0 and column_count % columns == 0
    return are_whole and sum_bytes <= MAX_WORKGROUP_BYTES


def build(facts: Facts, parameters: Parameters) -> Schedule:
    """Tile each section, and make workgroups of its tiles."""
    schedule = Schedule(facts.function)
    nest = _prepare(schedule, facts.fold)
    if parameters.parts > 1:
        share_reduction(schedule, nest, _sharing(facts, parameters), facts.lanes)
        return schedule
    sections = [
        (section, _tile(schedule, section, facts, parameters))
        for part in split_columns(schedule, nest, parameters.columns)
        for section in split_rows(schedule, part, parameters.rows)
    ]
    # The sections share their workgroups: what fits beside the widest fits beside all.
    across = [_across(schedule, threads, parameters) for _, threads in sections]
    down = max(1, parameters.workgroup // max(across))
    for (section, threads), width in zip(sections, across, strict=True):
        _bind(schedule, section, threads, width, down)
    return schedule


def _row_length(roles: Contraction) -> int | None:
    """The rows along the last of several axes of rows; `None` if there is only one."""
    live = [axis.extent for axis in roles.rows if as_int(axis.extent) != 1]
    return (as_int(live[-1]) or 1) if len(live) > 1 else None


def multiple_of(extent: Expr) -> int:
    """The largest literal that divides an extent of one term: 196 for 196 · n."""
    sums = terms(simplify(extent))
    return next(iter(sums.values())) if len(sums) == 1 else 1


def _sharing(facts: Facts, parameters: Parameters) -> Sharing:
    """The workgroup whose threads divide the reduction: tiles beside each other, then below."""
    rows, columns, parts = parameters.rows, parameters.columns, parameters.parts
    tiles = parameters.workgroup // parts
    across = divisors((as_int(facts.columns) or 1) // columns, min(tiles, parameters.across))[-1]
    row_count = 1 if facts.rows is None else multiple_of(facts.rows)
    length = row_count if facts.row_length is None else facts.row_length
    down = divisors(row_count // rows, max(1, min(tiles // across, length // rows)))[-1]
    return Sharing(parts, down, across, rows, columns, parameters.steps, parameters.body)


def _prepare(schedule: Schedule, name: str) -> Section:
    """Put the epilogue under the fold, columns outermost and all rows into one loop.

    Raises `ScheduleError` where the epilogue reads another element than the one that is ready.
    """
    roles = contraction_of(schedule.block(name))
    assert roles is not None
    attach_epilogue(schedule, name)
    block = schedule.block(name)
    (column,) = loops_along(block, roles.columns[-1:])
    rows = loops_along(block, roles.rows)
    batch = loops_along(block, (*roles.batch, *roles.columns[:-1]))
    batch += [loop for loop in rows if as_int(simplify(schedule.extent(loop))) == 1]
    rows = [loop for loop in rows if loop not in batch]
    if any(as_int(simplify(schedule.extent(loop))) is None for loop in rows[1:]):
        batch, rows = [*batch, *rows[:-1]], rows[-1:]  # quotients by a symbol hide what is disjoint
    schedule.reorder(column, *batch, *rows)
    reduced = loops_along(block, roles.reduced)
    return Section(name, tuple(batch), fuse_all(schedule, rows), column, tuple(reduced))


def _columns_adjacent(fold: Block, roles: Contraction) -> bool:
    """True where groups of 4 columns are adjacent in the result and in the right operand."""
    assert isinstance(fold.body, Store)
    ranges = axis_ranges(fold)
    column = roles.columns[-1].var
    right = flat_index(roles.right.buffer, roles.right.indices)
    result = flat_index(fold.body.buffer, fold.body.indices)
    return all(lane_stride(index, column, 4, ranges) == 1 for index in (right, result))


def _are_rows_adjacent(fold: Block, roles: Contraction) -> bool:
    """True where all axes of rows are one axis of the result in memory."""
    assert isinstance(fold.body, Store)
    ranges = axis_ranges(fold)
    index = flat_index(fold.body.buffer, fold.body.indices)
    axes = [axis for axis in roles.rows if as_int(axis.extent) != 1]
    for outer, inner in pairwise(axes):
        far, near = (stride(index, axis.var, ranges) for axis in (outer, inner))
        if far is None or near is None or not prove_equal(far, near * inner.extent, ranges):
            return False
    return True


def row_tile(extent: Expr, largest: int) -> int:
    """Rows of a thread's tile: the number that covers `extent` at the least cost."""
    count = as_int(extent)
    if count is None:
        return largest
    if count < largest:
        return count
    heights: list[int] = list(range(1, largest + 1))
    if largest == 4 and count % 5 == 0:
        heights.append(5)
    costs = [(_cost(count, height), height) for height in heights]
    return min(costs)[1]


def _cost(count: int, rows: int) -> tuple[int, int]:
    """The work of covering `count` rows: those of each tile, and 2 for its column loads."""
    return (count // rows * (rows + 2) + count % rows * 3, -rows)


@dataclass(frozen=True, slots=True)
class _Threads:
    """The loops over tiles, by rows and columns, and the loops of one tile with the reduction."""

    rows: str | None
    columns: str
    tile: tuple[TileLoop, ...]
    reduced: tuple[str, ...]


def _tile(schedule: Schedule, nest: Section, facts: Facts, parameters: Parameters) -> _Threads:
    """Split the rows and columns of one section into tiles."""
    tile: list[TileLoop] = []
    rows = nest.rows
    if rows is not None:
        extent = simplify(schedule.extent(rows))
        height = min(parameters.rows, as_int(extent) or parameters.rows)
        if height > 1 and is_zero(extent % height):
            rows, inner = schedule.split(rows, [None, height])
            tile.append(TileLoop(inner, "unrolled"))
    columns = nest.columns
    lanes = facts.lanes
    width = unroll_factor(schedule.extent(columns), parameters.columns)
    if width == lanes:
        columns, lane = schedule.split(columns, [None, width])
        tile.append(TileLoop(lane, "vectorized"))
    elif width % lanes == 0:
        columns, vectors, lane = schedule.split(columns, [None, width // lanes, lanes])
        tile += [TileLoop(vectors, "unrolled"), TileLoop(lane, "vectorized")]
    outer = [*nest.batch, *([] if rows is None else [rows]), columns]
    schedule.reorder(*outer, *(step.loop for step in tile))
    reduced = unroll_reduction(schedule, nest.reduced, parameters.steps, parameters.body)
    return _Threads(rows, columns, tuple(tile), tuple(reduced))


def _across(schedule: Schedule, threads: _Threads, parameters: Parameters) -> int:
    """The tiles of a row that one workgroup computes."""
    return unroll_factor(schedule.extent(threads.columns), parameters.across)


def _bind(schedule: Schedule, nest: Section, threads: _Threads, across: int, down: int) -> None:
    """Make workgroups of blocks of tiles, `across` of them beside and at most `down` below each
    other: their threads share lines of both operands.
    """
    rows, batch = threads.rows, list(nest.batch)
    groups, column = schedule.split(threads.columns, [None, across])
    outer = [*batch, groups]
    inner = [column]
    if rows is not None:
        count = as_int(simplify(schedule.extent(rows)))
        down = down if count is None else min(down, count)
        row_groups, row = schedule.split(rows, [None, down])
        outer, inner = [*batch, row_groups, groups], [row, column]
    schedule.reorder(*outer, *inner)
    group = fuse_all(schedule, outer)
    assert group is not None
    schedule.bind(group, "blockIdx.x")
    schedule.bind(column, "threadIdx.x")
    if rows is not None:
        schedule.bind(inner[0], "threadIdx.y")
    run_tile(schedule, nest.fold, threads.tile, threads.reduced)


CONTRACTION = Rule("contraction", match, space, default, build)
