"""Find the allocations that a single thread uses.

In: a function without blocks. Out: the allocations that may exist once for each CPU thread. They
are the `local` allocations, and the `global` allocations that a single parallel loop accesses,
because one thread runs a whole iteration. In a function without parallel loops, all allocations
are private.

    >>> private_buffers(softmax)          # for i in T.parallel(n): total[0] = ...
    frozenset({total})
"""

from __future__ import annotations

from webmlc.loops.ir import (
    Buffer,
    For,
    LoopFunction,
    Stmt,
    Store,
    child_statements,
    expressions,
    walk_statements,
)
from webmlc.target.common_subexpressions import buffers_read

_OUTSIDE = 0
"""The place of an access outside all parallel loops; other places are identities of loops."""


def private_buffers(function: LoopFunction) -> frozenset[Buffer]:
    """Return the private allocations of `function`. On a GPU (thread loops), only `local`
    allocations are private.
    """
    local = frozenset(b for b in function.allocations if b.scope == "local")
    kinds = {s.kind for s in walk_statements(function.body) if isinstance(s, For)}
    if "thread_binding" in kinds:
        return local
    if "parallel" not in kinds:
        return frozenset(function.allocations)
    loops_of: dict[Buffer, set[int]] = {b: set() for b in function.allocations}

    def visit(stmt: Stmt, loop: int) -> None:
        if isinstance(stmt, For) and stmt.kind == "parallel" and loop == _OUTSIDE:
            loop = id(stmt)
        accessed = {b for e in expressions(stmt) for b in buffers_read(e)}
        if isinstance(stmt, Store):
            accessed.add(stmt.buffer)
        for buffer in accessed & loops_of.keys():
            loops_of[buffer].add(loop)
        for child in child_statements(stmt):
            visit(child, loop)

    visit(function.body, _OUTSIDE)
    return local | {b for b, loops in loops_of.items() if len(loops) == 1 and _OUTSIDE not in loops}
