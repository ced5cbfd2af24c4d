"""`unroll`: the target writes the loop's body once for each iteration.

for i in T.serial(6): ...    ->    for i in T.unrolled(6): ...
"""

from __future__ import annotations

from webmlc.core.expr import as_int
from webmlc.loops.ir import LoopFunction
from webmlc.schedule.errors import ScheduleError
from webmlc.schedule.legality import require_serial
from webmlc.schedule.tree import path_to_loop
from webmlc.schedule.update import with_loop_kind


def unroll(function: LoopFunction, loop: str) -> LoopFunction:
    """Unroll `loop`. Raises `ScheduleError` if its extent is not a constant."""
    path, old = path_to_loop(function, "unroll", loop)
    require_serial("unroll", function, old)
    if as_int(old.extent) is None:
        reason = f"the extent {old.extent} of loop {loop!r} is not a constant"
        raise ScheduleError("unroll", reason, function, loop)
    return with_loop_kind(function, path, "unrolled")
