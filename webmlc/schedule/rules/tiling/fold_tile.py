"""A fold (a contraction, a window) and the pointwise blocks that follow it, as one tile.

In: a kernel of one reduction block and blocks that read its result at their own element. Out: nests
around a tile of the result: they clear the tile's registers, run the reduction loops around the
whole tile, and hand the tile to the epilogue.

    for m, o: { for k: Y += ...; Z = relu(Y) }   ->   for m0, o0:
                                                          for r, v: Y = 0
                                                          for k: for r, v: Y += ...
                                                          for r, v: Z = relu(Y)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from webmlc.core.expr import as_int
from webmlc.core.simplify import simplify
from webmlc.loops.ir import Block, LoopFunction, blocks, loads, stores
from webmlc.schedule.rules.tiling.axes import axes_of_kind, loops_along, result_axes
from webmlc.schedule.schedule import Schedule

TileKind = Literal["unrolled", "vectorized"]


@dataclass(frozen=True, slots=True)
class TileLoop:
    """A loop inside the tile and how it is run."""

    loop: str
    kind: TileKind


@dataclass(frozen=True, slots=True)
class Threads:
    """The loops over tiles, by rows and columns, and the loops of one tile with the reduction."""

    rows: str | None
    columns: str
    tile: tuple[TileLoop, ...]
    reduced: tuple[str, ...]


def fold_with_followers(function: LoopFunction) -> Block | None:
    """The reduction block of a kernel, if it is the only reduction and starts its results itself.
    Each other block must read its results, or the results of another such block. A block without an
    init updates elements in order, so it is no fold.
    """
    every = list(blocks(function.body))
    folds = [b for b in every if axes_of_kind(b, "reduce")]
    if len(folds) != 1 or every[0] is not folds[0] or folds[0].init is None:
        return None
    results = {s.buffer.name for s in stores(folds[0])}
    for block in every[1:]:
        if not {load.buffer.name for load in loads(block)} & results:
            return None
        results |= {s.buffer.name for s in stores(block)}
    return folds[0]


def attach_epilogue(schedule: Schedule, fold: str) -> tuple[list[str], list[str]]:
    """Put the epilogue under the fold's innermost spatial loop. The results of the fold, and of
    epilogue blocks for each other, are in registers.

    Returns the spatial loops and the reduction loops. Raises `ScheduleError` if the epilogue reads
    another element than the finished element.
    """
    block = schedule.block(fold)
    spatial = loops_along(block, result_axes(block))
    reduced = loops_along(block, axes_of_kind(block, "reduce"))
    # A loop of one iteration, which no axis uses, must not separate the tile from the reduction.
    nest = schedule.loops(fold)
    outermost = min(map(nest.index, (*spatial, *reduced)), default=0)
    idle = [loop for loop in nest[outermost:] if loop not in (*spatial, *reduced)]
    schedule.reorder(*idle, *spatial, *reduced)
    followers = [name for name in schedule.blocks() if name != fold]
    target = next(stores(block)).buffer.name
    outputs = {b.name for b in schedule.function.params}
    if target in outputs:
        followers = [schedule.cache_write(fold, "local"), *followers]
    else:
        schedule.set_scope(fold, "local")
    if spatial:
        for name in followers:
            schedule.reverse_compute_at(name, spatial[-1])
            if next(stores(schedule.block(name))).buffer.name not in outputs:
                schedule.set_scope(name, "local")
    return spatial, reduced


def run_tile(
    schedule: Schedule, fold: str, tile: Sequence[TileLoop], reduced: Sequence[str]
) -> None:
    """Move the reduction loops around the tile: `tile` are the innermost spatial loops, in order,
    over the reduction nest and the epilogue.
    """
    schedule.decompose_reduction(fold, reduced[0])
    for step in reversed(tile):
        schedule.fission(step.loop)
    kinds = {step.loop: step.kind for step in tile}
    base = [step.loop for step in tile]
    for name in blocks_under(schedule, fold, len(tile), len(reduced)):
        loops = schedule.loops(name)
        if name == fold:
            inner = loops[len(loops) - len(tile) - len(reduced) : len(loops) - len(reduced)]
            schedule.reorder(*reduced, *inner)
        else:
            inner = loops[len(loops) - len(tile) :]
        for loop, original in zip(inner, base, strict=True):
            if kinds[original] == "vectorized":
                schedule.vectorize(loop)
            else:
                schedule.unroll(loop)


def unroll_reduction(schedule: Schedule, loops: Sequence[str], steps: int, body: int) -> list[str]:
    """Unroll `steps` steps of the innermost reduction loop, and short loops around it as long as
    the body has at most `body` steps. Returns the reduction loops.
    """
    *outer, last = loops
    extent = schedule.extent(last)
    factor = steps
    if as_int(simplify(extent)) == factor:
        schedule.unroll(last)
        while outer:
            around = as_int(simplify(schedule.extent(outer[-1])))
            if around is None or around * factor > body:
                break
            schedule.unroll(outer[-1])
            factor *= around
            outer.pop()
        return list(loops)
    if factor == 1:
        return list(loops)
    counted, unrolled = schedule.split(last, [None, factor])
    schedule.unroll(unrolled)
    return [*outer, counted, unrolled]


def blocks_under(schedule: Schedule, fold: str, tile: int, reduced: int) -> list[str]:
    """The blocks in the same thread as `fold`, whose nest ends in `tile` and `reduced` loops."""
    loops = schedule.loops(fold)
    outer = loops[: len(loops) - tile - reduced]
    return [n for n in schedule.blocks() if schedule.loops(n)[: len(outer)] == outer]
