"""How the tiles of a contraction become workgroups: four ways.

**Blocks of tiles.** Threads beside and below each other share lines of both operands.

**Quads.** The four threads of a quad share loads. Where there are two tiles beside and below each
other, two threads need the same rows, and two the same columns. Of four tiles beside each other,
all threads need the same rows; of four below each other, the same columns. The threads of a quad
follow each other, so that sections of a kernel may differ in this:

    for row in 24:                       for group (workgroups):
      for column in 96: ...      ->        for thread in 64: quad, row, column = thread // 4, thread
                                             // 2 % 2, thread % 2
                                             ...

**Staged columns.** Threads whose tiles are below each other read the same columns of the right
operand. A workgroup copies the panels of its columns for a few steps of the reduction; each thread
copies some vectors. Then every thread reads its columns there. The left operand is read from
memory: threads beside each other read the same element. The vectors of a tile are apart, so that
threads beside each other read vectors beside each other. Measured on an H200: a product of 4096³
ran at 32 TFLOPS where reads from memory reached 13, and copies of both operands 30.

    for k:                                   for k0:
        b = B[k, tile]                           for t in threads: S[...] = B[16 steps, 64 columns]
        y[8, 8] += A[tile, k] * b     ->         for k in 16 steps (unrolled):
                                                     y[8, 8] += A[tile, k0 + k] * S[k, tile]

**A divided reduction.** A product with few rows, or a convolution over a small feature map, has
fewer tiles than a GPU has lanes. Several threads compute the same tile, each over a part of the
reduction, and put their sums into workgroup memory. Then the threads of a tile share its rows (or
the vectors of a single row): each thread adds the sums of its elements, and runs the epilogue on
them. This is the intra-block form of "split K" (NVIDIA, CUTLASS: "Sliced-K").

    for m, o:                                 for group (workgroups):
        for k: Y += A[m, k] * B[k, o]             for p, tile (threads):
        Z = relu(Y)                                   for k in part p: y[8, 8] += ...   (registers)
                                       ->             S[p, tile] = y            (workgroup memory)
                                                  for e (threads):
                                                      for p: Y += S[p, e]
                                                      Z[e] = relu(Y)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from webmlc.core.machine import QUAD
from webmlc.core.simplify import simplify
from webmlc.schedule.primitives.partition import Copy
from webmlc.schedule.rules.tiling.cover import divisors, unroll_factor
from webmlc.schedule.rules.tiling.nests import extent_of, fuse_all
from webmlc.schedule.rules.webgpu.contraction_facts import PAIR, Facts, Grid, Parameters
from webmlc.schedule.rules.webgpu.fold_tile import (
    Section,
    Threads,
    is_zero,
    run_tile,
    unroll_reduction,
)
from webmlc.schedule.rules.webgpu.threads import bind_groups, put_in_shared_memory
from webmlc.schedule.schedule import Schedule

SHORT_SUM = 8
"""Parts that a thread adds without a loop: the loop counter would cost as much as the addition
(chosen by hand)."""


def bind_blocks(schedule: Schedule, nest: Section, tiles: Threads, across: int, down: int) -> None:
    """Make workgroups of tiles, `across` beside and at most `down` below each other."""
    groups, column = schedule.split(tiles.columns, [None, across])
    outer, inner = [groups], [column]
    if tiles.rows is not None:
        most = min(down, extent_of(schedule, tiles.rows) or down)
        row_groups, row = schedule.split(tiles.rows, [None, most])
        outer, inner = [row_groups, groups], [row, column]
    outer = [*nest.batch, *outer]
    schedule.reorder(*outer, *inner)
    bind_groups(schedule, outer)
    _bind_tiles(schedule, inner)
    run_tile(schedule, nest.fold, tiles.unrolled, tiles.vectors, tiles.reduced)


def bind_quads(schedule: Schedule, nest: Section, tiles: Threads, parameters: Parameters) -> None:
    """Make workgroups of quads, as many beside each other as tiles allow."""
    below, beside = _quad_shape(schedule, tiles)
    groups, columns = schedule.split(tiles.columns, [None, beside])
    across = unroll_factor(schedule.extent(groups), max(1, parameters.across // beside))
    groups, quad_column = schedule.split(groups, [None, across])
    outer, inner = [groups], [quad_column, columns]
    if tiles.rows is not None:
        quad_rows, row = schedule.split(tiles.rows, [None, below])
        most = max(1, parameters.workgroup // QUAD // across)
        most = min(most, extent_of(schedule, quad_rows) or most)
        row_groups, quad_row = schedule.split(quad_rows, [None, most])
        outer, inner = [row_groups, groups], [quad_row, quad_column, row, columns]
    outer = [*nest.batch, *outer]
    schedule.reorder(*outer, *inner)
    thread = fuse_all(schedule, inner)
    bind_groups(schedule, outer)
    schedule.bind(thread, "threadIdx.x")
    run_tile(schedule, nest.fold, tiles.unrolled, tiles.vectors, tiles.reduced)


def _quad_shape(schedule: Schedule, tiles: Threads) -> tuple[int, int]:
    """The tiles of a quad, below and beside: a shape that fills all quads, else four below."""
    columns = simplify(schedule.extent(tiles.columns))
    if tiles.rows is None:
        return 1, QUAD
    rows = simplify(schedule.extent(tiles.rows))
    shapes = ((PAIR, PAIR), (1, QUAD), (QUAD, 1))
    fits = (s for s in shapes if is_zero(rows % s[0]) and is_zero(columns % s[1]))
    return next(fits, (QUAD, 1))


def stage_columns(schedule: Schedule, nest: Section, facts: Facts, grid: Grid, steps: int) -> None:
    """Make workgroups that copy `steps` steps of their columns at once. Whole workgroups cover the
    rows and columns, and `steps` divides the innermost reduction loop.
    """
    assert nest.rows is not None
    row_groups, down, row = schedule.split(nest.rows, [None, grid.down, grid.rows])
    widths = [None, grid.columns // facts.lanes, grid.across, facts.lanes]
    column_groups, vector, across, lane = schedule.split(nest.columns, widths)
    outer = [*nest.batch, row_groups, column_groups]
    schedule.reorder(*outer, down, across, row, vector, lane)
    *around, last = nest.reduced
    stage, step = schedule.split(last, [None, steps])
    schedule.unroll(step)
    bind_groups(schedule, outer)
    _bind_tiles(schedule, (down, across))
    run_tile(schedule, nest.fold, [row, vector], [lane], [*around, stage, step])
    copy = schedule.cache_read(nest.fold, facts.operand, "shared")
    schedule.compute_at(copy, stage)
    loops = schedule.loops(copy)
    elements = fuse_all(schedule, loops[loops.index(stage) + 1 :])
    turn, *threads, lane = schedule.split(elements, [None, grid.down, grid.across, facts.lanes])
    schedule.reorder(*threads, turn, lane)
    _bind_tiles(schedule, threads)
    schedule.unroll(turn)
    schedule.vectorize(lane)


@dataclass(frozen=True, slots=True)
class _Roles:
    """The loops of a nest under the loops over workgroups, outermost first: over the `tiles` of a
    workgroup, then within a tile. There is no `row`, and one loop over tiles less, if the product
    has a single row.
    """

    tiles: tuple[str, ...]
    row: tuple[str, ...]
    vector: str
    lane: str

    @property
    def loops(self) -> tuple[str, ...]:
        """All loops."""
        return (*self.tiles, *self.row, self.vector, self.lane)

    def around(self, schedule: Schedule, block: str, groups: Sequence[str]) -> _Roles:
        """The same roles in the nest of another block, below the loops over workgroups."""
        loops = [loop for loop in schedule.loops(block) if loop not in groups]
        return Copy(block, dict(zip(self.loops, loops, strict=False))).with_loops(self)


def divide_reduction(
    schedule: Schedule, nest: Section, facts: Facts, parameters: Parameters, grid: Grid
) -> None:
    """Let several threads divide the reduction of each tile; whole tiles cover the section."""
    row_groups, tiles, row = list[str](), list[str](), list[str]()
    if nest.rows is not None:
        split = schedule.split(nest.rows, [None, grid.down, grid.rows])
        row_groups, tiles, row = ([loop] for loop in split)
    widths = [None, grid.across, grid.columns // facts.lanes, facts.lanes]
    column_groups, across, vector, lane = schedule.split(nest.columns, widths)
    roles = _Roles((*tiles, across), tuple(row), vector, lane)
    groups = [*nest.batch, *row_groups, column_groups]
    schedule.reorder(*groups, *roles.loops)
    divided = nest.reduced[-1 if facts.outer_depth is None else 0]
    part, _ = schedule.split(divided, [parameters.parts, None])
    partial = schedule.rfactor(part, 0)
    # The final sum and the epilogue stay in one nest, apart from the sums of the parts.
    together = [n for n in schedule.blocks() if n != partial and lane in schedule.loops(n)]
    for loop in reversed(roles.loops):
        schedule.fission(loop, together)
    _sum_parts(schedule, partial, part, roles.around(schedule, partial, groups), parameters)
    _add_parts(schedule, nest.fold, roles.around(schedule, nest.fold, groups), parameters.parts)
    bind_groups(schedule, groups)


def _sum_parts(
    schedule: Schedule, partial: str, part: str, roles: _Roles, parameters: Parameters
) -> None:
    """Let each thread sum a part of a tile's reduction, and put the sums where all see them."""
    reduced = schedule.reduce_loops(partial)
    schedule.reorder(part, *roles.loops, *reduced)
    put_in_shared_memory(schedule, partial, roles.lane)
    reduced = unroll_reduction(schedule, reduced, parameters.steps, parameters.body)
    schedule.bind(part, "threadIdx.z")
    _bind_tiles(schedule, roles.tiles)
    run_tile(schedule, partial, [*roles.row, roles.vector], [roles.lane], reduced)


def _add_parts(schedule: Schedule, fold: str, roles: _Roles, parts: int) -> None:
    """Let the threads share the rows of all tiles of their workgroup, or the vectors of a single
    row, add the sums of the parts and run the epilogue.
    """
    (part,) = schedule.reduce_loops(fold)
    shared, *inner = *roles.row, roles.vector
    count = extent_of(schedule, shared) or 1
    turn, thread = schedule.split(shared, [None, divisors(count, parts)[-1]])
    schedule.reorder(thread, *roles.tiles, turn, *inner, roles.lane)
    if parts <= SHORT_SUM:
        schedule.unroll(part)
    schedule.bind(thread, "threadIdx.z")
    _bind_tiles(schedule, roles.tiles)
    run_tile(schedule, fold, [], [roles.lane], [part])


def _bind_tiles(schedule: Schedule, loops: Sequence[str]) -> None:
    """Give the tiles of a workgroup to its threads. `loops` end with the loop along a row."""
    for loop, axis in zip(reversed(loops), ("threadIdx.x", "threadIdx.y"), strict=False):
        schedule.bind(loop, axis)
