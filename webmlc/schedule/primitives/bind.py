"""`bind`: the loop's iterations become the threads, or the workgroups, of a GPU.

for i in T.serial(64): ...    ->    for i in T.thread_binding(64, "threadIdx.x"): ...
"""

from __future__ import annotations

from webmlc.loops.ir import THREAD_AXES, For, LoopFunction
from webmlc.schedule.errors import ScheduleError
from webmlc.schedule.legality import require_data_parallel, require_serial
from webmlc.schedule.tree import path_to_loop
from webmlc.schedule.update import with_loop_kind


def bind(function: LoopFunction, loop: str, thread: str) -> LoopFunction:
    """Bind `loop` to the GPU axis `thread`.

    Raises `ScheduleError` where there is no such axis, a reduce axis runs along the loop, or a loop
    around it has the axis already.
    """
    path, old = path_to_loop(function, "bind", loop)
    require_serial("bind", function, old)
    if thread not in THREAD_AXES:
        reason = f"there is no thread axis {thread!r}; the axes are {', '.join(THREAD_AXES)}"
        raise ScheduleError("bind", reason, function, loop)
    require_data_parallel("bind", function, old)
    for outer in path[:-1]:
        if isinstance(outer, For) and outer.thread == thread:
            reason = f"loop {outer.var.name!r} around loop {loop!r} is bound to {thread} already"
            raise ScheduleError("bind", reason, function, outer.var.name, loop)
    return with_loop_kind(function, path, "thread_binding", thread)
