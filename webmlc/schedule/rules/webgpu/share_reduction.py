"""Divide the reduction of a product among the threads of a workgroup.

A product with few rows, or a convolution over a small feature map, has fewer tiles than a GPU has
lanes. Here several threads compute the same tile, each over a part of the reduction. They put their
sums into workgroup memory. Then the threads of a tile share its rows (or the vectors of a single
row): each thread adds the sums of its elements, and runs the epilogue on them.

    for m, o:                                 for group (workgroups):
        for k: Y += A[m, k] * B[k, o]             for p, tile (threads):
        Z = relu(Y)                                   for k in part p: y[8, 8] += ...   (registers)
                                       ->             S[p, tile] = y            (workgroup memory)
                                                  for e (threads):
                                                      for p: Y += S[p, e]
                                                      Z[e] = relu(Y)

The scheme is the intra-block form of "split K" (NVIDIA, CUTLASS: "Sliced-K").
"""

from __future__ import annotations

from dataclasses import dataclass

from webmlc.core.expr import as_int
from webmlc.core.simplify import simplify
from webmlc.schedule.rules.tiling.axes import fuse_all
from webmlc.schedule.rules.tiling.cover import divisors
from webmlc.schedule.rules.tiling.fold_tile import TileLoop, run_tile, unroll_reduction
from webmlc.schedule.rules.tiling.nests import extent_of
from webmlc.schedule.rules.tiling.sections import Section
from webmlc.schedule.schedule import Schedule

SHORT_SUM = 8
"""Parts that a thread adds without a loop: the loop counter would cost as much as the addition
(chosen by hand)."""


@dataclass(frozen=True, slots=True)
class Sharing:
    """The threads of a workgroup: `down` × `across` tiles of `rows` × `columns` elements, each by
    `parts` threads. `steps` and `body` bound how far the reduction is unrolled
    (`fold_tile.unroll_reduction`). `is_outer`: whether `parts` divides the outermost reduction loop
    or the innermost.
    """

    parts: int
    down: int
    across: int
    rows: int
    columns: int
    steps: int
    body: int
    is_outer: bool = False


@dataclass(frozen=True, slots=True)
class _Tile:
    """The loops of a nest under the loops over workgroups, outermost first: over its tiles (`rows`,
    `across`), then within a tile (`row`, `vector`, `lane`). `rows` and `row` are missing if the
    product has a single row.
    """

    rows: str | None
    across: str
    row: str | None
    vector: str
    lane: str

    @property
    def loops(self) -> tuple[str, ...]:
        """The loops that are not missing."""
        every = (self.rows, self.across, self.row, self.vector, self.lane)
        return tuple(loop for loop in every if loop is not None)

    def renamed(self, loops: list[str]) -> _Tile:
        """The same loops of another nest."""
        names = dict(zip(self.loops, loops, strict=True))
        rows = None if self.rows is None else names[self.rows]
        row = None if self.row is None else names[self.row]
        return _Tile(rows, names[self.across], row, names[self.vector], names[self.lane])


def share_reduction(schedule: Schedule, nest: Section, sharing: Sharing, lanes: int) -> None:
    """Schedule a fold with its epilogue.

    Needs: whole workgroups of whole tiles cover its rows and columns, `lanes` divides the columns
    of a tile, and `parts` divides the reduction loop that `is_outer` chooses.
    """
    rows = row = None
    row_groups = nest.rows
    if nest.rows is not None:
        row_groups, rows, row = schedule.split(nest.rows, [None, sharing.down, sharing.rows])
    widths = [None, sharing.across, sharing.columns // lanes, lanes]
    column_groups, across, vector, lane = schedule.split(nest.columns, widths)
    tile = _Tile(rows, across, row, vector, lane)
    groups = [*nest.batch, *([] if row_groups is None else [row_groups]), column_groups]
    schedule.reorder(*groups, *tile.loops)
    divided = nest.reduced[0 if sharing.is_outer else -1]
    part, _ = schedule.split(divided, [sharing.parts, None])
    partial = schedule.rfactor(part, 0)
    inner = tile.loops[-1]
    # The final sum and the epilogue stay in one nest, apart from the sums of the parts.
    together = [n for n in schedule.blocks() if n != partial and inner in schedule.loops(n)]
    for loop in reversed(tile.loops):
        schedule.fission(loop, together)
    _sum_parts(
        schedule, partial, part, tile.renamed(_under(schedule, partial, groups, tile)), sharing
    )
    final = tile.renamed(_under(schedule, nest.fold, groups, tile))
    _add_parts(schedule, nest.fold, final, sharing)
    group = fuse_all(schedule, groups)
    assert group is not None
    schedule.bind(group, "blockIdx.x")


def _under(schedule: Schedule, block: str, groups: list[str], tile: _Tile) -> list[str]:
    """The loops over the tiles around a block, below the loops over workgroups."""
    loops = schedule.loops(block)
    return [loop for loop in loops if loop not in groups][: len(tile.loops)]


def _sum_parts(schedule: Schedule, partial: str, part: str, tile: _Tile, sharing: Sharing) -> None:
    """Let each thread sum a part of the reduction of a tile in registers, and put the sums where
    all threads see them.
    """
    reduced = schedule.reduce_loops(partial)
    schedule.reorder(part, *tile.loops, *reduced)
    copy = schedule.cache_write(partial, "local")
    schedule.reverse_compute_at(copy, tile.lane)
    schedule.set_scope(copy, "shared")
    reduced = unroll_reduction(schedule, reduced, sharing.steps, sharing.body)
    schedule.bind(part, "threadIdx.z")
    if tile.rows is not None:
        schedule.bind(tile.rows, "threadIdx.y")
    schedule.bind(tile.across, "threadIdx.x")
    run_tile(schedule, partial, _register_tile(tile), reduced)


def _register_tile(tile: _Tile) -> list[TileLoop]:
    rows = [] if tile.row is None else [TileLoop(tile.row, "unrolled")]
    return [*rows, TileLoop(tile.vector, "unrolled"), TileLoop(tile.lane, "vectorized")]


def _add_parts(schedule: Schedule, fold: str, tile: _Tile, sharing: Sharing) -> None:
    """Let the threads share the rows of all tiles of their workgroup, or the vectors of a single
    row, add the sums of the parts and run the epilogue.
    """
    (part,) = schedule.reduce_loops(fold)
    shared = tile.vector if tile.row is None else tile.row
    count = extent_of(schedule, shared) or 1
    turn, thread = schedule.split(shared, [None, divisors(count, sharing.parts)[-1]])
    outer = [tile.across] if tile.rows is None else [tile.rows, tile.across]
    inner = [turn] if tile.row is None else [turn, tile.vector]
    schedule.reorder(thread, *outer, *inner, tile.lane)
    if (as_int(simplify(schedule.extent(part))) or 0) <= SHORT_SUM:  # an int: `parts` divides
        schedule.unroll(part)
    schedule.bind(thread, "threadIdx.z")
    if tile.rows is not None:
        schedule.bind(tile.rows, "threadIdx.y")
    schedule.bind(tile.across, "threadIdx.x")
    run_tile(schedule, fold, [TileLoop(tile.lane, "vectorized")], [part])
