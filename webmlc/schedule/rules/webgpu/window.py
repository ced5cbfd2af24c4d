"""One fold that is no matrix product: pooling, depthwise convolution, sums along any axes.

A thread makes 4 adjacent elements of the result (channels), and a few neighbours along the axis
before, which share what they read; short windows are written out.

    Y[n, y, x, c] = max(Y, X[n, y * 2 + ky, x * 2 + kx, c])   ->   for each y, x / 4, c / 4: 3 · 3 ·
    4 loads of a vec4
"""

from __future__ import annotations

from webmlc.core.expr import as_int
from webmlc.core.machine import Machine
from webmlc.core.simplify import simplify
from webmlc.loops.ir import LoopFunction, Store
from webmlc.schedule.analysis import has_vector_types
from webmlc.schedule.rules.webgpu.folds import TileLoop, attach_epilogue, only_fold, run_tile
from webmlc.schedule.rules.webgpu.nests import (
    axes_of_kind,
    bind_threads,
    extent_of,
    result_axes,
    unroll_factor,
)
from webmlc.schedule.rules.webgpu.pointwise import lane_steps
from webmlc.schedule.schedule import Schedule

_LARGEST_WINDOW = 12  # elements of a window that is written out
_NEIGHBOURS = 4


def window(function: LoopFunction, machine: Machine) -> Schedule | None:
    """Answers for one reduction with a pointwise epilogue."""
    fold = only_fold(function)
    if fold is None or not axes_of_kind(fold, "spatial"):
        return None
    axes = result_axes(fold)
    is_vector = isinstance(fold.body, Store) and has_vector_types(fold)
    steps = lane_steps(fold, axes[-1].var, machine.lanes) if is_vector else None
    schedule = Schedule(function)
    spatial, reduced = attach_epilogue(schedule, fold.name)
    if not spatial or not reduced:
        return None
    count = extent_of([schedule.extent(loop) for loop in reduced])
    is_short = count is not None and count <= _LARGEST_WINDOW
    tile: list[TileLoop] = []
    outer = list(spatial)
    lanes: str | None = None
    last = as_int(simplify(schedule.extent(spatial[-1])))
    if steps is not None and last is not None and last % machine.lanes == 0:
        outer[-1], lanes = schedule.split(spatial[-1], [None, machine.lanes])
        if is_short and len(spatial) > 2:
            neighbours = unroll_factor(schedule.extent(outer[-2]), _NEIGHBOURS)
            if neighbours > 1:
                outer[-2], inner = schedule.split(outer[-2], [None, neighbours])
                tile.append(TileLoop(inner, "unrolled"))
        tile.append(TileLoop(lanes, "vectorized"))
    schedule.reorder(*outer, *(step.loop for step in tile))
    thread = bind_threads(schedule, outer, machine.workgroup_size)
    assert thread is not None
    if is_short:
        for loop in reduced:
            schedule.unroll(loop)
    run_tile(schedule, fold.name, tile, reduced)
    return schedule
