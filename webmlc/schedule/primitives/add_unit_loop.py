"""`add_unit_loop`: a loop of one iteration around a block.

with T.block("Y"):                     for Y_unit in T.serial(1):
    Y[()] = X[0]               ->          with T.block("Y"):
                                               Y[()] = X[0]
"""

from __future__ import annotations

from webmlc.core.expr import Const, Var
from webmlc.loops.ir import For, LoopFunction
from webmlc.schedule.tree import fresh, path_to_block, replace_last, used_names
from webmlc.schedule.update import with_body


def add_unit_loop(function: LoopFunction, block: str) -> tuple[LoopFunction, str]:
    """Put a loop of one iteration directly around `block`, where steps need a loop: a place to
    compute a producer at, or a thread axis with a single busy thread.

    Returns the function and the loop's name, `<block>_unit`. Raises `ScheduleError` if there is no
    such block.
    """
    path, inner = path_to_block(function, "add_unit_loop", block)
    var = Var(fresh(f"{block}_unit", used_names(function)))
    return with_body(function, replace_last(path, For(var, Const(1), inner))), var.name
