"""How loops become threads, and the parameter that every GPU rule has: the invocations of a
workgroup.

    bind_threads(schedule, ["n", "y", "x"], 64)     # n, y, x fused -> blockIdx.x, threadIdx.x
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from webmlc.core.expr import as_int
from webmlc.core.machine import MAX_INVOCATIONS, Gpu
from webmlc.core.simplify import simplify
from webmlc.schedule.rules.space import Product, Space
from webmlc.schedule.rules.tiling.axes import fuse_all
from webmlc.schedule.schedule import Schedule

SIZES = (32, 64, 128, 256)
"""Invocations to choose from: multiples of the threads that adapters run in lockstep (8 to 64)."""


class Workgroup(Struct, frozen=True):
    """The parameters of a rule that only has threads to choose."""

    workgroup: int
    """Invocations of a workgroup; fewer where the kernel has no more."""


def workgroup_space(_facts: Any, machine: Gpu) -> Product[Workgroup]:
    """The sizes of workgroups that every device can run."""
    return Space.of(Workgroup, workgroup=workgroup_sizes(machine))


def default_workgroup(_facts: Any, machine: Gpu) -> Workgroup:
    """The machine's workgroup."""
    return Workgroup(machine.workgroup_size)


def workgroup_sizes(machine: Gpu) -> tuple[int, ...]:
    """The choices for a workgroup's size."""
    sizes = {size for size in SIZES if size <= MAX_INVOCATIONS}
    return tuple(sorted(sizes | {machine.workgroup_size}))


def bind_threads(schedule: Schedule, loops: Sequence[str], size: int) -> str | None:
    """Make the iterations of perfectly nested outer loops the threads of workgroups of `size`.

    Returns the loop that stands for one thread; `None` if there are no loops (one thread computes
    everything).
    """
    fused = fuse_all(schedule, loops)
    if fused is None:
        return None
    total = as_int(simplify(schedule.extent(fused)))
    if total is not None and 0 < total < size:
        size = total
    group, thread = schedule.split(fused, [None, size])
    schedule.bind(group, "blockIdx.x")
    schedule.bind(thread, "threadIdx.x")
    return thread
