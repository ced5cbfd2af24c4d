"""Rules: which schedule for which kernel.

In: a naive loop function (`loops.from_graph`) and a machine. Out: a `Schedule`, whose trace says
what was done. Each target has an ordered list of rules; the last one always answers.
"""

from __future__ import annotations

from functools import lru_cache

from webmlc.core.errors import InternalError
from webmlc.core.machine import Machine
from webmlc.loops.ir import LoopFunction
from webmlc.schedule.errors import ScheduleError
from webmlc.schedule.rules import wasm
from webmlc.schedule.schedule import Schedule


def schedule_kernel(function: LoopFunction, machine: Machine) -> Schedule:
    """The schedule of the first rule that applies."""
    return choose_rule(function, machine)[1]


def choose_rule(function: LoopFunction, machine: Machine) -> tuple[str, Schedule]:
    """The name and the schedule of the first rule that applies.

    A rule declines by returning `None`, or by running into a step that a primitive refuses. What
    asks whether a kernel can be compiled (`split_kernels`) comes before what compiles it: the
    answer is kept.
    """
    name, schedule = _choice(function, machine)
    return name, schedule.copy()


@lru_cache(maxsize=1024)
def _choice(function: LoopFunction, machine: Machine) -> tuple[str, Schedule]:
    for rule in _rules(machine):
        try:
            schedule = rule(function, machine)
        except ScheduleError:
            continue
        if schedule is not None:
            return rule.__name__, schedule
    raise InternalError(f"no rule for {machine.device} schedules kernel {function.name!r}")


def _rules(machine: Machine) -> tuple[wasm.Rule, ...]:
    match machine.device:
        case "wasm":
            return wasm.RULES
        case "webgpu":
            from webmlc.schedule.rules import webgpu

            return webgpu.RULES
