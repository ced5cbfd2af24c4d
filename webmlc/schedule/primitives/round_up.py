"""`round_up`: a loop goes on past the end of its axis, to a multiple; no block reads the added
elements.

for j in T.serial(2):                          for j in T.serial(4):
    with T.block("Y"):                             with T.block("Y"):
        vj = T.axis.spatial(10, j + 8)    ->           vj = T.axis.spatial(12, j + 8)
        Y[vj] = B[vj // 8, vj % 8] * 2                 Y[vj] = B[vj // 8, vj % 8] * 2

The temporary grows. So a remainder is computed in whole vectors where the operands are padded.
"""

from __future__ import annotations

from dataclasses import replace

from webmlc.core.bounds import bounds
from webmlc.core.expr import Const, as_int
from webmlc.core.rewrite import variables
from webmlc.core.simplify import simplify
from webmlc.loops.ir import (
    Axis,
    Block,
    Buffer,
    For,
    LoopFunction,
    blocks,
    loads,
    map_statements,
    replace_buffers,
    stores,
)
from webmlc.schedule.analysis import axis_ranges
from webmlc.schedule.errors import ScheduleError
from webmlc.schedule.legality import only_output, require_serial
from webmlc.schedule.tree import path_to_loop, replace_last
from webmlc.schedule.update import with_body

_NAME = "round_up"


def round_up(function: LoopFunction, loop: str, size: int) -> LoopFunction:
    """Let `loop` run to a multiple of `size`.

    Raises `ScheduleError` if the loop holds more than one block, or would read past the end of
    another buffer. The loop must end with a spatial axis that is a dimension of a temporary.
    """
    path, old = path_to_loop(function, _NAME, loop)
    require_serial(_NAME, function, old)
    inside, extent = list(blocks(old.body)), as_int(old.extent)
    if extent is None or len(inside) != 1:
        reason = f"loop {loop!r} must have a constant extent and one block"
        raise ScheduleError(_NAME, reason, function, loop)
    (block,) = inside
    buffer = only_output(_NAME, function, block)
    axis, dimension = _ending_axis(function, old, block, buffer)
    more = -extent % size
    longer = Axis(axis.var, simplify(axis.extent + more), axis.kind)
    grown = replace(block, axes=tuple(longer if a == axis else a for a in block.axes))
    ranges = axis_ranges(grown)
    for load in loads(block):
        for index, length in zip(load.indices, load.buffer.shape, strict=True):
            past = bounds(simplify(index - length, ranges), ranges)
            if load.buffer != buffer and axis.var in variables(index) and past.high >= 0:
                reason = f"past its end, loop {loop!r} may read past that of {load.buffer.name!r}"
                raise ScheduleError(_NAME, reason, function, loop, block.name)
    shape = (*buffer.shape[:dimension], longer.extent, *buffer.shape[dimension + 1 :])
    larger = replace(buffer, shape=shape)
    inner = map_statements(old.body, lambda s: grown if isinstance(s, Block) else None)
    body = replace_last(path, For(old.var, Const(extent + more), inner))
    new_allocations = tuple(larger if b == buffer else b for b in function.allocations)
    return with_body(function, replace_buffers(body, {buffer: larger}), new_allocations)


def _ending_axis(
    function: LoopFunction, loop: For, block: Block, buffer: Buffer
) -> tuple[Axis, int]:
    """The axis that ends with the loop, and its dimension of the temporary."""
    places = {store.indices for store in stores(block)}
    along = [
        (axis, binding) for axis, binding in block.bound_axes() if loop.var in variables(binding)
    ]
    if len(places) == 1 and len(along) == 1 and block.predicate is None:
        ((axis, binding),), (indices,) = along, places
        ends = axis.kind == "spatial" and simplify(binding - loop.var) == simplify(
            axis.extent - loop.extent
        )
        used = [d for d, index in enumerate(indices) if axis.var in variables(index)]
        if ends and buffer in function.allocations and [indices[d] for d in used] == [axis.var]:
            return axis, used[0]
    reason = f"loop {loop.var.name!r} does not end with a dimension of a temporary of its block"
    raise ScheduleError(_NAME, reason, function, loop.var.name, block.name)
