"""Updates of elements: scans, scatters.

A thread does the updates of one slice, in order; of updates that are independent each is a slice.

    for b, r: Y[b * 256 + r] = Y[b * 256 + r - 1] + X[b * 256 + r]  ->  one thread for each b
"""

from __future__ import annotations

from webmlc.core.machine import Machine
from webmlc.loops.ir import LoopFunction
from webmlc.schedule.analysis import is_update
from webmlc.schedule.rules.webgpu.nests import axes_of_kind, bind_threads, loops_along
from webmlc.schedule.schedule import Schedule


def updates(function: LoopFunction, machine: Machine) -> Schedule | None:
    """Answers for a kernel of one block that updates elements."""
    schedule = Schedule(function)
    names = schedule.blocks()
    if len(names) != 1 or not is_update(schedule.block(names[0])):
        return None
    block = schedule.block(names[0])
    slices = loops_along(block, axes_of_kind(block, "spatial"))
    if bind_threads(schedule, slices, machine.workgroup_size) is None:
        schedule.bind(schedule.add_unit_loop(names[0]), "threadIdx.x")
    return schedule
