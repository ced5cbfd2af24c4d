"""Primitives that compute a pointwise stage inside the stage before or after it. A pointwise block
has one store and no reduction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from webmlc.core.expr import Expr, Var
from webmlc.core.rewrite import rewrite, substitute
from webmlc.core.simplify import prove_equal
from webmlc.loops.ir import Block, Let, Load, Store, loads, map_expressions
from webmlc.schedule.edit import Edit
from webmlc.schedule.tree import reads, replace_last, with_body, writes


def compute_inline(edit: Edit, block: str) -> None:
    """Replace every load of the buffer of `block` by the value that the block stores, and remove
    the block and its buffer.

    for i in range(8):                             for j in range(8):
        with T.block("B"): B[i] = A[i] + 1    ->       with T.block("C"): C[j] = (A[j] + 1) * 2
    for j in range(8):
        with T.block("C"): C[j] = B[j] * 2

    Raises `ScheduleError` if the block is not a pointwise stage of a temporary buffer, or if its
    operands are overwritten before its last reader.
    """
    path, producer = edit.block(block)
    store = _only_store(edit, producer)
    buffer = store.buffer
    axes = _distinct_axes(store.indices, producer)
    if axes is None or len(axes) != len(producer.axes):
        edit.refuse(f"block {block!r} does not write one element for each of its axes", block)
    if buffer not in edit.function.allocations:
        edit.refuse(f"block {block!r} writes {buffer.name!r}, which is an output", block)
    inputs = reads(producer)
    if buffer.name in inputs:
        edit.refuse(f"block {block!r} reads {buffer.name!r}, which it writes", block)
    order = edit.blocks()
    if not any(other is producer for other in order):
        edit.refuse(f"block {block!r} is inside another block", block)
    position = edit.position(producer)
    readers = [i for i, other in enumerate(order) if buffer.name in reads(other)]
    for index, other in enumerate(order):
        if other is not producer and buffer.name in writes(other):
            edit.refuse(f"block {other.name!r} writes {buffer.name!r} too", block, other.name)
        if index in readers and index < position:
            edit.refuse(f"block {other.name!r} reads it before", block, other.name)
        if readers and position < index <= readers[-1] and writes(other) & inputs:
            reason = f"block {other.name!r} overwrites what block {block!r} reads"
            edit.refuse(reason, block, other.name)

    def inlined(node: Expr) -> Expr | None:
        match node:
            case Load(buffer=loaded, indices=indices) if loaded == buffer:
                return substitute(store.value, dict(zip(axes, indices, strict=True)))
        return None

    body = map_expressions(replace_last(path, None), lambda root: rewrite(root, inlined))
    allocations = tuple(other for other in edit.function.allocations if other != buffer)
    edit.change(with_body(edit.function, body, allocations))


def reverse_compute_inline(edit: Edit, block: str) -> None:
    """Let the only producer of the operand of `block` write the block's result instead, and remove
    the block and the buffer between them.

    for i in range(8):                             for i in range(8):
        with T.block("B"): B[i] = A[i] + 1    ->       with T.block("B"): C[i] = (A[i] + 1) * 2
    for j in range(8):
        with T.block("C"): C[j] = B[j] * 2

    Raises `ScheduleError` if either block is not a pointwise stage, if `block` does not read every
    element of the buffer exactly once, if other blocks use the buffer, or if a block in between
    shares their buffers.
    """
    path, consumer = edit.block(block)
    result = _only_store(edit, consumer)
    load, producer = _source(edit, consumer)
    produced = _only_store(edit, producer)
    axes = _consumed_axes(edit, consumer, load)
    _check_between(edit, producer, consumer)
    indices = dict(zip(axes, produced.indices, strict=True))
    # Every load is at `axes`, and `produced.value` holds none of the consumer's axes.
    value = rewrite(result.value, lambda node: produced.value if node == load else None)
    merged = Store(
        result.buffer,
        tuple(substitute(index, indices) for index in result.indices),
        substitute(value, indices),
        result.stage,
    )
    edit.put(path, None)
    edit.put(edit.block(producer.name)[0], replace(producer, body=merged))
    allocations = tuple(b for b in edit.function.allocations if b != load.buffer)
    edit.change(with_body(edit.function, edit.function.body, allocations))


def _source(edit: Edit, consumer: Block) -> tuple[Load, Block]:
    """The load of the only temporary buffer that another block writes, and the other block."""
    order = edit.blocks()
    candidates: list[tuple[Load, Block]] = []
    for load in loads(consumer):
        makers = [b for b in order if b is not consumer and load.buffer.name in writes(b)]
        if load.buffer in edit.function.allocations and len(makers) == 1:
            candidates.append((load, makers[0]))
    buffers = {load.buffer for load, _ in candidates}
    if len(buffers) != 1:
        names = ", ".join(sorted(b.name for b in buffers)) or "none"
        reason = f"block {consumer.name!r} reads {names} of what one other block makes; one fits"
        edit.refuse(reason, consumer.name)
    return candidates[0]


def _consumed_axes(edit: Edit, consumer: Block, load: Load) -> tuple[Var, ...]:
    """The consumer's axes as they index the buffer; all loads have the same indices."""
    name, buffer = consumer.name, load.buffer
    ranges = edit.ranges()
    axes = _distinct_axes(load.indices, consumer)
    extents = {axis.var: axis.extent for axis in consumer.axes}
    is_whole = axes is not None and all(
        prove_equal(extents[var], size, ranges)
        for var, size in zip(axes, buffer.shape, strict=True)
    )
    is_same = all(o.indices == load.indices for o in loads(consumer) if o.buffer == buffer)
    if axes is None or not is_whole or len(axes) != len(consumer.axes) or not is_same:
        reason = f"block {name!r} does not take every element of {buffer.name!r} exactly once"
        edit.refuse(reason, name)
    if consumer.predicate is not None:
        edit.refuse(f"block {name!r} has a predicate", name)
    for other in edit.blocks():
        if other is not consumer and buffer.name in reads(other):
            edit.refuse(f"block {other.name!r} reads {buffer.name!r} too", other.name)
    return axes


