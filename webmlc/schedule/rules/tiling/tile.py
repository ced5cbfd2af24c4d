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

from collections.abc import Sequence
from dataclasses import dataclass, replace

from webmlc.schedule.analysis import is_vectorizable
from webmlc.schedule.rules.tiling.axes import write_out
from webmlc.schedule.rules.tiling.nests import Nest, extent_of
from webmlc.schedule.rules.tiling.strips import split_strips
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
        _unroll_steps(schedule, nest.update, steps)
    for loop in (columns, rows):
        if loop is not None:
            schedule.fission(loop)
    if is_ragged and columns is not None and nest.copy is not None:
        _round_up(schedule, (columns, schedule.loops(nest.copy)[-1]), lanes)
    tile = [loop for loop in (rows, columns) if loop is not None]
    sums = [nest.update] if partial is None else [partial, nest.update]
    starts = [_put_inside(schedule, s, len(tile)) for s in sums if schedule.reduce_loops(s)]
    for block in dict.fromkeys((*starts, *sums, *nest.unrolled)):
        loops = schedule.loops(block)[-len(tile) :] if tile else []
        if columns is not None:
            vectorize_columns(schedule, block, loops[-1], lanes)
        if rows is not None:
            schedule.unroll(loops[0])
    if nest.copy is not None and columns is not None:
        loop = schedule.loops(nest.result)[-1]
        vectorize_columns(schedule, nest.result, loop, lanes, unroll=rows is not None)


def _is_ragged(schedule: Schedule, nest: Nest, columns: str | None, lanes: int) -> bool:
    """True for columns that would fill vectors if there were more of them."""
    if columns is None or (extent_of(schedule, columns) or 0) % lanes == 0:
        return False
    return is_vectorizable(schedule.function, nest.update, columns, lanes)


def _round_up(schedule: Schedule, loops: Sequence[str], lanes: int) -> None:
    """Compute whole vectors of columns, if the right operand is padded to whole vectors."""
    for loop in loops:
        if not schedule.allows("round_up", loop, lanes):
            return
        schedule.round_up(loop, lanes)


def _split_phases(schedule: Schedule, update: str, phases: int) -> str:
    """Give `phases` neighbouring steps of a reduction an accumulator each; returns the block that
    fills the accumulators.
    """
    _, phase = schedule.split(schedule.reduce_loops(update)[-1], [None, phases])
    partial = schedule.rfactor(phase, 0)
    schedule.set_scope(partial, "local")
    schedule.unroll(phase)
    schedule.unroll(schedule.reduce_loops(update)[-1])
    return partial


def _unroll_steps(schedule: Schedule, update: str, steps: int) -> None:
    """Let an iteration of the innermost loop of a reduction take several steps, if they divide its
    steps.
    """
    loops = [n for n in schedule.reduce_loops(update) if schedule.loop(n).kind == "serial"]
    if loops:
        write_out(schedule, loops[-1], steps)


def _put_inside(schedule: Schedule, update: str, depth: int) -> str:
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
