"""Updates in order: scans, scatters, histograms.

In: a kernel with a block that updates elements (`analysis.is_update`). Out: the loops along which
the updates are in order stay in order. Slices that lie side by side in memory are vectors inside of
them, and a last short axis is unrolled:

    for r, i, j: Y[index[r], j] = X[r, j]  ->  for r: for j0: Y[index[r], j0 * 4 + (0..3)] = ...

A kernel of several blocks stays as it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from msgspec import Struct

from webmlc.core.machine import Cpu
from webmlc.loops.ir import LoopFunction
from webmlc.schedule.analysis import is_update, is_vectorizable
from webmlc.schedule.rules.rule import Kernel, rule_of
from webmlc.schedule.rules.space import Product, Space
from webmlc.schedule.rules.tiling.nests import extent_of
from webmlc.schedule.rules.wasm.pointwise import Pointwise, PointwiseParameters
from webmlc.schedule.rules.wasm.stages import Left
from webmlc.schedule.schedule import Schedule

SHORT = 4
"""Iterations of a last axis that are unrolled, by default: each iteration computes something else,
and without unrolling tests which (an estimate, as old as the rule)."""
LONGEST = 16
"""Iterations of a last axis that may be unrolled."""


class OrderParameters(Struct, frozen=True):
    """The parameters of updates that differ only in their order."""

    is_unrolled: bool
    """Whether the last axis that is in order is unrolled."""


@dataclass(frozen=True, slots=True)
class Slices(Pointwise):
    """Updates of slices that make vectors."""

    def build(self, schedule: Schedule, parameters: PointwiseParameters, fixed: int = 0) -> None:
        """Put the last loop over slices inside of the loops that run in order."""
        ordered = schedule.reduce_loops(self.block)
        *outer, last = (loop for loop in schedule.loops(self.block) if loop not in ordered)
        schedule.reorder(*outer, *ordered, last)
        Pointwise.build(self, schedule, parameters, len(outer) + len(ordered))


@dataclass(frozen=True, slots=True)
class Ordered:
    """Updates that differ only in their order. `last`: iterations of the last axis that runs in
    order, `None` if symbolic or missing.
    """

    block: str
    last: int | None

    def space(self, _machine: Cpu) -> Product[OrderParameters]:
        """Whether the last axis is unrolled."""
        can_unroll = self.last is not None and self.last <= LONGEST
        return Space.of(OrderParameters, is_unrolled=(False, True) if can_unroll else (False,))

    def default(self, _machine: Cpu) -> OrderParameters:
        """A short last axis is unrolled."""
        return OrderParameters(self.last is not None and self.last <= SHORT)

    def build(self, schedule: Schedule, parameters: OrderParameters) -> None:
        """Unroll the last axis."""
        if parameters.is_unrolled:
            schedule.unroll(schedule.reduce_loops(self.block)[-1])


def match(function: LoopFunction, machine: Cpu) -> Kernel[Any, Cpu] | None:
    """Matches kernels with updates."""
    schedule = Schedule(function)
    names = schedule.blocks()
    if not any(is_update(schedule.block(name)) for name in names):
        return None
    if len(names) > 1:
        return Left()
    ordered = schedule.reduce_loops(names[0])
    slices = [loop for loop in schedule.loops(names[0]) if loop not in ordered]
    if slices and is_vectorizable(schedule.function, names[0], slices[-1], machine.lanes):
        return Slices(names[0], machine.lanes, fuses=False)
    return Ordered(names[0], extent_of(schedule, ordered[-1]) if ordered else None)


UPDATES = rule_of("updates", match)
