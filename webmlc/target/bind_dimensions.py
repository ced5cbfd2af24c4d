"""Named sizes get their values: what `name_dimensions` took out of a kernel comes back, once.

needs: a lowered function, and the values of those of its symbols that the caller does not pass.
guarantees: its symbols are the caller's; each size is computed once, around everything; what the
host evaluates (shapes, the extents of thread loops) is said in the caller's symbols. A size divided
by zero is 0, as hosts evaluate it.
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
from webmlc.loops.ir import Buffer, For, Let, LoopFunction, Stmt, map_statements, replace_buffers
from webmlc.target.guard_division import guard_size


def bind_dimensions(function: LoopFunction, values: Sequence[tuple[Var, Expr]]) -> LoopFunction:
    """Bind the symbols that `values` defines, each over the symbols before it."""
    if not values:
        return function
    written: dict[Var, Expr] = {}
    for var, value in values:
        written[var] = substitute(value, written)

    def launch(stmt: Stmt) -> Stmt | None:
        match stmt:
            case For(kind="thread_binding", extent=extent):
                return replace(stmt, extent=substitute(extent, written))
        return None

    def buffer(old: Buffer) -> Buffer:
        return replace(old, shape=tuple(substitute(d, written) for d in old.shape))

    buffers = {b: buffer(b) for b in (*function.params, *function.allocations)}
    body = replace_buffers(map_statements(function.body, launch), buffers)
    for var, value in reversed(values):
        body = Let(var, guard_size(value), body)
    return replace(
        function,
        params=tuple(buffers[b] for b in function.params),
        allocations=tuple(buffers[b] for b in function.allocations),
        symbols=tuple(s for s in function.symbols if s not in written),
        body=body,
    )
