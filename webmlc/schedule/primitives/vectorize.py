"""`vectorize`: the loop's iterations become the lanes of a vector.

for i in T.serial(8): ...    ->    for i in T.vectorized(8): ...
"""

from __future__ import annotations

from webmlc.core.expr import as_int
from webmlc.loops.ir import For, LoopFunction, walk_statements
from webmlc.schedule.errors import ScheduleError
from webmlc.schedule.legality import require_data_parallel, require_serial
from webmlc.schedule.tree import path_to_loop
from webmlc.schedule.update import with_loop_kind


def vectorize(function: LoopFunction, loop: str) -> LoopFunction:
    """Vectorize `loop`.

    Raises `ScheduleError` if the loop's extent is not a constant, if a reduce axis runs along the
    loop, or if it holds a loop that is not unrolled. A vector cannot leave a loop early, and lanes
    of a nested vector have no meaning.
    """
    path, old = path_to_loop(function, "vectorize", loop)
    require_serial("vectorize", function, old)
    if as_int(old.extent) is None:
        reason = f"the extent {old.extent} of loop {loop!r} is not a constant"
        raise ScheduleError("vectorize", reason, function, loop)
    require_data_parallel("vectorize", function, old)
    for inner in walk_statements(old.body):
        if isinstance(inner, For) and inner.kind != "unrolled" and inner.kind != "serial":
            kind = inner.kind.replace("_", " ")
            reason = f"loop {loop!r} holds the {kind} loop {inner.var.name!r}"
            raise ScheduleError("vectorize", reason, function, loop, inner.var.name)
    return with_loop_kind(function, path, "vectorized")
