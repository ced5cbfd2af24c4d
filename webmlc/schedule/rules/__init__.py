"""Rules: which schedules a kernel may have, and which one it gets.

In: a naive loop function (`loops.from_graph`) and a machine. Out: a `Schedule`, whose trace says
what was done. Each target has an ordered list of rules (`rule.Rule`): the first that matches a
kernel answers for it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

from webmlc.core.dtypes import DType
from webmlc.core.errors import InternalError
from webmlc.core.machine import (
    DOT,
    PAIRS,
    RELAXED,
    SIMD128,
    SOFTWARE,
    SOFTWARE_MACHINES,
    SOFTWARE_SUBGROUPS,
    WEBGPU,
    Device,
    Machine,
)
from webmlc.core.machine_class import MachineClass
from webmlc.loops.ir import LoopFunction
from webmlc.schedule.analysis import (
    multiplies_bytes,
    multiplies_small_bytes,
    reduces,
    reduces_products,
)
from webmlc.schedule.rules import wasm, webgpu
from webmlc.schedule.rules.rule import AnyRule, Match, match_rules
from webmlc.schedule.schedule import Schedule
from webmlc.schedule.tuning import Tuning

RULES: dict[Device, tuple[AnyRule, ...]] = {"wasm": wasm.RULES, "webgpu": webgpu.RULES}
"""The rules of each target, in order of preference."""


@dataclass(frozen=True, slots=True)
class Alternative:
    """The schedule of a kernel for one class of machines, and why it has it. It may be the default
    one, if that of other machines is not.
    """

    machine: MachineClass
    schedule: Schedule
    tuning: Tuning


@dataclass(frozen=True, slots=True)
class Selection:
    """The schedule of a kernel, why it has it if that is not the default one, and those that some
    classes of machines have instead.
    """

    schedule: Schedule
    tuning: Tuning | None = None
    alternatives: tuple[Alternative, ...] = ()


Chooser = Callable[[Match], Selection]
"""Chooses the schedules of a kernel."""


def default_schedule(match: Match) -> Selection:
    """The schedule that a kernel has where nobody searched for a better one."""
    return Selection(schedule_kernel(match.function, match.machine))


def machine_of(function: LoopFunction, variant: Machine) -> Machine:
    """The machine to compile a kernel of a variant for.

    A kernel that is the same in the relaxed variant is compiled for `RELAXED`, and so only once.
    `DOT` and `PAIRS` differ from `RELAXED` in products of bytes, `SIMD128` in the register tile of
    products. A kernel that no rule takes for `SOFTWARE`, or only with threads that take too many
    iterations, gets the schedule for `WEBGPU`, for which kernels are cut. `SOFTWARE_SUBGROUPS`
    differs from `SOFTWARE` in reductions. GPUs with subgroups differ from `WEBGPU` in folds of
    whole workgroups, those with `shader-f16` in loads and stores of halves.
    """
    if "shader-f16" in variant.features and not has_halves(function):
        variant = replace(variant, features=variant.features - {"shader-f16"})
    if "subgroups" in variant.features and not folds_in_subgroups(function, variant):
        return replace(variant, features=variant.features - {"subgroups"})
    if variant == SOFTWARE_SUBGROUPS and not reduces(function):
        variant = SOFTWARE
    if variant in SOFTWARE_MACHINES and not _is_for_software(function, variant):
        return WEBGPU
    if variant == DOT and not multiplies_bytes(function):
        return RELAXED
    if variant == PAIRS and not multiplies_small_bytes(function):
        return RELAXED
    if variant == SIMD128 and not reduces_products(function):
        return RELAXED
    return variant


def _is_for_software(function: LoopFunction, variant: Machine) -> bool:
    """True if a kernel has a schedule for a software adapter, and if its threads take no more
    iterations than such an adapter runs or those for a GPU take too many, too.
    """
    match = match_kernel(function, variant)
    if match is None or match.is_bounded:
        return match is not None
    other = match_kernel(function, WEBGPU)
    return other is None or not other.is_bounded


def has_halves(function: LoopFunction) -> bool:
    """True if a parameter of a kernel is of float16."""
    return any(buffer.dtype is DType.float16 for buffer in function.params)


def folds_in_subgroups(function: LoopFunction, machine: Machine) -> bool:
    """True if the schedule of a kernel folds at once what the threads of a workgroup have."""
    match = match_kernel(function, machine)
    return match is not None and getattr(match.facts, "has_subgroups", False)


def find_match(function: LoopFunction, machine: Machine) -> Match:
    """The rule that answers for a kernel. Raises `InternalError` where none does."""
    match = match_kernel(function, machine)
    if match is None:
        raise InternalError(f"no rule for {machine.device} schedules kernel {function.name!r}")
    return match


def schedule_kernel(function: LoopFunction, machine: Machine) -> Schedule:
    """The default schedule of the rule that answers for a kernel."""
    return choose_rule(function, machine)[1]


def choose_rule(function: LoopFunction, machine: Machine) -> tuple[str, Schedule]:
    """The name of the rule that answers for a kernel, and its default schedule.

    Raises `InternalError` where no rule does, or where the rule cannot build its default.
    """
    name, schedule = _choice(function, machine)
    return name, schedule.copy()


@lru_cache(maxsize=1024)
def match_kernel(function: LoopFunction, machine: Machine) -> Match | None:
    """The rule that answers for a kernel, and what it knows of the kernel; `None` where one
    dispatch cannot compute the kernel. Cached: `split_kernels` asks before a kernel is compiled.
    """
    return match_rules(rules_of(machine), function, machine)


@lru_cache(maxsize=1024)
def _choice(function: LoopFunction, machine: Machine) -> tuple[str, Schedule]:
    """Cached: a kernel of several programs is scheduled once."""
    match = find_match(function, machine)
    return match.rule.name, match.default_schedule()


def rules_of(machine: Machine) -> tuple[AnyRule, ...]:
    """The rules of a machine's target."""
    return RULES[machine.device]
