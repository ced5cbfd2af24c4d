"""The task of a schedule function: the kernel that it schedules, with the function as the rule.

In: a function that returns the schedule of some parameters, and its space. Out: a `Task`.

    task = task_of(tiled, read_space({"rows": [1, 2, 4]}), RELAXED, sizes={})
    search = Search([task], options, database)

The function runs in this process alone, so that it may be a closure or a lambda. Candidates are
built here, too: lowering the schedule of one product takes 20 to 130 ms, less than a trial of it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from random import Random
from typing import Any

from webmlc.core.errors import UserError
from webmlc.core.machine import DEVICES, Machine
from webmlc.loops.ir import LoopFunction
from webmlc.loops.print_text import print_function
from webmlc.programs.compiled import check_gpu
from webmlc.programs.tir import Schedule
from webmlc.schedule.errors import ScheduleError
from webmlc.schedule.rules.rule import AnyRule, Match, rule_of
from webmlc.schedule.rules.space import Product
from webmlc.schedule.schedule import Schedule as AnySchedule
from webmlc.schedule.trace import Trace
from webmlc.target.targets import machine_of
from webmlc.tune.tasks import Task, kernel_key
from webmlc.tune.user_space import arguments_of

ScheduleFunction = Callable[..., Schedule | None]
"""Returns the schedule of the parameters that it gets as keyword arguments, or None to refuse
them."""
FIRST_MEMBERS = 1000
"""The members that are tried until one builds, if no default is named (chosen by hand: each takes
about a millisecond)."""
SAMPLED_MEMBERS = 16
"""The members whose schedules are part of a task's key, besides the default: an edit of the
function that changes a twentieth of the schedules goes unnoticed once in two (chosen by hand)."""


class RefusedParameters(UserError):
    """A schedule function refuses its parameters."""


@dataclass(frozen=True, slots=True)
class UserKernel:
    """A schedule function and its space (`rules.rule.Kernel`). `origin` is the program that all
    schedules start from; without it, that of the first schedule.
    """

    function: ScheduleFunction
    name: str
    values: Product[Any]
    machine: Machine
    first: Any = None
    origin: LoopFunction | None = None

    def space(self, machine: Machine) -> Product[Any]:
        """The parameters to choose from."""
        return self.values

    def default(self, machine: Machine) -> Any:
        """The parameters that a search starts from."""
        return self.first

    def build(self, schedule: AnySchedule, member: Any) -> None:
        """Apply the steps of the member's schedule."""
        schedule.follow(self.schedule(member).trace)

    def schedule(self, member: Any) -> Schedule:
        """The schedule that the function returns for a member.

        Raises `ScheduleError` if a primitive refuses a step, `RefusedParameters` if the function
        refuses the member, and `UserError` if it returns anything else, if its schedules start
        from different programs, or if the device cannot run the schedule.
        """
        schedule = self.function(**arguments_of(member))
        if schedule is None:
            raise RefusedParameters(f"{self.name} refuses these parameters")
        if not isinstance(schedule, Schedule):
            kind = type(schedule).__name__
            raise UserError(f"{self.name} must return a tir.Schedule, not {kind}")
        if self.origin is not None and not _is_same(schedule.origin, self.origin):
            raise UserError(
                f"{self.name} schedules different programs, and a search compares the schedules "
                "of one. Search each program's schedules alone"
            )
        if not DEVICES[self.machine.device].runs_steps:
            check_gpu(schedule.program)
        return schedule


def _is_same(one: LoopFunction, other: LoopFunction) -> bool:
    """True if two functions are the same program: names identify buffers, loops and blocks."""
    return one is other or print_function(one) == print_function(other)


def task_of(
    function: ScheduleFunction,
    space: Product[Any],
    machine: Machine,
    sizes: Mapping[str, int],
    default: Mapping[str, Any] | None = None,
) -> UserTask:
    """The task of a schedule function on a machine. `sizes` are the sizes of the program's symbols.
    The search starts from the parameters `default`, or from the first member that builds.

    Raises `UserError` if no member builds, or if a size is missing.
    """
    name = getattr(function, "__name__", type(function).__name__)
    kernel = UserKernel(function, name, space, machine)
    first = _first_member(kernel, default)
    program = kernel.schedule(first).origin
    kernel = replace(kernel, first=first, origin=program)
    if missing := [s.name for s in program.symbols if s.name not in sizes]:
        raise UserError(
            f"{name}: the size of {', '.join(missing)} is unknown. Name it, as in "
            f'sizes={{"{missing[0]}": 64}}'
        )
    rule: AnyRule = rule_of(name, lambda function, machine: None)
    match = Match(program, rule, kernel, machine_of(program, machine))
    symbols = {s.name: sizes[s.name] for s in program.symbols}
    return UserTask(_key(kernel, match), name, match, (), frozenset(), symbols, 1, 0)


def _first_member(kernel: UserKernel, default: Mapping[str, Any] | None) -> Any:
    """The member that a search starts from. Errors of the function are the caller's."""
    if default is not None:
        member = kernel.values.read(dict(default))
        if member is None:
            raise UserError(f"the default {dict(default)} is no member of the space")
        kernel.schedule(member)
        return member
    reason: Exception | None = None
    for member in islice(kernel.values.members(), FIRST_MEMBERS):
        try:
            kernel.schedule(member)
        except (ScheduleError, RefusedParameters) as error:
            reason = error
        else:
            return member
    raise UserError(
        f"{kernel.name} builds none of the first {FIRST_MEMBERS} members of its space. Name the "
        f"parameters to start from by default=. The last reason: {reason}"
    ) from reason


def _key(kernel: UserKernel, match: Match) -> str:
    """The key of the task: a hash of the program, its machine, the space, and the schedules of some
    members. Records of the function before an edit are records of another task.
    """
    generator = Random(0)
    sample = [kernel.first, *(kernel.values.random(generator) for _ in range(SAMPLED_MEMBERS))]
    space = list(kernel.values.leaves())
    traces = [_trace(kernel, member) for member in sample]
    text = json.dumps([kernel_key(match.function, match.machine), kernel.name, space, traces])
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _trace(kernel: UserKernel, member: Any) -> Trace | None:
    """The steps of a member's schedule, None if there are none."""
    try:
        return kernel.schedule(member).trace
    except Exception:  # a mistake of the function costs the search one member
        return None


class UserTask(Task):
    """A task that stays in its process: no other process can match a user's rule again."""

    __slots__ = ()

    def __reduce__(self) -> tuple[Any, ...]:
        """Refuse to travel."""
        raise TypeError(f"the schedule function {self.name} runs in its own process alone")
