"""Elementwise kernels, transposes, gathers, concatenations: every block writes what no other block
reads.

One thread makes 4 adjacent elements where the last dimensions allow it, else one; several outputs
are sections of one dispatch.

    for n, c in T.grid(8, 64): ...  ->  for b in T.thread_binding(2, "blockIdx.x"):
                                            for t in T.thread_binding(64, "threadIdx.x"):
                                                for v in T.vectorized(4): ...
"""

from __future__ import annotations

from webmlc.core.expr import Var, as_int
from webmlc.core.machine import Machine
from webmlc.core.simplify import simplify
from webmlc.loops.ir import Block, LoopFunction, Store, blocks
from webmlc.schedule.analysis import (
    accesses,
    axis_ranges,
    collapses,
    has_vector_types,
    lane_stride,
)
from webmlc.schedule.rules.webgpu.nests import (
    axes_of_kind,
    bind_threads,
    loops_along,
    reads,
    written,
)
from webmlc.schedule.schedule import Schedule


def pointwise(function: LoopFunction, machine: Machine) -> Schedule | None:
    """Answers for kernels without reductions whose blocks do not read one another's results."""
    made = written(function)
    for block in blocks(function.body):
        if axes_of_kind(block, "reduce") or reads(block) & set(made):
            return None
    schedule = Schedule(function)
    for name in schedule.blocks():
        spread(schedule, name, machine)
    return schedule


def spread(schedule: Schedule, name: str, machine: Machine) -> None:
    """Give each group of lanes of a block (or each element) to a thread."""
    block = schedule.block(name)
    loops = loops_along(block, axes_of_kind(block, "spatial"))
    inner = vector_loops(block, machine.lanes)
    if inner:
        last = schedule.fuse(*loops[-inner:]) if inner > 1 else loops[-1]
        outer, lanes = schedule.split(last, [None, machine.lanes])
        schedule.vectorize(lanes)
        loops = [*loops[:-inner], outer]
    bind_threads(schedule, loops, machine.workgroup_size)


def vector_loops(block: Block, lanes: int) -> int:
    """How many innermost axes make the loop to vectorise; 0 where lanes would not be adjacent."""
    axes = axes_of_kind(block, "spatial")
    if not axes or not isinstance(block.body, Store) or not has_vector_types(block):
        return 0
    steps = lane_steps(block, axes[-1].var, lanes)
    if steps is None:
        return 0
    total = as_int(simplify(axes[-1].extent))
    if total is not None and total % lanes == 0:
        return 1
    for count in range(2, len(axes) + 1):
        outer, inner = axes[-count], axes[-count + 1]
        extent = as_int(simplify(outer.extent))
        if total is None or extent is None or not collapses(outer, inner, block):
            return 0
        total *= extent
        if total % lanes == 0:
            return count
    return 0


def lane_steps(block: Block, axis: Var, lanes: int) -> list[int] | None:
    """The constant strides at which groups of lanes read; `None` where some stride is not constant
    or they do not write adjacent elements.
    """
    ranges = axis_ranges(block)
    steps: list[int] = []
    for access in accesses(block):
        step = lane_stride(access.index, axis, lanes, ranges)
        if step is None or (access.is_store and step != 1):
            return None
        steps.append(step)
    return steps