def _check_between(edit: Edit, producer: Block, consumer: Block) -> None:
    """Refuse if running the consumer at the producer's place would change values that another block
    reads.
    """
    order = edit.blocks()
    start, end = edit.position(producer), edit.position(consumer)
    inputs, output = reads(consumer), writes(consumer)
    for index, other in enumerate(order):
        shares = bool(output & (reads(other) | writes(other)))
        if other is not producer:
            shares = shares or bool(writes(other) & inputs)
        if (start <= index < end and shares) or end < start:
            reason = f"block {other.name!r} runs in between and shares its buffers"
            edit.refuse(reason, consumer.name, other.name)


def _only_store(edit: Edit, block: Block) -> Store:
    """The store of a pointwise block, its lets substituted.

    x = A[vi]                 ->    B[vi] = A[vi] + A[vi] * 2
    B[vi] = x + x * 2
    """
    if block.init is not None or any(axis.kind == "reduce" for axis in block.axes):
        edit.refuse(f"block {block.name!r} is a reduction", block.name)
    values: dict[Var, Expr] = {}
    body = block.body
    while isinstance(body, Let):
        values[body.var] = substitute(body.value, values)
        body = body.body
    if not isinstance(body, Store):
        edit.refuse(f"block {block.name!r} is more than one store", block.name)
    indices = tuple(substitute(index, values) for index in body.indices)
    return Store(body.buffer, indices, substitute(body.value, values), body.stage)


def _distinct_axes(indices: Sequence[Expr], block: Block) -> tuple[Var, ...] | None:
    """`indices` if each index is a different axis of `block`; else `None`."""
    axes = {axis.var for axis in block.axes}
    used = tuple(index for index in indices if isinstance(index, Var) and index in axes)
    return used if len(used) == len(indices) == len(set(used)) else None
