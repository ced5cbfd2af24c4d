"""Kernels that write slabs of a constant around their results: a result and its padding.

In: a naive function in which some nests store a constant. Out: the schedule of the nests that
compute, as if they were alone, then the schedule of the slabs:

    conv, relu = ...                            for row, tile: conv, relu -> out[1:57, 1:57]
    out[0], out[57], out[:, 0], ... = 0    ->   for vector: out[0] = 0; ...

On a GPU, workgroups of the same shape fill the slabs. All workgroups are one dispatch, because no
nest reads the results of another:

    conv, relu = ...                            98 workgroups: conv, relu -> out[1:57, 1:57]
    out[0], out[57], out[:, 0], ... = 0    ->   15 workgroups: out[0] = 0; 15: out[57] = 0; ...
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from msgspec import Struct

from webmlc.core.expr import Const, as_int
from webmlc.core.machine import Machine
from webmlc.core.simplify import simplify
from webmlc.loops.ir import For, LoopFunction, Seq, Stmt, blocks, seq, stores, walk_statements
from webmlc.schedule.rules.rule import AnyRule, Match, Rule, match_rules
from webmlc.schedule.rules.space import Space
from webmlc.schedule.rules.tiling.nests import fuse_all
from webmlc.schedule.rules.webgpu import pointwise
from webmlc.schedule.schedule import Schedule

_AXES = ("threadIdx.z", "threadIdx.y", "threadIdx.x")
"""The axes of a workgroup, the innermost last."""


@dataclass(frozen=True, slots=True)
class Facts:
    """The nests that compute and the nests that fill, as two kernels."""

    result: Match
    fills: Match


class Parameters(Struct, frozen=True):
    """The parameters of both kernels' rules."""

    result: Any
    fills: Any


class GpuParameters(Struct, frozen=True):
    """The parameters of the rule of the nests that compute: the slabs follow from them."""

    result: Any


def cpu_slabs(rules: tuple[AnyRule, ...]) -> AnyRule:
    """The rule for kernels with slabs: other `rules` schedule the two halves."""
    return Rule(
        "slabs",
        _match_halves(rules),
        lambda facts, _: Space.of(
            Parameters, result=facts.result.choices(), fills=facts.fills.choices()
        ),
        lambda facts, _: Parameters(facts.result.default(), facts.fills.default()),
        _follow_both,
        needs_proof=True,
    )


def gpu_slabs(rules: tuple[AnyRule, ...]) -> AnyRule:
    """The rule for kernels with slabs: other `rules` schedule the nests that compute."""
    return Rule(
        "slabs",
        _match_halves(rules),
        lambda facts, _: Space.of(GpuParameters, result=facts.result.choices()),
        lambda facts, _: GpuParameters(facts.result.default()),
        _fill_by_threads,
        needs_proof=True,
    )


def _match_halves(rules: tuple[AnyRule, ...]) -> Callable[[LoopFunction, Machine], Facts | None]:
    """The function that matches kernels with slabs if some rule schedules each half."""

    def match(function: LoopFunction, machine: Machine) -> Facts | None:
        nests = function.body.statements if isinstance(function.body, Seq) else (function.body,)
        halves = ([n for n in nests if not _fills(n)], [n for n in nests if _fills(n)])
        if not all(halves):
            return None
        kernels = (replace(function, body=seq(*half)) for half in halves)
        result, fills = (match_rules(rules, kernel, machine) for kernel in kernels)
        return None if result is None or fills is None else Facts(result, fills)

    return match


def _fills(nest: Stmt) -> bool:
    return all(isinstance(store.value, Const) for store in stores(nest))


def _follow_both(schedule: Schedule, facts: Facts, parameters: Parameters) -> None:
    """Follow the steps of one schedule, then the steps of the other."""
    schedule.follow(facts.result.build(parameters.result).trace)
    schedule.follow(facts.fills.build(parameters.fills).trace)


def _fill_by_threads(schedule: Schedule, facts: Facts, parameters: GpuParameters) -> None:
    """Follow the steps of the schedule of the computing nests, then give each vector of a slab (or
    each element) to a thread of the same workgroups.
    """
    schedule.follow(facts.result.build(parameters.result).trace)
    threads = _threads(schedule.function)
    fills: pointwise.Facts = facts.fills.facts
    for block, count in zip(blocks(fills.function.body), fills.vectors, strict=True):
        loops = pointwise.loops_of(schedule, block.name, count, fills.lanes)
        fused = fuse_all(schedule, loops) if loops else schedule.add_unit_loop(block.name)
        group, *inner = schedule.split(fused, [None, *threads.values()])
        schedule.bind(group, "blockIdx.x")
        for loop, axis in zip(inner, threads, strict=True):
            schedule.bind(loop, axis)


def _threads(function: LoopFunction) -> dict[str, int]:
    """The threads of a workgroup along each axis that some nest uses: the most that one has."""
    loops = [stmt for stmt in walk_statements(function.body) if isinstance(stmt, For)]
    sizes = {
        axis: [as_int(simplify(loop.extent)) or 1 for loop in loops if loop.thread == axis]
        for axis in _AXES
    }
    return {axis: max(extents) for axis, extents in sizes.items() if extents}
