"""`bind`: the loop's iterations become the threads, or the workgroups, of a GPU.

for i in T.serial(64): ...    ->    for i in T.thread_binding(64, "threadIdx.x"): ...
"""

from __future__ import annotations

from webmlc.loops.ir import (
    THREAD_AXES,
    For,
    LoopFunction,
    expressions,
    loads,
    stores,
    walk_statements,
)
from webmlc.schedule.errors import ScheduleError
from webmlc.schedule.legality import require_data_parallel, require_serial
from webmlc.schedule.tree import depends_on, path_to_loop
from webmlc.schedule.update import with_loop_kind


def bind(function: LoopFunction, loop: str, thread: str) -> LoopFunction:
    """Bind `loop` to the GPU axis `thread`.

    If an outer loop has the same axis, the threads share out the inner loop's work (cooperative
    fetching). Raises `ScheduleError` if there is no such axis, if a reduce axis runs along the
    loop, or if an outer loop has the axis and the threads cannot share the work.
    """
    path, old = path_to_loop(function, "bind", loop)
    require_serial("bind", function, old)
    if thread not in THREAD_AXES:
        reason = f"there is no thread axis {thread!r}; the axes are {', '.join(THREAD_AXES)}"
        raise ScheduleError("bind", reason, function, loop)
    require_data_parallel("bind", function, old)
    for outer in path[:-1]:
        if isinstance(outer, For) and outer.thread == thread and not _shares_out(old, outer):
            reason = f"loop {outer.var.name!r} around loop {loop!r} is bound to {thread} already"
            raise ScheduleError("bind", reason, function, outer.var.name, loop)
    return with_loop_kind(function, path, "thread_binding", thread)


def _shares_out(loop: For, outer: For) -> bool:
    """True if the threads of `outer` may share out the work of `loop`: the loop fills shared
    buffers, and every thread would do the same work.
    """
    written = {store.buffer for store in stores(loop)}
    if not all(buffer.scope == "shared" for buffer in written):
        return False
    reads_own = any(load.buffer in written for load in loads(loop))
    same = not any(
        depends_on(expr, {outer.var.name})
        for stmt in walk_statements(loop)
        for expr in expressions(stmt)
    )
    return same and not reads_own
