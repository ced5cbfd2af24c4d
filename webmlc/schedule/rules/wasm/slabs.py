"""Kernels that write slabs of a constant around what they compute: a result and its padding.

In: a naive function, some of whose nests store a constant. Out: the schedule of the nests that
compute, as if they were alone, then that of the slabs.

    conv, relu = ...                            for row, tile: conv, relu -> out[1:57, 1:57]
    out[0], out[57], out[:, 0], ... = 0    ->   for vector: out[0] = 0; ...
"""

from __future__ import annotations

from dataclasses import replace

from webmlc.core.expr import Const
from webmlc.core.machine import Machine
from webmlc.loops.ir import LoopFunction, Seq, Stmt, seq, stores
from webmlc.schedule.schedule import Schedule


def slabs(function: LoopFunction, machine: Machine) -> Schedule | None:
    """Some nests fill, others compute."""
    from webmlc.schedule.rules import schedule_kernel  # which has this rule among its own

    nests = function.body.statements if isinstance(function.body, Seq) else (function.body,)
    fills = [nest for nest in nests if _fills(nest)]
    rest = [nest for nest in nests if not _fills(nest)]
    if not fills or not rest:
        return None
    schedule = Schedule(function)
    for part in (rest, fills):
        alone = replace(function, body=seq(*part))
        schedule.follow(schedule_kernel(alone, machine).trace)
    return schedule


def _fills(nest: Stmt) -> bool:
    return all(isinstance(store.value, Const) for store in stores(nest))
