"""`check_scopes`: refuses a GPU kernel whose threads would not see what the loop nest says they do.

Needs the lowered form of a GPU kernel. Returns nothing; raises `InternalError` for

- an update of a `shared` element outside a loop over one of the workgroup's thread axes (every
  thread of that axis would do it, at once);
- a read outside a thread loop that the buffer is written under: of a `local` buffer it would be
  another thread's copy, of a `shared` one another workgroup's, of a `global` one not written yet
  (a dispatch has no barrier across workgroups).

    for t in T.thread_binding(8, "threadIdx.x"):
        R[t] = A[t]                                  # R is local: eight copies
    for j in range(8): B[j] = R[j]                   # refused
"""

from __future__ import annotations

from collections.abc import Iterator

from webmlc.core.errors import InternalError
from webmlc.core.expr import as_int
from webmlc.core.rewrite import walk
from webmlc.loops.ir import (
    Buffer,
    For,
    Load,
    LoopFunction,
    Stmt,
    Store,
    child_statements,
    expressions,
)

Axes = frozenset[str]


def check_scopes(function: LoopFunction) -> LoopFunction:
    """The function itself. Raises `InternalError` where threads would update one shared element, or
    need another's local one.
    """
    places = list(_places(function.body, frozenset()))
    launch = frozenset[str]().union(*(axes for _, axes in places))
    written: dict[Buffer, Axes] = {}
    for stmt, axes in places:
        if isinstance(stmt, Store):
            written[stmt.buffer] = written.get(stmt.buffer, frozenset()) | axes
    for stmt, axes in places:
        own = (n for e in expressions(stmt) for n in walk(e))
        for buffer in (node.buffer for node in own if isinstance(node, Load)):
            missing = written.get(buffer, frozenset()) - axes
            if buffer.scope == "shared":  # `insert_barriers` lets its threads wait for each other
                missing = frozenset(axis for axis in missing if axis.startswith("blockIdx"))
            if missing:
                raise InternalError(
                    f"lower: kernel {function.name}: the {buffer.scope} buffer {buffer.name} is "
                    f"written under a loop over {min(missing)} and read outside it"
                )
            threads = {axis for axis in launch - axes if axis.startswith("threadIdx")}
            updates = isinstance(stmt, Store) and stmt.buffer == buffer
            if buffer.scope == "shared" and updates and threads:
                raise InternalError(
                    f"lower: kernel {function.name}: every thread of {min(threads)} updates the "
                    f"same element of the shared buffer {buffer.name}; accumulate in a local buffer"
                )
    return function


def _places(stmt: Stmt, axes: Axes) -> Iterator[tuple[Stmt, Axes]]:
    """Every statement with the thread axes of the loops around it; loops of one iteration are
    none.
    """
    yield stmt, axes
    if isinstance(stmt, For) and stmt.thread is not None and as_int(stmt.extent) != 1:
        axes = axes | {stmt.thread}
    for child in child_statements(stmt):
        yield from _places(child, axes)
