"""`compute_inline`: a pointwise producer disappears into the blocks that read it.

for i in range(8):                             for j in range(8):
    with T.block("B"): B[i] = A[i] + 1    ->       with T.block("C"): C[j] = (A[j] + 1) * 2
for j in range(8):
    with T.block("C"): C[j] = B[j] * 2
"""

from __future__ import annotations

from webmlc.loops.ir import LoopFunction, loads, map_expressions
from webmlc.schedule.errors import ScheduleError
from webmlc.schedule.pointwise import (
    blocks_in_order,
    distinct_axes,
    inline_loads,
    only_store,
    reads,
    writes,
)
from webmlc.schedule.tree import path_to_block, replace_last
from webmlc.schedule.update import with_body

_NAME = "compute_inline"


def compute_inline(function: LoopFunction, block: str) -> LoopFunction:
    """Replace every load of the buffer of `block` by the value that the block stores, and remove
    the block and its buffer.

    Raises `ScheduleError` if the block is not a pointwise stage of a temporary buffer, or if its
    operands are overwritten before its last reader.
    """
    path, producer = path_to_block(function, _NAME, block)
    store = only_store(_NAME, function, producer)
    buffer = store.buffer

    def refuse(reason: str, *culprits: str) -> ScheduleError:
        return ScheduleError(_NAME, reason, function, *culprits)

    axes = distinct_axes(store.indices, producer)
    if axes is None or len(axes) != len(producer.axes):
        raise refuse(f"block {block!r} does not write one element for each of its axes", block)
    if buffer not in function.allocations:
        raise refuse(f"block {block!r} writes {buffer.name!r}, which is an output", block)
    if reads(producer, {buffer.name}):
        raise refuse(f"block {block!r} reads {buffer.name!r}, which it writes", block)
    order = blocks_in_order(function)
    if not any(other is producer for other in order):
        raise refuse(f"block {block!r} is inside another block", block)
    position = next(i for i, other in enumerate(order) if other is producer)
    inputs = {load.buffer.name for load in loads(producer)}
    readers = [i for i, other in enumerate(order) if reads(other, {buffer.name})]
    for index, other in enumerate(order):
        if other is not producer and writes(other, {buffer.name}):
            raise refuse(f"block {other.name!r} writes {buffer.name!r} too", block, other.name)
        if index in readers and index < position:
            raise refuse(f"block {other.name!r} reads it before", block, other.name)
        if readers and position < index <= readers[-1] and writes(other, inputs):
            reason = f"block {other.name!r} overwrites what block {block!r} reads"
            raise refuse(reason, block, other.name)
    removed = replace_last(path, None)
    body = map_expressions(removed, lambda e: inline_loads(e, buffer, axes, store.value))
    new_allocations = tuple(other for other in function.allocations if other != buffer)
    return with_body(function, body, new_allocations)
