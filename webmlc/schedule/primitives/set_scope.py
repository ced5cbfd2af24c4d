"""`set_scope`: the buffer that a block writes moves to another scope.

Y = T.alloc_buffer((64, 8), "float32") -> Y = T.alloc_buffer((64, 8), "float32", scope="local")
"""

from __future__ import annotations

from dataclasses import replace

from webmlc.loops.ir import LoopFunction, Scope, replace_buffers
from webmlc.schedule.errors import ScheduleError
from webmlc.schedule.legality import only_output
from webmlc.schedule.tree import path_to_block
from webmlc.schedule.update import with_body


def set_scope(function: LoopFunction, block: str, scope: Scope) -> LoopFunction:
    """Put the buffer that `block` writes, a temporary, into `scope`. Raises `ScheduleError` for a
    parameter.
    """
    _, writer = path_to_block(function, "set_scope", block)
    old = only_output("set_scope", function, writer)
    if all(old.name != buffer.name for buffer in function.allocations):
        reason = (
            f"block {block!r} writes {old.name!r}, which is the caller's; cache_write it instead"
        )
        raise ScheduleError("set_scope", reason, function, block)
    new = replace(old, scope=scope)
    allocations = tuple(new if b.name == old.name else b for b in function.allocations)
    return with_body(function, replace_buffers(function.body, {old: new}), allocations)
