"""Pointwise blocks: one store, no reduction. The facts of these blocks that inlining needs.

with T.block("B"):                            Store(B, (vi,), A[vi] + A[vi] * 2)
    vi = T.axis.spatial(8, i)          ->
    x = A[vi]
    B[vi] = x + x * 2
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from webmlc.core.expr import Expr, Var
from webmlc.core.rewrite import rewrite, substitute
from webmlc.loops.ir import Block, Buffer, Let, Load, LoopFunction, Stmt, Store, loads, stores
from webmlc.schedule.errors import ScheduleError
from webmlc.schedule.tree import outer_blocks


def only_store(primitive: str, function: LoopFunction, block: Block) -> Store:
    """The store of a pointwise block, its lets substituted.

    Raises `ScheduleError` if the block reduces, or has more than one store.
    """
    if block.init is not None or any(axis.kind == "reduce" for axis in block.axes):
        reason = f"block {block.name!r} is a reduction"
        raise ScheduleError(primitive, reason, function, block.name)
    values: dict[Var, Expr] = {}
    body = block.body
    while isinstance(body, Let):
        values[body.var] = substitute(body.value, values)
        body = body.body
    if not isinstance(body, Store):
        reason = f"block {block.name!r} is more than one store"
        raise ScheduleError(primitive, reason, function, block.name)
    indices = tuple(substitute(index, values) for index in body.indices)
    return Store(body.buffer, indices, substitute(body.value, values), body.stage)


def distinct_axes(indices: Sequence[Expr], block: Block) -> tuple[Var, ...] | None:
    """`indices` if each index is a different axis of `block`; else `None`."""
    axes = {axis.var for axis in block.axes}
    variables = tuple(index for index in indices if isinstance(index, Var) and index in axes)
    return variables if len(variables) == len(indices) == len(set(variables)) else None


def inline_loads(root: Expr, buffer: Buffer, axes: Sequence[Var], value: Expr) -> Expr:
    """`root` with every load of `buffer` replaced by `value`, its `axes` the load's indices."""

    def rule(node: Expr) -> Expr | None:
        match node:
            case Load(buffer=loaded, indices=indices) if loaded == buffer:
                return substitute(value, dict(zip(axes, indices, strict=True)))
        return None

    return rewrite(root, rule)


def blocks_in_order(function: LoopFunction) -> list[Block]:
    """The outermost blocks, in program order."""
    return list(outer_blocks(function.body))


def reads(block: Stmt, buffers: Iterable[str]) -> bool:
    """True if `block` loads from one of the buffers."""
    names = set(buffers)
    return any(load.buffer.name in names for load in loads(block))


def writes(block: Stmt, buffers: Iterable[str]) -> bool:
    """True if `block` stores to one of the buffers."""
    names = set(buffers)
    return any(store.buffer.name in names for store in stores(block))
