"""Kernels that write slabs of a constant around their results: a result and its padding.

In: a naive function in which some nests store a constant. Out: the schedule of the nests that
compute, as if they were alone, and workgroups of the same shape that fill the slabs. All workgroups
are one dispatch, because no nest reads the results of another.

    conv, relu = ...                            98 workgroups: conv, relu -> out[1:57, 1:57]
    out[0], out[57], out[:, 0], ... = 0    ->   15 workgroups: out[0] = 0; 15: out[57] = 0; ...
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from msgspec import Struct

from webmlc.core.expr import as_int
from webmlc.core.machine import Gpu
from webmlc.core.simplify import simplify
from webmlc.loops.ir import For, LoopFunction, blocks, walk_statements
from webmlc.schedule.rules.rule import AnyRule, Match, Rule, match_rules
from webmlc.schedule.rules.space import Product, Space
from webmlc.schedule.rules.tiling.axes import axes_of_kind, fuse_all, loops_along
from webmlc.schedule.rules.tiling.slabs import results_and_fills
from webmlc.schedule.rules.webgpu.pointwise import axes_of_vectors
from webmlc.schedule.schedule import Schedule

_AXES = ("threadIdx.z", "threadIdx.y", "threadIdx.x")
"""The axes of a workgroup, the innermost last."""


@dataclass(frozen=True, slots=True)
class Facts:
    """The nests that compute, as a separate kernel, and the blocks that fill. `vectors` has for
    each of these blocks the innermost axes that make a loop of whole vectors, or 0.
    """

    result: Match
    fills: tuple[str, ...]
    vectors: tuple[int, ...]
    lanes: int


class Parameters(Struct, frozen=True):
    """The parameters of the rule of the nests that compute. The slabs have no separate
    parameters.
    """

    result: Any


def slabs(rules: tuple[AnyRule, ...]) -> Rule[Facts, Parameters, Gpu]:
    """The rule for kernels with slabs: other `rules` schedule the nests that compute."""

    def match(function: LoopFunction, machine: Gpu) -> Facts | None:
        halves = results_and_fills(function)
        if halves is None:
            return None
        result = match_rules(rules, halves[0], machine)
        if result is None:
            return None
        fills = tuple(blocks(halves[1].body))
        vectors = tuple(axes_of_vectors(block, machine.lanes) for block in fills)
        names = tuple(block.name for block in fills)
        return Facts(result, names, vectors, machine.lanes)

    return Rule("slabs", match, space, default, build)


def space(facts: Facts, _machine: Gpu) -> Product[Parameters]:
    """The parameters to choose from for the nests that compute."""
    return Space.of(Parameters, result=facts.result.space())


def default(facts: Facts, _machine: Gpu) -> Parameters:
    """The default parameters of the nests that compute."""
    return Parameters(facts.result.default())


def build(schedule: Schedule, facts: Facts, parameters: Parameters) -> None:
    """Follow the steps of the schedule of the computing nests, then give each vector of a slab (or
    each element) to a thread.
    """
    schedule.follow(facts.result.build(parameters.result).trace)
    threads = _threads(schedule.function)
    for name, count in zip(facts.fills, facts.vectors, strict=True):
        _fill(schedule, name, count, facts.lanes, threads)


def _threads(function: LoopFunction) -> dict[str, int]:
    """The threads of a workgroup along each axis that some nest uses: the most that one has."""
    threads: dict[str, int] = {}
    for stmt in walk_statements(function.body):
        if isinstance(stmt, For) and stmt.thread in _AXES:
            extent = as_int(simplify(stmt.extent)) or 1
            threads[stmt.thread] = max(extent, threads.get(stmt.thread, 1))
    return threads


def _fill(
    schedule: Schedule, name: str, count: int, lanes: int, threads: Mapping[str, int]
) -> None:
    """Make workgroups of these threads of a slab's vectors."""
    block = schedule.block(name)
    loops = loops_along(block, axes_of_kind(block, "spatial"))
    if count:
        last = schedule.fuse(*loops[-count:]) if count > 1 else loops[-1]
        outer, vector = schedule.split(last, [None, lanes])
        schedule.vectorize(vector)
        loops = [*loops[:-count], outer]
    fused = fuse_all(schedule, loops) or schedule.add_unit_loop(name)  # a single element
    axes = [axis for axis in _AXES if axis in threads]
    group, *inner = schedule.split(fused, [None, *(threads[axis] for axis in axes)])
    schedule.bind(group, "blockIdx.x")
    for loop, axis in zip(inner, axes, strict=True):
        schedule.bind(loop, axis)
