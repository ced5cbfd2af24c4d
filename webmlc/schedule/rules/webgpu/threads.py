"""How loops become threads, and the parameter that every GPU rule has: the invocations of a
workgroup.

    bind_threads(schedule, ["n", "y", "x"], 64)     # n, y, x fused -> blockIdx.x, threadIdx.x
"""

from __future__ import annotations

from collections.abc import Sequence

from webmlc.core.machine import Gpu
from webmlc.schedule.rules.tiling.nests import extent_of, fuse_all
from webmlc.schedule.schedule import Schedule

SIZES = (32, 64, 128, 256)
"""Invocations to choose from: multiples of the threads that adapters run in lockstep (8 to 64)."""


def workgroup_sizes(machine: Gpu) -> tuple[int, ...]:
    """The choices for a workgroup's size."""
    return tuple(sorted({*SIZES, machine.workgroup_size}))


def bind_threads(schedule: Schedule, loops: Sequence[str], size: int) -> str | None:
    """Make the iterations of perfectly nested outer loops the threads of workgroups of `size`.

    Returns the loop that stands for one thread; `None` if there are no loops (one thread computes
    everything).
    """
    if not loops:
        return None
    fused = fuse_all(schedule, loops)
    total = extent_of(schedule, fused)
    if total is not None and 0 < total < size:
        size = total
    group, thread = schedule.split(fused, [None, size])
    schedule.bind(group, "blockIdx.x")
    schedule.bind(thread, "threadIdx.x")
    return thread


def put_in_shared_memory(schedule: Schedule, block: str, loop: str) -> str:
    """Let a thread compute the results of a block under `loop` in registers, then put them where
    all threads of the workgroup see them. Returns the block that puts them there.
    """
    copy = schedule.cache_write(block, "local")
    schedule.reverse_compute_at(copy, loop)
    schedule.set_scope(copy, "shared")
    return copy


def bind_groups(schedule: Schedule, loops: Sequence[str]) -> str:
    """Give each iteration of nested outer loops to a workgroup; returns the loop over them."""
    group = fuse_all(schedule, loops)
    schedule.bind(group, "blockIdx.x")
    return group
