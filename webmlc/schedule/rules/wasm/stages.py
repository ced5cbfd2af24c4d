"""Stages: each nest of a kernel by itself, by the class of its block.

In: a schedule, and the loops that its stages share (none at first). Out: every stage's own loops
scheduled: pointwise blocks, folds along the contiguous axis, folds along lanes.

    for i, j: t[i, j] = a[i, j] + b[j]   ->   for i, j0: t[i, j0 * 8 + (0..7)] = ...
    for i, j: s[i] += t[i, j]            ->   for i: { for j0: v[0:16] += ...; s[i] = sum(v) }

Threads share the work only where no stage reads another's results.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from webmlc.core.machine import Cpu
from webmlc.loops.ir import LoopFunction
from webmlc.schedule.analysis import fold_of
from webmlc.schedule.errors import ScheduleError
from webmlc.schedule.rules.rule import NoParameters, rule_of
from webmlc.schedule.rules.space import Product, Space
from webmlc.schedule.rules.tiling.nests import extent_of
from webmlc.schedule.rules.wasm.fold import FoldFacts, contiguous_loop, fold_facts
from webmlc.schedule.rules.wasm.pointwise import Pointwise
from webmlc.schedule.rules.wasm.window import WindowFacts, window_facts
from webmlc.schedule.schedule import Schedule


@dataclass(frozen=True, slots=True)
class Fold:
    """A fold along the contiguous axis or along lanes; with `None`, its loops are only ordered."""

    block: str
    kind: FoldFacts | WindowFacts | None

    def space(self, machine: Cpu) -> Product[Any]:
        """The parameters to choose from."""
        return Space.of(NoParameters) if self.kind is None else self.kind.space(machine)

    def default(self, machine: Cpu) -> Any:
        """The parameters without a search."""
        return NoParameters() if self.kind is None else self.kind.default(machine)

    def build(self, schedule: Schedule, parameters: Any, fixed: int) -> None:
        """Schedule the fold, under `fixed` loops that it shares with other stages."""
        around = _put_around(schedule, self.block, fixed)
        if isinstance(self.kind, FoldFacts):
            self.kind.build(schedule, parameters, around)
            return
        contiguous_loop(schedule, self.block)
        if self.kind is not None:
            self.kind.build(schedule, parameters, fixed)


@dataclass(frozen=True, slots=True)
class Left:
    """A stage whose loops stay as they are, because primitives cannot prove the steps."""

    def space(self, _machine: Cpu) -> Product[NoParameters]:
        """One choice."""
        return Space.of(NoParameters)

    def default(self, _machine: Cpu) -> NoParameters:
        """No parameters."""
        return NoParameters()

    def build(self, schedule: Schedule, parameters: NoParameters, fixed: int = 0) -> None:
        """Apply no primitives."""


Stage = Pointwise | Fold | Left


@dataclass(frozen=True, slots=True)
class Stages:
    """The stages of a kernel under the `fixed` loops that they share, with the parameters of each.
    `are_independent`: no stage reads another's results.
    """

    stages: tuple[Stage, ...]
    fixed: int
    are_independent: bool = False

    def space(self, machine: Cpu) -> Product[tuple[Any, ...]]:
        """The parameters of each stage."""
        return Space.each([stage.space(machine) for stage in self.stages])

    def default(self, machine: Cpu) -> tuple[Any, ...]:
        """The parameters that each stage has without a search."""
        return tuple(stage.default(machine) for stage in self.stages)

    def build(self, schedule: Schedule, parameters: tuple[Any, ...]) -> None:
        """Schedule one stage after the other."""
        for stage, chosen in zip(self.stages, parameters, strict=True):
            stage.build(schedule, chosen, self.fixed)


def find_stages(
    schedule: Schedule, machine: Cpu, fixed: int, blocks: tuple[str, ...] | None = None
) -> Stages:
    """The stages of a schedule (or some `blocks`), under `fixed` loops that they share. The default
    steps are tried: the steps of earlier stages may unroll loops that a later stage shares, so that
    only the primitives can tell whether the later stage may fuse these loops.
    """
    stages: list[Stage] = []
    for block in blocks or tuple(schedule.blocks()):
        stage, schedule = _provable(schedule, block, machine, fixed)
        stages.append(stage)
    return Stages(tuple(stages), fixed)


def _provable(schedule: Schedule, block: str, machine: Cpu, fixed: int) -> tuple[Stage, Schedule]:
    """The first form of a stage that primitives accept, and the schedule with it."""
    for stage in _forms(schedule, block, machine.lanes, fixed):
        trial = schedule.copy()
        try:
            stage.build(trial, stage.default(machine), fixed)
        except ScheduleError:
            continue
        return stage, trial
    return Left(), schedule


def _forms(
    schedule: Schedule, block: str, lanes: int, fixed: int
) -> tuple[Pointwise, Pointwise] | tuple[Fold]:
    """The forms of a stage, the best first."""
    if fold_of(schedule.block(block)) is None:
        return Pointwise(block, lanes), Pointwise(block, lanes, fuses=False)
    trial = schedule.copy()
    around = _put_around(trial, block, fixed)
    fold = fold_facts(trial, block, around, lanes)
    if fold is not None:
        return (Fold(block, fold),)
    contiguous_loop(trial, block)
    return (Fold(block, window_facts(trial, block, lanes, fixed)),)


def _put_around(schedule: Schedule, block: str, fixed: int) -> str | None:
    """Move the innermost shared loop that runs more than once right around a fold."""
    shared = schedule.loops(block)[:fixed]
    around = next((n for n in reversed(shared) if extent_of(schedule, n) != 1), None)
    if around is not None and around != shared[-1]:
        schedule.reorder(*shared[shared.index(around) + 1 :], around)
    return around


def match(function: LoopFunction, machine: Cpu) -> Stages:
    """Matches every kernel."""
    stages = find_stages(Schedule(function), machine, 0)
    return replace(stages, are_independent=not function.allocations)


STAGES = rule_of("stages", match)
