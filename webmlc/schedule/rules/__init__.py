"""Rules: the schedules that a kernel may have, and the schedule that it gets.

In: a naive loop function (`loops.from_graph`) and a machine. Out: a `Schedule`, with a trace of its
steps. Each target has an ordered list of rules (`rule.Rule`): the first rule that matches a kernel
answers for it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from webmlc.core.errors import InternalError
from webmlc.core.machine import Device, Machine
from webmlc.core.machine_class import MachineClass
from webmlc.loops.ir import LoopFunction
from webmlc.schedule.rules import wasm, webgpu
from webmlc.schedule.rules.rule import AnyRule, Match, match_rules
from webmlc.schedule.rules.slabs import cpu_slabs, gpu_slabs
from webmlc.schedule.schedule import Schedule
from webmlc.schedule.tuning import Tuning

RULES: dict[Device, tuple[AnyRule, ...]] = {
    "wasm": (cpu_slabs(wasm.RULES), *wasm.RULES),
    "webgpu": (gpu_slabs(webgpu.RULES), *webgpu.RULES),
}
"""The rules of each target, in order of preference."""


@dataclass(frozen=True, slots=True)
class Alternative:
    """The schedule of a kernel for one class of machines, and the reason for it. The schedule may
    be the default, if other machines have another schedule.
    """

    machine: MachineClass
    schedule: Schedule
    tuning: Tuning


@dataclass(frozen=True, slots=True)
class Selection:
    """The schedule of a kernel, the reason for it if it is not the default, and alternatives for
    some classes of machines.
    """

    schedule: Schedule
    tuning: Tuning | None = None
    alternatives: tuple[Alternative, ...] = ()


Chooser = Callable[[Match], Selection]
"""Chooses the schedules of a kernel."""


def default_schedule(match: Match) -> Selection:
    """The schedule that a kernel has without a search for a better schedule."""
    return Selection(schedule_kernel(match.function, match.machine))


def find_match(function: LoopFunction, machine: Machine) -> Match:
    """The rule that answers for a kernel. Raises `InternalError` if no rule matches."""
    match = match_kernel(function, machine)
    if match is None:
        raise InternalError(f"no rule for {machine.device} schedules kernel {function.name!r}")
    return match


def schedule_kernel(function: LoopFunction, machine: Machine) -> Schedule:
    """The default schedule of the rule that answers for a kernel."""
    return choose_rule(function, machine)[1]


def choose_rule(function: LoopFunction, machine: Machine) -> tuple[str, Schedule]:
    """The name of the rule that answers for a kernel, and its default schedule.

    Raises `InternalError` if no rule does, or if the rule cannot build its default.
    """
    match = find_match(function, machine)
    return match.rule.name, match.default_schedule()


@lru_cache(maxsize=1024)
def match_kernel(function: LoopFunction, machine: Machine) -> Match | None:
    """The rule that answers for a kernel, with its facts of the kernel; `None` if one dispatch
    cannot compute the kernel. Cached: a kernel of several programs is scheduled once.
    """
    return match_rules(rules_of(machine), function, machine)


def rules_of(machine: Machine) -> tuple[AnyRule, ...]:
    """The rules of a machine's target."""
    return RULES[machine.device]
