"""`reverse_compute_inline`: a pointwise consumer disappears into the block that feeds it.

for i in range(8):                             for i in range(8):
    with T.block("B"): B[i] = A[i] + 1    ->       with T.block("B"): C[i] = (A[i] + 1) * 2
for j in range(8):
    with T.block("C"): C[j] = B[j] * 2
"""

from __future__ import annotations

from dataclasses import replace

from webmlc.core.expr import Var
from webmlc.core.rewrite import rewrite, substitute
from webmlc.core.simplify import prove_equal
from webmlc.loops.ir import Block, Load, LoopFunction, Store, loads, seq
from webmlc.schedule.errors import ScheduleError
from webmlc.schedule.pointwise import (
    blocks_in_order,
    distinct_axes,
    only_store,
    reads,
    writes,
)
from webmlc.schedule.tree import path_to_block, replace_last, symbol_ranges
from webmlc.schedule.update import with_body

_NAME = "reverse_compute_inline"


def reverse_compute_inline(function: LoopFunction, block: str) -> LoopFunction:
    """Let the only producer of the operand of `block` write the block's result instead, and remove
    the block and the buffer between them.

    Raises `ScheduleError` if either block is not a pointwise stage, if `block` does not read every
    element of the buffer exactly once, if other blocks use the buffer, or if a block in between
    shares their buffers.
    """
    path, consumer = path_to_block(function, _NAME, block)
    result = only_store(_NAME, function, consumer)
    load, producer = _source(function, consumer)
    buffer = load.buffer
    produced = only_store(_NAME, function, producer)
    axes = _axes(function, consumer, load)
    _check_between(function, producer, consumer, result)
    indices = dict(zip(axes, produced.indices, strict=True))
    # Every load of `buffer` is at `axes`, and `produced.value` holds none of the consumer's axes.
    value = rewrite(result.value, lambda node: produced.value if node == load else None)
    merged = Store(
        result.buffer,
        tuple(substitute(index, indices) for index in result.indices),
        substitute(value, indices),
        result.stage,
    )
    body = replace_last(path, None)
    removed = with_body(function, body)
    producer_path, _ = path_to_block(removed, _NAME, producer.name)
    body = replace_last(producer_path, replace(producer, body=seq(merged)))
    return with_body(function, body, tuple(b for b in function.allocations if b != buffer))


def _source(function: LoopFunction, consumer: Block) -> tuple[Load, Block]:
    """The load of the only temporary buffer that another pointwise block writes, and the other
    block.
    """
    order = blocks_in_order(function)
    candidates: list[tuple[Load, Block]] = []
    for load in loads(consumer):
        makers = [b for b in order if b is not consumer and writes(b, {load.buffer.name})]
        if load.buffer in function.allocations and len(makers) == 1:
            candidates.append((load, makers[0]))
    buffers = {load.buffer for load, _ in candidates}
    if len(buffers) != 1:
        names = ", ".join(sorted(b.name for b in buffers)) or "none"
        reason = f"block {consumer.name!r} reads {names} of what one other block makes; one fits"
        raise ScheduleError(_NAME, reason, function, consumer.name)
    return candidates[0]


def _axes(function: LoopFunction, consumer: Block, load: Load) -> tuple[Var, ...]:
    """The consumer's axes as they index the buffer; all loads have the same indices."""
    name, buffer = consumer.name, load.buffer
    ranges = symbol_ranges(function)
    axes = distinct_axes(load.indices, consumer)
    extents = {axis.var: axis.extent for axis in consumer.axes}
    whole = axes is not None and all(
        prove_equal(extents[var], size, ranges)
        for var, size in zip(axes, buffer.shape, strict=True)
    )
    same = all(other.indices == load.indices for other in loads(consumer) if other.buffer == buffer)
    if axes is None or not whole or len(axes) != len(consumer.axes) or not same:
        reason = f"block {name!r} does not take every element of {buffer.name!r} exactly once"
        raise ScheduleError(_NAME, reason, function, name)
    if consumer.predicate is not None:
        raise ScheduleError(_NAME, f"block {name!r} has a predicate", function, name)
    for other in blocks_in_order(function):
        if other is not consumer and reads(other, {buffer.name}):
            reason = f"block {other.name!r} reads {buffer.name!r} too"
            raise ScheduleError(_NAME, reason, function, other.name)
    return axes


def _check_between(function: LoopFunction, producer: Block, consumer: Block, result: Store) -> None:
    """Refuse if running the consumer at the producer's place would change values that another block
    reads.
    """
    order = blocks_in_order(function)
    start = next(i for i, other in enumerate(order) if other is producer)
    end = next(i for i, other in enumerate(order) if other is consumer)
    inputs = {load.buffer.name for load in loads(consumer)}
    output = {result.buffer.name}
    for index, other in enumerate(order):
        between = start <= index < end
        shares = reads(other, output) or writes(other, output)
        if other is not producer:
            shares = shares or writes(other, inputs)
        if (between and shares) or end < start:
            reason = f"block {other.name!r} runs in between and shares its buffers"
            raise ScheduleError(_NAME, reason, function, consumer.name, other.name)
