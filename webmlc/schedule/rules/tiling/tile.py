"""Register tiles: the micro-kernel, made by primitives.

In: a reduction and its result block under common loops, `columns` (the lane axis) innermost but for
the reduction, `rows` somewhere around it. Out: the same nests tiled so that a tile of the result
stays in registers while the reduction runs:

    for ..., ro, ri(6), c(8):                    for ..., ro:
        for k: Y[r, c] += A[r, k] * B[k, c]          Y[0:6, 0:8] = 0
        C[r, c] = max(Y[r, c], 0)            ->      for k: Y[0:6, 0:8] += A[0:6, k] * B[k, 0:8]
                                                     C[0:6, 0:8] = max(Y[0:6, 0:8], 0)

with the tile's loops unrolled and vectorized: `target` turns the tile of `Y` into registers.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from webmlc.schedule.analysis import is_vectorizable
from webmlc.schedule.rules.tiling.cover import write_out
from webmlc.schedule.rules.tiling.nests import Nest, extent_of
from webmlc.schedule.schedule import Schedule


@dataclass(frozen=True, slots=True)
class Reduction:
    """How the reduction of a tile runs.

    `phases`: each of `phases` neighbouring steps of the innermost reduction loop has a separate
    tile, and the tiles are added at the end. `strips`: the most strips of the reduction, which are
    read side by side. `steps`: the most steps that an iteration of the innermost reduction loop
    takes, unless there are phases.
    """

    phases: int = 1
    strips: int = 1
    steps: int = 1


IN_ORDER = Reduction()
"""The reduction takes one step after the other."""


def make_tile(
    schedule: Schedule,
    nest: Nest,
    rows: str | None,
    columns: str | None,
    lanes: int,
    reduction: Reduction = IN_ORDER,
) -> None:
    """Turn the two innermost common loops, `rows` around `columns`, into one register tile."""
    phases, strips, steps = reduction.phases, reduction.strips, reduction.steps
    is_ragged = rows is not None and _is_ragged(schedule, nest, columns, lanes)
    if is_ragged and nest.copy is None:
        nest = replace(nest, copy=schedule.cache_write(nest.update, "local"))
    partial = _split_phases(schedule, nest.update, phases) if phases > 1 else None
    if strips > 1:
        split_strips(schedule, partial or nest.update, strips)
    if steps > 1 and partial is None:
        reduced = schedule.reduce_loops(nest.update)
        for name in [name for name in reduced if schedule.loop(name).kind == "serial"][-1:]:
            write_out(schedule, name, steps)
    for loop in (columns, rows):
        if loop is not None:
            schedule.fission(loop)
    if is_ragged and columns is not None and nest.copy is not None:
        for name in (columns, schedule.loops(nest.copy)[-1]):
            if not schedule.allows("round_up", name, lanes):
                break  # the right operand is not padded to whole vectors
            schedule.round_up(name, lanes)
    tile = [loop for loop in (rows, columns) if loop is not None]
    sums = [nest.update] if partial is None else [partial, nest.update]
    starts = [put_inside(schedule, s, len(tile)) for s in sums if schedule.reduce_loops(s)]
    write_out_tile(schedule, (*starts, *sums, *nest.unrolled), rows, columns, lanes)
    if nest.copy is not None and columns is not None:
        loop = schedule.loops(nest.result)[-1]
        vectorize_columns(schedule, nest.result, loop, lanes, unroll=rows is not None)


def write_out_tile(
    schedule: Schedule, blocks: Iterable[str], rows: str | None, columns: str | None, lanes: int
) -> None:
    """Make vectors of the columns of a tile, and unroll its rows, in the nest of each block."""
    tile = [loop for loop in (rows, columns) if loop is not None]
    for block in dict.fromkeys(blocks):
        loops = schedule.loops(block)[-len(tile) :] if tile else []
        if columns is not None:
            vectorize_columns(schedule, block, loops[-1], lanes)
        if rows is not None:
            schedule.unroll(loops[0])


def _is_ragged(schedule: Schedule, nest: Nest, columns: str | None, lanes: int) -> bool:
    """True for columns that would fill vectors if there were more of them."""
    if columns is None or (extent_of(schedule, columns) or 0) % lanes == 0:
        return False
    return is_vectorizable(schedule.function, nest.update, columns, lanes)


def _split_phases(schedule: Schedule, update: str, phases: int) -> str:
    """Give `phases` neighbouring steps an accumulator each; returns the block that fills them."""
    _, phase = schedule.split(schedule.reduce_loops(update)[-1], [None, phases])
    partial = schedule.rfactor(phase, 0)
    schedule.set_scope(partial, "local")
    schedule.unroll(phase)
    schedule.unroll(schedule.reduce_loops(update)[-1])
    return partial


def put_inside(schedule: Schedule, update: str, depth: int) -> str:
    """Put the `depth` loops of a tile inside the loops of a reduction, and the block that
    initialises the tile before them; returns this block.
    """
    loops, reduced = schedule.loops(update), schedule.reduce_loops(update)
    start = loops.index(reduced[0])
    tile = loops[start - depth : start]
    if tile:
        schedule.reorder(*loops[start:], *tile)
    return schedule.decompose_reduction(update, reduced[0])


def vectorize_columns(
    schedule: Schedule,
    block: str,
    loop: str,
    lanes: int,
    unroll: bool = True,
    gathers: bool = False,
) -> None:
    """Make vectors of a tile's columns if they fill whole vectors, else scalars; and unroll them.

    `gathers`: vectors may be made of elements that are not adjacent.
    """
    size = extent_of(schedule, loop)
    is_whole = size is not None and size % lanes == 0
    if is_whole and is_vectorizable(
        schedule.function, block, loop, lanes, "loads" if gathers else None
    ):
        if size == lanes:
            schedule.vectorize(loop)
            return
        loop, lane = schedule.split(loop, [None, lanes])
        schedule.vectorize(lane)
    if unroll:
        schedule.unroll(loop)


def strip_counts(schedule: Schedule, update: str, strips: int) -> list[int]:
    """The strips of each outermost loop of a reduction, at most `strips` together. An inner loop
    has strips only if each iteration of the loops around it is a strip.
    """
    counts: list[int] = []
    for loop in schedule.reduce_loops(update):
        steps = extent_of(schedule, loop) or 1
        counts.append(max((n for n in range(1, strips + 1) if steps % n == 0), default=1))
        strips //= counts[-1]
        if counts[-1] != steps:
            break
    return counts


def split_strips(schedule: Schedule, update: str, strips: int) -> None:
    """Let the reduction `update` take a step of each strip in turn, if there are several."""
    counts = strip_counts(schedule, update, strips)
    loops = schedule.reduce_loops(update)
    across: list[str] = []
    along: list[str] = []
    for loop, count in zip(loops, counts, strict=False):
        if count == 1:
            along.append(loop)
        elif count == extent_of(schedule, loop):
            across.append(loop)
        else:
            strip, step = schedule.split(loop, [count, None])
            across.append(strip)
            along.append(step)
    if across:
        schedule.reorder(*along, *loops[len(counts) :], *across)
    for strip in across:
        schedule.unroll(strip)
