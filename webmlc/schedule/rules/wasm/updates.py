"""Updates in order: scans, scatters, histograms.

In: a kernel with a block that updates elements (`analysis.is_update`). Out: the loops along which
the updates are in order stay in order. Slices that lie side by side in memory are vectors inside of
them, and a last short axis is unrolled:

    for r, i, j: Y[index[r], j] = X[r, j]  ->  for r: for j0: Y[index[r], j0 * 4 + (0..3)] = ...

A kernel of several blocks stays as it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from msgspec import Struct

from webmlc.core.machine import Cpu
from webmlc.loops.ir import LoopFunction
from webmlc.schedule.analysis import is_update, is_vectorizable
from webmlc.schedule.rules.rule import NoParameters, Rule
from webmlc.schedule.rules.space import Product, Space
from webmlc.schedule.rules.tiling.nests import extent_of
from webmlc.schedule.rules.wasm.pointwise import (
    DEFAULT_POINTWISE,
    PointwiseParameters,
    pointwise_space,
    schedule_pointwise,
)
from webmlc.schedule.schedule import Schedule

SHORT = 4
"""Iterations of a last axis that are unrolled, by default: each iteration computes something else,
and without unrolling tests which (an estimate, as old as the rule)."""
LONGEST = 16
"""Iterations of a last axis that may be unrolled."""


@dataclass(frozen=True, slots=True)
class Facts:
    """A block of updates. `form`: "slices" make vectors; "ordered" updates differ only in their
    order; "several": the block is one of several. `last`: iterations of the last axis that runs in
    order, `None` if symbolic or missing.
    """

    form: Literal["slices", "ordered", "several"]
    last: int | None
    lanes: int

    @property
    def are_independent(self) -> bool:
        """True if the kernel is one nest."""
        return self.form != "several"


class Ordered(Struct, frozen=True):
    """The parameters of updates that differ only in their order."""

    is_unrolled: bool
    """Whether the last axis that is in order is unrolled."""


Parameters = PointwiseParameters | Ordered | NoParameters
"""The parameters of slices, of updates in order, and of several blocks."""


def match(function: LoopFunction, machine: Cpu) -> Facts | None:
    """Matches kernels with updates."""
    schedule = Schedule(function)
    names = schedule.blocks()
    if not any(is_update(schedule.block(name)) for name in names):
        return None
    if len(names) > 1:
        return Facts("several", None, machine.lanes)
    ordered = schedule.reduce_loops(names[0])
    slices = [loop for loop in schedule.loops(names[0]) if loop not in ordered]
    if slices and is_vectorizable(schedule.function, names[0], slices[-1], machine.lanes):
        return Facts("slices", None, machine.lanes)
    last = extent_of(schedule, ordered[-1]) if ordered else None
    return Facts("ordered", last, machine.lanes)


def space(facts: Facts, machine: Cpu) -> Product[Any]:
    """Vectors of slices, or whether the last axis is unrolled."""
    match facts.form:
        case "slices":
            return pointwise_space(machine.lanes)
        case "ordered":
            can_unroll = facts.last is not None and facts.last <= LONGEST
            return Space.of(Ordered, is_unrolled=(False, True) if can_unroll else (False,))
    return Space.of(NoParameters)


def default(facts: Facts, _machine: Cpu) -> Parameters:
    """Vectors of slices; a short last axis is unrolled."""
    match facts.form:
        case "slices":
            return DEFAULT_POINTWISE
        case "ordered":
            return Ordered(facts.last is not None and facts.last <= SHORT)
    return NoParameters()


def build(schedule: Schedule, facts: Facts, parameters: Parameters) -> None:
    """Put slices inside of the loops that run in order, or unroll the last axis."""
    if isinstance(parameters, NoParameters):
        return
    (block,) = schedule.blocks()
    ordered = schedule.reduce_loops(block)
    match parameters:
        case PointwiseParameters():
            *outer, last = (loop for loop in schedule.loops(block) if loop not in ordered)
            schedule.reorder(*outer, *ordered, last)
            fixed = len(outer) + len(ordered)
            schedule_pointwise(schedule, block, facts.lanes, parameters, fixed, fuse=False)
        case Ordered(is_unrolled=True):
            schedule.unroll(ordered[-1])


UPDATES: Rule[Facts, Parameters, Cpu] = Rule("updates", match, space, default, build)
