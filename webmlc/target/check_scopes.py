"""Refuse a GPU kernel whose threads would not see the values that the loop nest promises them.

Needs the lowered form of a GPU kernel. Returns the function unchanged. Raises `InternalError` for

- an update of a `shared` element outside a loop over one of the workgroup's thread axes: every
  thread of that axis would perform the update, all at the same time;
- a read outside a thread loop under which the buffer is written. A `local` buffer would give the
  read another thread's copy, and a `shared` buffer another workgroup's. A `global` buffer may not
  be written yet, because a dispatch has no barrier across workgroups;
- an access of a `local` buffer whose index depends on the number of the thread. `compact_buffers`
  leaves each thread its own elements, without that number, unless the accesses share out the
  elements in different ways.

    for t in T.thread_binding(8, "threadIdx.x"):
        R[t] = A[t]                                  # R is local: eight copies
    for j in range(8): B[j] = R[j]                   # refused
"""

from __future__ import annotations

from collections.abc import Iterator

from webmlc.core.errors import InternalError
from webmlc.core.expr import Var, as_int
from webmlc.core.rewrite import variables
from webmlc.loops.ir import (
    Buffer,
    For,
    Let,
    LoopFunction,
    Stmt,
    Store,
    child_statements,
    own_accesses,
    own_loads,
)

Axes = frozenset[str]
"""The thread axes of the loops around a statement, such as `threadIdx.x`."""


def check_scopes(function: LoopFunction) -> LoopFunction:
    """Return the function itself. Raises `InternalError` where several threads would update the
    same shared element, or where a thread would need another thread's local element.
    """
    places = list(_places(function.body, frozenset(), frozenset()))
    launch_axes = frozenset[str]().union(*(axes for _, axes, _ in places))
    write_axes: dict[Buffer, Axes] = {}
    for stmt, axes, _ in places:
        if isinstance(stmt, Store):
            write_axes[stmt.buffer] = write_axes.get(stmt.buffer, frozenset()) | axes
    for stmt, axes, _ in places:
        for buffer in {load.buffer: None for load in own_loads(stmt)}:
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
    for stmt, _, numbers in places:
        for access in own_accesses(stmt):
            if access.buffer.scope != "local":
                continue
            if any(not numbers.isdisjoint(variables(index)) for index in access.indices):
                raise InternalError(
                    f"lower: kernel {function.name}: the local buffer {access.buffer.name} has an "
                    "index that depends on the number of the thread: not all loops share out its "
                    "elements in the same way"
                )
    return function


def _places(
    stmt: Stmt, axes: Axes, numbers: frozenset[Var]
) -> Iterator[tuple[Stmt, Axes, frozenset[Var]]]:
    """Every statement with the thread axes of the loops around it, and the variables that depend on
    the number of a thread of the workgroup. A loop of one iteration has no axis.
    """
    yield stmt, axes, numbers
    if isinstance(stmt, For) and stmt.thread is not None and as_int(stmt.extent) != 1:
        axes = axes | {stmt.thread}
        if stmt.thread.startswith("threadIdx"):
            numbers = numbers | {stmt.var}
    if isinstance(stmt, Let) and not numbers.isdisjoint(variables(stmt.value)):
        numbers = numbers | {stmt.var}
    for child in child_statements(stmt):
        yield from _places(child, axes, numbers)
