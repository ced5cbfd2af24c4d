"""Bind the named sizes of a kernel to their values: the inverse of `name_dimensions`.

needs: a lowered function, and the values of the symbols that the caller does not pass.
guarantees: the symbols of the function are the caller's. Each size is computed once, around the
whole body. Expressions that the host evaluates (shapes, the extents of thread loops) use only the
caller's symbols. A size divided by zero is 0, as hosts evaluate it.
before → after:

    def conv(..., height: T.symbol, size: T.symbol):       def conv(..., height: T.symbol):
        for i in range(size): ...                 →            size = (height + 1) // 2
                                                               for i in range(size): ...
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from webmlc.core.expr import Expr, Var
from webmlc.core.rewrite import substitute
from webmlc.loops.ir import Buffer, For, LoopFunction, Stmt, map_statements
from webmlc.target.guard_division import guard_size
from webmlc.target.scoped import join_lets, replace_all_buffers


def bind_dimensions(function: LoopFunction, values: Sequence[tuple[Var, Expr]]) -> LoopFunction:
    """Bind the symbols that `values` defines, each in terms of the symbols before it."""
    if not values:
        return function
    definitions: dict[Var, Expr] = {}
    for var, value in values:
        definitions[var] = substitute(value, definitions)

    def substitute_extent(stmt: Stmt) -> Stmt | None:
        match stmt:
            case For(kind="thread_binding", extent=extent):
                return replace(stmt, extent=substitute(extent, definitions))
        return None

    def buffer(original: Buffer) -> Buffer:
        return replace(original, shape=tuple(substitute(d, definitions) for d in original.shape))

    body = map_statements(function.body, substitute_extent)
    bound = replace_all_buffers(function, body, buffer)
    sizes = [(var, guard_size(value)) for var, value in values]
    symbols = tuple(s for s in function.symbols if s not in definitions)
    return replace(bound, symbols=symbols, body=join_lets([*sizes, bound.body]))
