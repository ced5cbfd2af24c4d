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
from dataclasses import dataclass, replace

from webmlc.core.expr import Expr, as_int
from webmlc.core.simplify import simplify
from webmlc.loops.ir import Block, LoopFunction, blocks, loads, stores
from webmlc.schedule.rules.tiling.nests import axes_of_kind, extent_of, loops_along, result_axes
from webmlc.schedule.schedule import Schedule


@dataclass(frozen=True, slots=True)
class Threads:
    """The loops over tiles, by rows and columns, and the loops within a tile: the unrolled loops,
    then the vectorized loops, then the loops of the reduction inside them.
    """

    rows: str | None
    columns: str
    unrolled: Sequence[str]
    vectors: Sequence[str]
    reduced: Sequence[str]


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
    schedule: Schedule,
    fold: str,
    unrolled: Sequence[str],
    vectors: Sequence[str],
    reduced: Sequence[str],
) -> None:
    """Move the reduction loops around the loops of a tile, which are innermost, in order."""
    schedule.decompose_reduction(fold, reduced[0])
    tile = [*unrolled, *vectors]
    for loop in reversed(tile):
        schedule.fission(loop)
    for name in blocks_under(schedule, fold, len(tile), len(reduced)):
        loops = schedule.loops(name)
        if name == fold:
            loops = loops[: len(loops) - len(reduced)]
        inner = loops[len(loops) - len(tile) :]
        if name == fold:
            schedule.reorder(*reduced, *inner)
        for loop in inner[: len(unrolled)]:
            schedule.unroll(loop)
        for loop in inner[len(unrolled) :]:
            schedule.vectorize(loop)


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
            around = extent_of(schedule, outer[-1])
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


@dataclass(frozen=True, slots=True)
class Section:
    """The loops of one section: shared outer loops, rows, columns, reductions."""

    fold: str
    batch: tuple[str, ...]
    rows: str | None
    columns: str
    reduced: tuple[str, ...]


def is_zero(expr: Expr) -> bool:
    return as_int(simplify(expr)) == 0


def split_columns(schedule: Schedule, section: Section, width: int) -> list[Section]:
    """Whole panels of columns, then the remaining columns."""
    return _split_section(schedule, section, section.columns, width)


def split_rows(schedule: Schedule, section: Section, height: int) -> list[Section]:
    """Whole tiles of rows, then the remaining rows."""
    if section.rows is None:
        return [section]
    schedule.reorder(section.rows, *section.batch, section.columns)
    return _split_section(schedule, section, section.rows, height)


def _split_section(schedule: Schedule, section: Section, loop: str, size: int) -> list[Section]:
    """The section of whole tiles along `loop`, then the section of the remainder, if any."""
    extent = simplify(schedule.extent(loop))
    whole = simplify(extent // size * size)
    if as_int(whole) == 0 or is_zero(extent - whole):
        return [section]
    _, last = schedule.partition(loop, whole)
    return [section, replace(last.with_loops(section), fold=last.blocks[section.fold])]
