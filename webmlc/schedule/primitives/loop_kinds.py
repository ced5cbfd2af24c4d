"""Primitives that say how a loop runs."""

from __future__ import annotations

from dataclasses import replace

from webmlc.core.expr import as_int
from webmlc.loops.ir import THREAD_AXES, For, expressions, stores, walk_statements
from webmlc.schedule.edit import Edit
from webmlc.schedule.tree import depends_on, reads, writes


def unroll(edit: Edit, loop: str) -> None:
    """Unroll `loop`: the target writes its body once for each iteration.

    for i in T.serial(6): ...    ->    for i in T.unrolled(6): ...

    Raises `ScheduleError` if the loop's extent is not a constant.
    """
    path, old = edit.serial_loop(loop)
    _require_constant_extent(edit, old)
    edit.put(path, replace(old, kind="unrolled"))


def vectorize(edit: Edit, loop: str) -> None:
    """Vectorize `loop`: its iterations become the lanes of a vector.

    for i in T.serial(8): ...    ->    for i in T.vectorized(8): ...

    Raises `ScheduleError` if the loop's extent is not a constant, if a reduce axis runs along the
    loop, or if it holds a loop that is not unrolled. A vector cannot leave a loop early, and lanes
    of a nested vector have no meaning.
    """
    path, old = edit.serial_loop(loop)
    _require_constant_extent(edit, old)
    edit.require_data_parallel(old)
    for inner in walk_statements(old.body):
        if isinstance(inner, For) and inner.kind != "unrolled" and inner.kind != "serial":
            kind, name = inner.kind.replace("_", " "), inner.var.name
            edit.refuse(f"loop {loop!r} holds the {kind} loop {name!r}", loop, name)
    edit.put(path, replace(old, kind="vectorized"))


def _require_constant_extent(edit: Edit, loop: For) -> None:
    if as_int(loop.extent) is None:
        name = loop.var.name
        edit.refuse(f"the extent {loop.extent} of loop {name!r} is not a constant", name)


def parallel(edit: Edit, loop: str) -> None:
    """Run the iterations of `loop` in parallel: threads share them out.

    for i in T.serial(64): ...    ->    for i in T.parallel(64): ...

    Raises `ScheduleError` if a reduce axis runs along the loop, or if a `local` buffer lives longer
    than an iteration's thread.
    """
    path, old = edit.serial_loop(loop)
    edit.require_data_parallel(old)
    edit.require_own_locals(old)
    edit.put(path, replace(old, kind="parallel"))


def bind(edit: Edit, loop: str, thread: str) -> None:
    """Bind `loop` to the GPU axis `thread`: its iterations become threads, or workgroups.

    for i in T.serial(64): ...    ->    for i in T.thread_binding(64, "threadIdx.x"): ...

    If an outer loop has the same axis, the threads share out the inner loop's work (cooperative
    fetching). Raises `ScheduleError` if there is no such axis, if a reduce axis runs along the
    loop, or if an outer loop has the axis and the threads cannot share the work.
    """
    path, old = edit.serial_loop(loop)
    if thread not in THREAD_AXES:
        axes = ", ".join(THREAD_AXES)
        edit.refuse(f"there is no thread axis {thread!r}; the axes are {axes}", loop)
    edit.require_data_parallel(old)
    for outer in path[:-1]:
        if isinstance(outer, For) and outer.thread == thread and not _shares_out(old, outer):
            name = outer.var.name
            reason = f"loop {name!r} around loop {loop!r} is bound to {thread} already"
            edit.refuse(reason, name, loop)
    edit.put(path, replace(old, kind="thread_binding", thread=thread))


def _shares_out(loop: For, outer: For) -> bool:
    """True if the threads of `outer` may share out the work of `loop`: the loop fills shared
    buffers, and every thread would do the same work.
    """
    is_shared = all(store.buffer.scope == "shared" for store in stores(loop))
    exprs = (expr for stmt in walk_statements(loop) for expr in expressions(stmt))
    is_same = not any(depends_on(expr, {outer.var.name}) for expr in exprs)
    return is_shared and is_same and writes(loop).isdisjoint(reads(loop))
