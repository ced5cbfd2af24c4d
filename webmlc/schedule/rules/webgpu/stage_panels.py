"""Stage the right operand of a product in workgroup memory.

Threads whose tiles are below each other read the same columns of the right operand. Here a
workgroup copies the panels of its columns for a few steps of the reduction. Each thread copies some
vectors. Then every thread reads its columns there. The left operand is read from memory: threads
beside each other read the same element.

    for k:                                   for k0:
        b = B[k, tile]                           for t in threads: S[...] = B[16 steps, 64 columns]
        y[8, 8] += A[tile, k] * b     ->         for k in 16 steps (unrolled):
                                                     y[8, 8] += A[tile, k0 + k] * S[k, tile]

The vectors of a tile are apart, so that threads beside each other read vectors beside each other.
Measured on an H200: a product of 4096³ ran at 32 TFLOPS where reads from memory reached 13, and
copies of both operands 30.
"""

from __future__ import annotations

from dataclasses import dataclass

from webmlc.core.expr import as_int
from webmlc.core.simplify import simplify
from webmlc.schedule.rules.tiling.axes import fuse_all
from webmlc.schedule.rules.tiling.fold_tile import TileLoop, run_tile
from webmlc.schedule.rules.tiling.sections import Section
from webmlc.schedule.schedule import Schedule


@dataclass(frozen=True, slots=True)
class Staging:
    """The threads of a workgroup, `down` × `across`, with a tile of `rows` × `columns` elements
    each, and the steps of the reduction between two copies.
    """

    down: int
    across: int
    rows: int
    columns: int
    steps: int


def stage_panels(
    schedule: Schedule, nest: Section, operand: str, staging: Staging, lanes: int
) -> None:
    """Schedule a fold with its epilogue. Whole workgroups cover its rows and columns, and `steps`
    divides its innermost reduction loop. `operand` is the right operand.
    """
    assert nest.rows is not None
    row_groups, down, row = schedule.split(nest.rows, [None, staging.down, staging.rows])
    widths = [None, staging.columns // lanes, staging.across, lanes]
    column_groups, vector, across, lane = schedule.split(nest.columns, widths)
    outer = [*nest.batch, row_groups, column_groups]
    schedule.reorder(*outer, down, across, row, vector, lane)
    *around, last = nest.reduced
    stage, step = schedule.split(last, [None, staging.steps])
    schedule.unroll(step)
    group = fuse_all(schedule, outer)
    assert group is not None
    schedule.bind(group, "blockIdx.x")
    schedule.bind(down, "threadIdx.y")
    schedule.bind(across, "threadIdx.x")
    tile = [TileLoop(row, "unrolled"), TileLoop(vector, "unrolled"), TileLoop(lane, "vectorized")]
    run_tile(schedule, nest.fold, tile, [*around, stage, step])
    copy = schedule.cache_read(nest.fold, operand, "shared")
    schedule.compute_at(copy, stage)
    _share_copy(schedule, copy, stage, staging, lanes)


def _share_copy(schedule: Schedule, copy: str, stage: str, staging: Staging, lanes: int) -> None:
    """Let each thread of the workgroup copy some vectors."""
    loops = schedule.loops(copy)
    elements = fuse_all(schedule, loops[loops.index(stage) + 1 :])
    assert elements is not None
    widths = [None, staging.down, staging.across, lanes]
    turn, down, across, lane = schedule.split(elements, widths)
    schedule.reorder(down, across, turn, lane)
    schedule.bind(down, "threadIdx.y")
    schedule.bind(across, "threadIdx.x")
    schedule.unroll(turn)
    schedule.vectorize(lane)


def stage_bytes(staging: Staging, element_bytes: int) -> int:
    """The bytes of workgroup memory of a stage, with one more step for each panel, which separates
    its banks (`target.compact_buffers`).
    """
    return (staging.steps + 1) * staging.across * staging.columns * element_bytes


def is_even(schedule: Schedule, nest: Section, staging: Staging, lanes: int) -> bool:
    """True if whole workgroups cover the rows and columns, and all threads copy equally many
    vectors.
    """
    if nest.rows is None:
        return False
    rows, columns = (simplify(schedule.extent(loop)) for loop in (nest.rows, nest.columns))
    height, width = staging.down * staging.rows, staging.across * staging.columns
    copied = staging.steps * width // lanes
    return (
        as_int(simplify(rows % height)) == 0
        and as_int(simplify(columns % width)) == 0
        and copied % (staging.down * staging.across) == 0
    )
