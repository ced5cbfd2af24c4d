"""`parallel`: the loop's iterations are shared out to threads.

for i in T.serial(64): ...    ->    for i in T.parallel(64): ...
"""

from __future__ import annotations

from webmlc.loops.ir import LoopFunction
from webmlc.schedule.legality import require_data_parallel, require_own_locals, require_serial
from webmlc.schedule.tree import path_to_loop
from webmlc.schedule.update import with_loop_kind


def parallel(function: LoopFunction, loop: str) -> LoopFunction:
    """Run the iterations of `loop` in parallel. Raises `ScheduleError` if a reduce axis runs along
    the loop, or if a `local` buffer lives longer than an iteration's thread.
    """
    path, old = path_to_loop(function, "parallel", loop)
    require_serial("parallel", function, old)
    require_data_parallel("parallel", function, old)
    require_own_locals("parallel", function, old)
    return with_loop_kind(function, path, "parallel")
