"""`split_dimension`: a dimension of a temporary becomes two, and so do the block axes along it.

for o in T.serial(12):                         for o in T.serial(12):
    with T.block("Y"):                             with T.block("Y"):
        vo = T.axis.spatial(12, o)        ->           vo_0 = T.axis.spatial(3, o // 4)
        Y[vo] = A[vo // 4]                             vo_1 = T.axis.spatial(4, o % 4)
                                                       Y[vo_0, vo_1] = A[vo_0]

The loops stay as they are: `split` by the same size makes their bindings plain again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from webmlc.core.bounds import Interval
from webmlc.core.expr import Const, Expr, Var, as_int
from webmlc.core.rewrite import rewriter, substitute
from webmlc.core.simplify import simplify
from webmlc.loops.ir import (
    Axis,
    Block,
    Buffer,
    Load,
    LoopFunction,
    Stmt,
    Store,
    loads,
    map_expressions,
    map_statements,
    stores,
)
from webmlc.schedule.errors import ScheduleError
from webmlc.schedule.legality import only_output
from webmlc.schedule.tree import fresh, interval_of, path_to_block, symbol_ranges, used_names
from webmlc.schedule.update import with_body

_NAME = "split_dimension"


def split_dimension(function: LoopFunction, block: str, dimension: int, size: int) -> LoopFunction:
    """Split `dimension` of the temporary that `block` writes into parts of `size` elements.

    Raises `ScheduleError` if the buffer belongs to the caller, or if `size` does not divide the
    dimension.
    """
    _, writer = path_to_block(function, _NAME, block)
    old = only_output(_NAME, function, writer)
    if old not in function.allocations:
        reason = f"block {block!r} writes {old.name!r}, which is the caller's; cache_write it first"
        raise ScheduleError(_NAME, reason, function, block)
    extent = as_int(old.shape[dimension]) if dimension < len(old.shape) else None
    if extent is None or size < 1 or extent % size:
        reason = f"{size} does not divide dimension {dimension} of {old.name!r}"
        raise ScheduleError(_NAME, reason, function, block)
    parts = (Const(extent // size), Const(size))
    shape = (*old.shape[:dimension], *parts, *old.shape[dimension + 1 :])
    split = _Split(old, replace(old, shape=shape), dimension, size, used_names(function))
    ranges = symbol_ranges(function)

    def rule(stmt: Stmt) -> Stmt | None:
        return split.block(stmt, ranges) if isinstance(stmt, Block) else None

    body = map_statements(function.body, rule)
    new_allocations = tuple(split.new if b == old else b for b in function.allocations)
    return with_body(function, body, new_allocations)


class _Split:
    """One buffer's dimension, and the names that are taken."""

    def __init__(
        self, old: Buffer, new: Buffer, dimension: int, size: int, taken_names: set[str]
    ) -> None:
        self.old, self.new = old, new
        self.dimension, self.size = dimension, size
        self.taken_names = taken_names

    def block(self, block: Block, ranges: Mapping[Var, Interval]) -> Block:
        """The block with two axes for each axis along the dimension, using the new buffer."""
        used: tuple[Store | Load, ...] = (*stores(block), *loads(block))
        indices = {a.indices[self.dimension] for a in used if a.buffer == self.old}
        if not indices:
            return block
        axes: list[Axis] = []
        bindings: list[Expr] = []
        values: dict[Var, Expr] = {}
        for axis, binding in block.bound_axes():
            if axis.var not in indices or axis.extent != self.old.shape[self.dimension]:
                axes.append(axis)
                bindings.append(binding)
                continue
            outer, inner = (Var(fresh(f"{axis.var.name}_{i}", self.taken_names)) for i in range(2))
            count = self.new.shape[self.dimension]
            axes += [Axis(outer, count, axis.kind), Axis(inner, Const(self.size), axis.kind)]
            bindings += [binding // self.size, binding % self.size]
            values[axis.var] = outer * self.size + inner
        inside = dict(ranges)
        inside.update({axis.var: interval_of(axis.extent, inside) for axis in axes})

        def moved(stmt: Stmt | None) -> Stmt | None:
            return None if stmt is None else self.accesses(stmt, values, inside)

        body = moved(block.body)
        assert body is not None
        return replace(
            block,
            axes=tuple(axes),
            bindings=tuple(simplify(b, ranges) for b in bindings),
            body=body,
            init=moved(block.init),
        )

    def accesses(
        self, stmt: Stmt, values: Mapping[Var, Expr], ranges: Mapping[Var, Interval]
    ) -> Stmt:
        """The statement over the new axes and the new buffer."""

        def parts(indices: tuple[Expr, ...]) -> tuple[Expr, ...]:
            d = self.dimension
            pair = (indices[d] // self.size, indices[d] % self.size)
            return (*indices[:d], *(simplify(i, ranges) for i in pair), *indices[d + 1 :])

        def load(node: Expr) -> Expr | None:
            match node:
                case Load(buffer=buffer, indices=indices) if buffer == self.old:
                    return Load(self.new, parts(indices))
            return None

        def store(node: Stmt) -> Stmt | None:
            match node:
                case Store(buffer=buffer, indices=indices) if buffer == self.old:
                    return replace(node, buffer=self.new, indices=parts(indices))
            return None

        over = map_expressions(stmt, lambda e: simplify(substitute(e, values), ranges))
        return map_statements(map_expressions(over, rewriter(load)), store)
