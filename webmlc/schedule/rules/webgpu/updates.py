"""Updates of elements: scans, scatters.

A thread runs the updates of one slice, in order; if the updates are independent, each update is a
slice.

    for b, r: Y[b * 256 + r] = Y[b * 256 + r - 1] + X[b * 256 + r]  ->  one thread for each b
"""

from __future__ import annotations

from dataclasses import dataclass

from webmlc.core.machine import Gpu
from webmlc.loops.ir import LoopFunction
from webmlc.schedule.analysis import is_update
from webmlc.schedule.rules.rule import Rule
from webmlc.schedule.rules.tiling.axes import axes_of_kind, loops_along
from webmlc.schedule.rules.webgpu.threads import (
    Workgroup,
    bind_threads,
    default_workgroup,
    workgroup_space,
)
from webmlc.schedule.schedule import Schedule


@dataclass(frozen=True, slots=True)
class Facts:
    """The block of updates, alone in its kernel."""

    block: str


def match(function: LoopFunction, machine: Gpu) -> Facts | None:
    """Matches a kernel of one block that updates elements."""
    schedule = Schedule(function)
    names = schedule.blocks()
    if len(names) != 1 or not is_update(schedule.block(names[0])):
        return None
    return Facts(names[0])


def build(schedule: Schedule, facts: Facts, parameters: Workgroup) -> None:
    """Give each slice to a thread."""
    block = schedule.block(facts.block)
    slices = loops_along(block, axes_of_kind(block, "spatial"))
    if bind_threads(schedule, slices, parameters.workgroup) is None:
        schedule.bind(schedule.add_unit_loop(facts.block), "threadIdx.x")


UPDATES = Rule("updates", match, workgroup_space, default_workgroup, build)
