"""Elementwise kernels, transposes, gathers, concatenations: no block reduces, and no block reads
the results of another.

One thread makes a vector of `Machine.lanes` adjacent elements, here 4, or one element. A vector is
possible if each lane writes next to the lane before it and reads at a constant stride. The
innermost axes, fused if need be, must be a multiple of the lanes. Blocks follow each other in one
dispatch: each is bound to threads on its own.

    for n, c in T.grid(8, 64):      ->  for b in T.thread_binding(2, "blockIdx.x"):
        Y[n, c] = ...                       for t in T.thread_binding(64, "threadIdx.x"):
                                                for v in T.vectorized(4):
                                                    Y[...] = ...
"""

from __future__ import annotations

from dataclasses import dataclass

from msgspec import Struct

from webmlc.core.expr import Var, as_int
from webmlc.core.machine import Gpu
from webmlc.core.simplify import simplify
from webmlc.loops.ir import Block, LoopFunction, Store, blocks
from webmlc.schedule.analysis import (
    accesses,
    axis_ranges,
    collapses,
    has_vector_types,
    lane_stride,
    stride,
)
from webmlc.schedule.rules.rule import Rule
from webmlc.schedule.rules.space import Product, Space
from webmlc.schedule.rules.tiling.nests import axes_of_kind, loops_along, reads, written
from webmlc.schedule.rules.webgpu.threads import bind_threads, workgroup_sizes
from webmlc.schedule.schedule import Schedule


@dataclass(frozen=True, slots=True)
class Facts:
    """A kernel of independent pointwise blocks. `vectors` has for each block the number of
    innermost axes to fuse to the loop that is vectorised, or 0 for a block that cannot be. `lanes`
    is the number of elements of a vector.
    """

    function: LoopFunction
    vectors: tuple[int, ...]
    lanes: int


class Parameters(Struct, frozen=True):
    """How the elements become threads."""

    workgroup: int
    """Invocations of a workgroup."""
    is_vectorized: bool
    """Whether a thread computes a vector of elements in each block that can be vectorised; else it
    computes one element."""


def match(function: LoopFunction, machine: Gpu) -> Facts | None:
    """Matches kernels without reductions whose blocks do not read one another's results."""
    results = set(written(function))
    for block in blocks(function.body):
        if axes_of_kind(block, "reduce") or reads(block) & results:
            return None
    lanes = machine.lanes
    vectors = tuple(axes_of_vectors(block, lanes) for block in blocks(function.body))
    return Facts(function, vectors, lanes)


def space(facts: Facts, machine: Gpu) -> Product[Parameters]:
    """All sizes of workgroups, each with and without vectors if some block can be vectorised."""
    vectorized = (False, True) if any(facts.vectors) else (False,)
    return Space.of(Parameters, workgroup=workgroup_sizes(machine), is_vectorized=vectorized)


def default(facts: Facts, machine: Gpu) -> Parameters:
    """Vectors in every block that can be vectorised, unless the lanes of some vector would read
    lines that the threads beside it read too.
    """
    is_vectorized = any(facts.vectors)
    if machine.reads_lines:
        is_vectorized = is_vectorized and not any(map(_is_strided, blocks(facts.function.body)))
    return Parameters(machine.workgroup_size, is_vectorized)


def _is_strided(block: Block) -> bool:
    """True if neighbouring elements of the result read elements of an operand that are apart."""
    axes = axes_of_kind(block, "spatial")
    if not axes:
        return False
    ranges = axis_ranges(block)
    steps = [stride(access.index, axes[-1].var, ranges) for access in accesses(block)]
    return any(step is not None and as_int(step) not in (0, 1) for step in steps)


def build(schedule: Schedule, facts: Facts, parameters: Parameters) -> None:
    """Give each vector of a block's elements (or each element) to a thread."""
    for name, count in zip(schedule.blocks(), facts.vectors, strict=True):
        loops = loops_of(schedule, name, count if parameters.is_vectorized else 0, facts.lanes)
        bind_threads(schedule, loops, parameters.workgroup)


def loops_of(schedule: Schedule, name: str, count: int, lanes: int) -> list[str]:
    """The loops over the elements of a block, or over vectors: with a `count`, the innermost
    `count` loops become one loop, whose steps are vectors.
    """
    block = schedule.block(name)
    loops = loops_along(block, axes_of_kind(block, "spatial"))
    if not count:
        return loops
    last = schedule.fuse(*loops[-count:]) if count > 1 else loops[-1]
    outer, vector = schedule.split(last, [None, lanes])
    schedule.vectorize(vector)
    return [*loops[:-count], outer]


def axes_of_vectors(block: Block, lanes: int) -> int:
    """The smallest number of innermost axes that make a loop of a multiple of `lanes` steps, or 0
    if the block cannot be vectorised. Axes are fused only if memory is contiguous across them
    (`collapses`), so that the lanes of a vector may then belong to two rows.
    """
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
    """The stride between the lanes of a vector in each access of a block, in elements; `None` where
    a stride is not constant, or where lanes do not write adjacent elements.
    """
    ranges = axis_ranges(block)
    steps: list[int] = []
    for access in accesses(block):
        step = lane_stride(access.index, axis, lanes, ranges)
        if step is None or (access.is_store and step != 1):
            return None
        steps.append(step)
    return steps


POINTWISE = Rule("pointwise", match, space, default, build)
