"""Matrix products and convolutions over channels-last maps: register tiles of rows by columns.

Rows are all axes of the left operand (for a convolution: image, y, x, as one index), columns the
last axis of the right one. Each thread owns `machine.tile`, 8 rows by 8 columns, in vec4 registers;
the weights of a panel of 8 columns are two vec4 loads for each step of the reduction, shared by the
rows. Rows and columns that do not fill a tile are sections of their own.

    Y[m, o] += A[m, k] * B[o // 8, k, o % 8]   ->   for k: b0, b1 = B[...]; for r in 8: Y_r += A[m +
    r, k] * (b0, b1)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from webmlc.core.expr import Expr, as_int
from webmlc.core.machine import Machine, Tile
from webmlc.core.simplify import simplify
from webmlc.loops.ir import Block, LoopFunction, Store
from webmlc.schedule.analysis import (
    Contraction,
    axis_ranges,
    contraction_of,
    flat_index,
    has_vector_types,
    lane_stride,
)
from webmlc.schedule.rules.webgpu.folds import TileLoop, attach_epilogue, only_fold, run_tile
from webmlc.schedule.rules.webgpu.nests import (
    axes_of_kind,
    extent_of,
    fuse_all,
    loops_along,
    unroll_factor,
)
from webmlc.schedule.schedule import Schedule

_ENOUGH_THREADS = 8192
_UNROLLED_STEPS = 4  # of the innermost reduction loop: a vec4 of the left operand
_LARGEST_BODY = 8  # steps of the reduction that are written out, over several loops


@dataclass(frozen=True, slots=True)
class Nest:
    """The loops of one section, before tiling: shared outer loops, rows, columns, reductions."""

    fold: str
    batch: tuple[str, ...]
    rows: str | None
    columns: str
    reduced: tuple[str, ...]


def contraction(function: LoopFunction, machine: Machine) -> Schedule | None:
    """Answers for one contraction with a pointwise epilogue and columns adjacent in memory."""
    fold = only_fold(function)
    if fold is None or not has_vector_types(fold):
        return None
    roles = contraction_of(fold)
    if roles is None or not roles.columns or not _columns_adjacent(fold, roles):
        return None
    schedule = Schedule(function)
    attach_epilogue(schedule, fold.name)
    block = schedule.block(fold.name)
    column = loops_along(block, roles.columns[-1:])
    rows = loops_along(block, roles.rows)
    batch = loops_along(block, (*roles.batch, *roles.columns[:-1]))
    batch += [loop for loop in rows if as_int(simplify(schedule.extent(loop))) == 1]
    rows = [loop for loop in rows if loop not in batch]
    if any(as_int(simplify(schedule.extent(loop))) is None for loop in rows[1:]):
        batch, rows = [*batch, *rows[:-1]], rows[-1:]  # quotients by a symbol hide what is disjoint
    reduced = loops_along(block, roles.reduced)
    if not column or not reduced:
        return None
    schedule.reorder(column[0], *batch, *rows)
    nest = Nest(fold.name, tuple(batch), fuse_all(schedule, rows), column[0], tuple(reduced))
    tile = _tile_for(fold, machine)
    sections = [
        (section, _tile(schedule, section, tile, machine))
        for part in _split_columns(schedule, nest, tile.columns)
        for section in _split_rows(schedule, part, tile)
    ]
    # The sections share their workgroups: what fits beside the widest fits beside all.
    widest = max(_across(schedule, threads) for _, threads in sections)
    for section, threads in sections:
        _bind(schedule, section, threads, max(1, machine.workgroup_size // widest))
    return schedule


def _tile_for(fold: Block, machine: Machine) -> Tile:
    """The machine's tile where that many threads fill a GPU, else half its rows: small layers want
    threads (and short shaders) more than reuse.
    """
    size = extent_of([axis.extent for axis in axes_of_kind(fold, "spatial")])
    tile = machine.tile
    if size is not None and size >= _ENOUGH_THREADS * tile.rows * tile.columns:
        return tile
    return Tile(tile.rows // 2, tile.columns)


def _columns_adjacent(fold: Block, roles: Contraction) -> bool:
    """True where groups of 4 columns are adjacent in the result and in the right operand."""
    assert isinstance(fold.body, Store)
    ranges = axis_ranges(fold)
    column = roles.columns[-1].var
    right = flat_index(roles.right.buffer, roles.right.indices)
    result = flat_index(fold.body.buffer, fold.body.indices)
    return all(lane_stride(index, column, 4, ranges) == 1 for index in (right, result))


def _is_zero(expr: Expr) -> bool:
    return as_int(simplify(expr)) == 0


def _partition(schedule: Schedule, nest: Nest, loop: str, at: Expr) -> tuple[Nest, Nest]:
    """Cut an outermost loop of a nest: the nest of its first iterations, and that of the last."""
    before = schedule.loops(nest.fold)
    _, rest = schedule.partition(loop, at)
    fold = next(
        name
        for name in schedule.blocks()
        if rest in schedule.loops(name) and axes_of_kind(schedule.block(name), "reduce")
    )
    return (
        _renamed(nest, nest.fold, dict(zip(before, schedule.loops(nest.fold), strict=True))),
        _renamed(nest, fold, dict(zip(before, schedule.loops(fold), strict=True))),
    )


def _renamed(nest: Nest, fold: str, names: Mapping[str, str]) -> Nest:
    return Nest(
        fold,
        tuple(names[loop] for loop in nest.batch),
        None if nest.rows is None else names[nest.rows],
        names[nest.columns],
        tuple(names[loop] for loop in nest.reduced),
    )


def _split_columns(schedule: Schedule, nest: Nest, width: int) -> list[Nest]:
    """Whole panels of columns, then what is left."""
    extent = simplify(schedule.extent(nest.columns))
    whole = simplify(extent // width * width)
    if _is_zero(extent - whole) or as_int(whole) == 0:
        return [nest]
    return list(_partition(schedule, nest, nest.columns, whole))


def _split_rows(schedule: Schedule, nest: Nest, tile: Tile) -> list[Nest]:
    """Whole tiles of rows, then single rows."""
    if nest.rows is None:
        return [nest]
    schedule.reorder(nest.rows, *nest.batch, nest.columns)
    extent = simplify(schedule.extent(nest.rows))
    height = row_tile(extent, tile.rows)
    whole = simplify(extent // height * height)
    if height == 1 or _is_zero(extent - whole):
        return [nest]
    return list(_partition(schedule, nest, nest.rows, whole))


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


def _tile(schedule: Schedule, nest: Nest, size: Tile, machine: Machine) -> _Threads:
    """Split the rows and columns of one section into tiles."""
    tile: list[TileLoop] = []
    rows = nest.rows
    if rows is not None:
        extent = simplify(schedule.extent(rows))
        height = row_tile(extent, size.rows)
        if height > 1 and _is_zero(extent % height):
            rows, inner = schedule.split(rows, [None, height])
            tile.append(TileLoop(inner, "unrolled"))
    columns = nest.columns
    width = unroll_factor(schedule.extent(columns), size.columns)
    if width == machine.lanes:
        columns, lanes = schedule.split(columns, [None, width])
        tile.append(TileLoop(lanes, "vectorized"))
    elif width % machine.lanes == 0:
        columns, vectors, lanes = schedule.split(
            columns, [None, width // machine.lanes, machine.lanes]
        )
        tile += [TileLoop(vectors, "unrolled"), TileLoop(lanes, "vectorized")]
    outer = [*nest.batch, *([] if rows is None else [rows]), columns]
    schedule.reorder(*outer, *(step.loop for step in tile))
    reduced = _unroll_reduction(schedule, list(nest.reduced))
    return _Threads(rows, columns, tuple(tile), tuple(reduced))


def _unroll_reduction(schedule: Schedule, loops: list[str]) -> list[str]:
    """Write out a few steps of the innermost reduction loop, and short loops around it."""
    *outer, last = loops
    extent = schedule.extent(last)
    factor = unroll_factor(extent, _UNROLLED_STEPS)
    if as_int(simplify(extent)) == factor:
        schedule.unroll(last)
        while outer:
            around = as_int(simplify(schedule.extent(outer[-1])))
            if around is None or around * factor > _LARGEST_BODY:
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


def _across(schedule: Schedule, threads: _Threads) -> int:
    """The tiles of a row that one workgroup computes."""
    return unroll_factor(schedule.extent(threads.columns), 8)


def _bind(schedule: Schedule, nest: Nest, threads: _Threads, down: int) -> None:
    """Make workgroups of blocks of tiles, at most `down` of them one below the other: their threads
    share lines of both operands.
    """
    rows, batch = threads.rows, list(nest.batch)
    groups, column = schedule.split(threads.columns, [None, _across(schedule, threads)])
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
