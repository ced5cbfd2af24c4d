"""Refuse a GPU kernel whose threads would not see the values that the loop nest promises them.

Needs the lowered form of a GPU kernel. Returns the function unchanged. Raises `InternalError` for

- an update of a `shared` element outside a loop over one of the workgroup's thread axes: every
  thread of that axis would perform the update, all at the same time;
- a read outside a thread loop under which the buffer is written. A `local` buffer would give the
  read another thread's copy, and a `shared` buffer another workgroup's. A `global` buffer may not
  be written yet, because a dispatch has no barrier across workgroups.

    for t in T.thread_binding(8, "threadIdx.x"):
        R[t] = A[t]                                  # R is local: eight copies
    for j in range(8): B[j] = R[j]                   # refused
"""

from __future__ import annotations

from collections.abc import Iterator

from webmlc.core.errors import InternalError
from webmlc.core.expr import as_int
from webmlc.loops.ir import (
    Buffer,
    For,
    LoopFunction,
    Stmt,
    Store,
    child_statements,
    expressions,
    loads_in,
)

Axes = frozenset[str]
"""The thread axes of the loops around a statement, such as `threadIdx.x`."""


def check_scopes(function: LoopFunction) -> LoopFunction:
    """Return the function itself. Raises `InternalError` where several threads would update the
    same shared element, or where a thread would need another thread's local element.
    """
    places = list(_places(function.body, frozenset()))
    launch_axes = frozenset[str]().union(*(axes for _, axes in places))
    write_axes: dict[Buffer, Axes] = {}
    for stmt, axes in places:
        if isinstance(stmt, Store):
            write_axes[stmt.buffer] = write_axes.get(stmt.buffer, frozenset()) | axes
    for stmt, axes in places:
        for buffer in {load.buffer: None for e in expressions(stmt) for load in loads_in(e)}:
            missing_axes = write_axes.get(buffer, frozenset()) - axes
            if buffer.scope == "shared":  # `insert_barriers` makes threads of one workgroup wait
                missing_axes = frozenset(
                    axis for axis in missing_axes if axis.startswith("blockIdx")
                )
            if missing_axes:
                raise InternalError(
                    f"lower: kernel {function.name}: the {buffer.scope} buffer {buffer.name} is "
                    f"written under a loop over {min(missing_axes)} and read outside it"
                )
            threads = {axis for axis in launch_axes - axes if axis.startswith("threadIdx")}
            updates = isinstance(stmt, Store) and stmt.buffer == buffer
            if buffer.scope == "shared" and updates and threads:
                raise InternalError(
                    f"lower: kernel {function.name}: every thread of {min(threads)} updates the "
                    f"same element of the shared buffer {buffer.name}; accumulate in a local buffer"
                )
    return function


def _places(stmt: Stmt, axes: Axes) -> Iterator[tuple[Stmt, Axes]]:
    """Every statement with the thread axes of the loops around it. A loop of one iteration has no
    axis.
    """
    yield stmt, axes
    if isinstance(stmt, For) and stmt.thread is not None and as_int(stmt.extent) != 1:
        axes = axes | {stmt.thread}
    for child in child_statements(stmt):
        yield from _places(child, axes)
