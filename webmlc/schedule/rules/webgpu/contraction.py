"""Matrix products and convolutions over channels-last maps: register tiles of rows by columns.

Rows are all axes of the left operand (for a convolution: image, y, x, as one index), columns the
last axis of the right one. Each thread owns a tile, 8 rows by 8 columns, in vec4 registers. The
weights of a panel of 8 columns are two vec4 loads for each step of the reduction, shared by the
rows. Rows and columns that do not fill a tile are sections of their own.

    Y[m, o] += A[m, k] * B[o // 8, k, o % 8]   ->   for k: b0, b1 = B[...]; for r in 8: Y_r += A[m +
    r, k] * (b0, b1)
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from webmlc.core.expr import Expr, as_int
from webmlc.core.machine import Machine
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
)
from webmlc.schedule.rules.tiling.sections import Section, is_zero, split_columns, split_rows
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


@dataclass(frozen=True, slots=True)
class Facts:
    """A contraction with its epilogue. `rows`: how many there are, `None` if they are no loop;
    `are_rows_adjacent`: whether they are one axis in memory, so that primitives can tell tiles
    apart; `results`: elements of the result, `None` if symbolic; `depth`: steps of the innermost
    reduction loop.
    """

    function: LoopFunction
    fold: str
    rows: Expr | None
    are_rows_adjacent: bool
    results: int | None
    depth: Expr
    lanes: int


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
        _are_rows_adjacent(fold, roles),
        size_of([axis.extent for axis in axes_of_kind(fold, "spatial")]),
        simplify(schedule.extent(nest.reduced[-1])),
        machine.lanes,
    )
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
    ).where(
        "half of the registers hold the tile",
        lambda rows, columns: 2 * rows * columns <= machine.vector_registers * machine.lanes,
    )
    if facts.are_rows_adjacent:
        return tiles
    return proven(tiles, build, facts, default(facts, machine))


def default(facts: Facts, machine: Machine) -> Parameters:
    """The machine's tile where that many threads fill a GPU, else half its rows: small layers want
    threads (and short shaders) more than reuse.
    """
    tile = machine.tile
    filling = machine.filling_threads * tile.rows * tile.columns
    fills = facts.results is not None and facts.results >= filling
    tallest = tile.rows if fills else tile.rows // 2
    rows = 1
    if facts.rows is not None:
        height = row_tile(facts.rows, tallest)
        rows = row_tile(simplify(facts.rows // height * height), tallest)
    steps = unroll_factor(facts.depth, STEPS)
    return Parameters(machine.workgroup_size, rows, tile.columns, steps, BODY, ACROSS)


def build(facts: Facts, parameters: Parameters) -> Schedule:
    """Tile each section, and make workgroups of its tiles."""
    schedule = Schedule(facts.function)
    nest = _prepare(schedule, facts.fold)
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
    reduced = _unroll_reduction(schedule, list(nest.reduced), parameters)
    return _Threads(rows, columns, tuple(tile), tuple(reduced))


def _unroll_reduction(schedule: Schedule, loops: list[str], parameters: Parameters) -> list[str]:
    """Unroll a few steps of the innermost reduction loop, and short loops around it."""
    *outer, last = loops
    extent = schedule.extent(last)
    factor = parameters.steps
    if as_int(simplify(extent)) == factor:
        schedule.unroll(last)
        while outer:
            around = as_int(simplify(schedule.extent(outer[-1])))
            if around is None or around * factor > parameters.body:
                break
            schedule.unroll(outer[-1])
            factor *= around
            outer.pop()
        return loops
    if factor == 1:
        return loops
    steps, unrolled = schedule.split(last, [None, factor])
    schedule.unroll(unrolled)
    return [*outer, steps, unrolled]


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
