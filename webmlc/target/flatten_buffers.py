"""Give every memory access one index: the row-major offset in elements.

Needs: no blocks. Guarantees: every buffer has rank 1 (rank 0 becomes one element). Every index is
the canonical form of the row-major offset, simplified under the ranges in scope, so that splits and
fusions of loops cancel.

before                                             after
    A: T.Buffer((8, 16), "float32")                    A: T.Buffer((128,), "float32")
    A[i, k + 1]                                        A[i * 16 + k + 1]
"""

from __future__ import annotations

from dataclasses import replace

from webmlc.core.expr import Const, Expr
from webmlc.core.simplify import simplify
from webmlc.loops.ir import Buffer, Load, LoopFunction, map_accesses
from webmlc.target.scoped import simplify_function


def flatten_buffers(function: LoopFunction) -> LoopFunction:
    """Rewrite all buffers of `function`, parameters included, to rank 1."""
    buffers = (*function.params, *function.allocations)
    flat = {b: replace(b, shape=(size(b),)) for b in buffers}

    def rule(buffer: Buffer, indices: tuple[Expr, ...]) -> Load:
        return Load(flat[buffer], (offset(buffer, indices),))

    return simplify_function(
        replace(
            function,
            params=tuple(flat[b] for b in function.params),
            allocations=tuple(flat[b] for b in function.allocations),
            body=map_accesses(function.body, rule),
        )
    )


def size(buffer: Buffer) -> Expr:
    """The number of elements of a buffer."""
    result: Expr = Const(1)
    for extent in buffer.shape:
        result = result * extent
    return simplify(result)


def offset(buffer: Buffer, indices: tuple[Expr, ...]) -> Expr:
    """The row-major offset of an element."""
    result: Expr = Const(0)
    for index, extent in zip(indices, buffer.shape, strict=True):
        result = result * extent + index
    return result
