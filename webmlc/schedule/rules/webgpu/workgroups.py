"""The parameter that every GPU rule has: the invocations of a workgroup."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from webmlc.core.machine import MAX_INVOCATIONS, Machine
from webmlc.schedule.rules.space import Space

SIZES = (32, 64, 128, 256)
"""Invocations to choose from: multiples of what adapters run in lockstep (8 to 64)."""


@dataclass(frozen=True, slots=True)
class Workgroup:
    """The parameters of a rule that only has threads to choose."""

    workgroup: int
    """Invocations of a workgroup; fewer where the kernel has no more."""


def workgroup_space(_facts: Any, machine: Machine) -> Space:
    """The sizes of workgroups that every device can run."""
    return Space.of(workgroup=workgroup_sizes(machine))


def default_workgroup(_facts: Any, machine: Machine) -> Workgroup:
    """The machine's workgroup."""
    return Workgroup(machine.workgroup_size)


def workgroup_sizes(machine: Machine) -> tuple[int, ...]:
    """The choices for a workgroup's size."""
    sizes = {size for size in SIZES if size <= MAX_INVOCATIONS}
    return tuple(sorted(sizes | {machine.workgroup_size}))
