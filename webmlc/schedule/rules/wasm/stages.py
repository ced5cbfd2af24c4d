"""Stages: each nest of a kernel by itself, by the class of its block.

In: a schedule, and the loops that its stages share (none at first). Out: every stage's own loops
scheduled: pointwise blocks, folds along the contiguous axis, folds along lanes.

    for i, j: t[i, j] = a[i, j] + b[j]   ->   for i, j0: t[i, j0 * 8 + (0..7)] = ...
    for i, j: s[i] += t[i, j]            ->   for i: { for j0: v[0:16] += ...; s[i] = sum(v) }

Threads share the work only where no stage reads another's results.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from webmlc.core.machine import Cpu
from webmlc.loops.ir import LoopFunction
from webmlc.schedule.analysis import fold_of
from webmlc.schedule.errors import ScheduleError
from webmlc.schedule.rules.rule import NoParameters, Rule
from webmlc.schedule.rules.space import Product, Space
from webmlc.schedule.rules.tiling.nests import extent_of
from webmlc.schedule.rules.wasm.fold import (
    FoldFacts,
    FoldParameters,
    contiguous_loop,
    default_fold,
    fold_facts,
    fold_space,
    schedule_fold,
)
from webmlc.schedule.rules.wasm.pointwise import (
    DEFAULT_POINTWISE,
    PointwiseParameters,
    pointwise_space,
    schedule_pointwise,
)
from webmlc.schedule.rules.wasm.window import (
    WindowFacts,
    WindowParameters,
    default_window,
    schedule_window,
    window_facts,
    window_space,
)
from webmlc.schedule.schedule import Schedule

Form = Literal["fused", "apart", "left"]
"""How a stage's loops are scheduled. "fused": loops that step evenly through memory become one
loop. "apart": every loop stays. "left": no loop is scheduled, because primitives cannot prove the
steps."""


@dataclass(frozen=True, slots=True)
class StageFacts:
    """The kind of a stage: pointwise, or a fold by its facts; `None` if it stays as it is.

    `form`: the first form that the primitives accept.
    """

    block: str
    kind: FoldFacts | WindowFacts | Literal["pointwise"] | None
    form: Form


StageParameters = PointwiseParameters | FoldParameters | WindowParameters | NoParameters


def stage_facts(
    schedule: Schedule, machine: Cpu, fixed: int, blocks: tuple[str, ...] | None = None
) -> tuple[StageFacts, ...]:
    """The facts of the stages of a schedule (or of some `blocks`), under `fixed` loops that they
    share. The default steps are tried: the steps of earlier stages may unroll loops that a later
    stage shares, so that only the primitives can tell whether the later stage may fuse these loops.
    """
    trial = schedule.copy()
    stages: list[StageFacts] = []
    for block in blocks or tuple(schedule.blocks()):
        stage = StageFacts(block, _kind(trial, block, machine.lanes, fixed), "fused")
        stage, trial = _provable(trial, stage, machine, fixed)
        stages.append(stage)
    return tuple(stages)


def _provable(
    schedule: Schedule, stage: StageFacts, machine: Cpu, fixed: int
) -> tuple[StageFacts, Schedule]:
    """The stage in the first form that primitives accept, and the schedule with it."""
    forms: tuple[Form, ...] = ("fused", "apart")
    for form in forms:
        candidate, trial = StageFacts(stage.block, stage.kind, form), schedule.copy()
        try:
            schedule_stage(
                trial, candidate, default_stage(candidate, machine), machine.lanes, fixed
            )
        except ScheduleError:
            continue
        return candidate, trial
    return StageFacts(stage.block, stage.kind, "left"), schedule


def _kind(
    schedule: Schedule, block: str, lanes: int, fixed: int
) -> FoldFacts | WindowFacts | Literal["pointwise"] | None:
    if fold_of(schedule.block(block)) is None:
        return "pointwise"
    trial = schedule.copy()
    around = _put_around(trial, block, fixed)
    fold = fold_facts(trial, block, around, lanes)
    if fold is not None:
        return fold
    contiguous_loop(trial, block)
    return window_facts(trial, block, lanes, fixed)


def stage_space(stage: StageFacts, machine: Cpu) -> Product[Any]:
    """The parameters that a stage may have."""
    match stage.kind:
        case _ if stage.form == "left":
            return Space.of(NoParameters)
        case FoldFacts():
            return fold_space(stage.kind, machine)
        case WindowFacts():
            return window_space(stage.kind, machine)
        case "pointwise":
            return pointwise_space(machine.lanes)
    return Space.of(NoParameters)


def default_stage(stage: StageFacts, machine: Cpu) -> StageParameters:
    """The parameters that a stage has by default."""
    match stage.kind:
        case _ if stage.form == "left":
            return NoParameters()
        case FoldFacts():
            return default_fold(stage.kind, machine)
        case WindowFacts():
            return default_window(stage.kind, machine)
        case "pointwise":
            return DEFAULT_POINTWISE
    return NoParameters()


def schedule_stage(
    schedule: Schedule, stage: StageFacts, parameters: StageParameters, lanes: int, fixed: int
) -> None:
    """Schedule the loops of one stage, under `fixed` loops that it shares with others."""
    block = stage.block
    if isinstance(parameters, PointwiseParameters):
        schedule_pointwise(schedule, block, lanes, parameters, fixed, stage.form == "fused")
        return
    if stage.form == "left":
        return
    around = _put_around(schedule, block, fixed)
    if isinstance(parameters, FoldParameters):
        schedule_fold(schedule, block, lanes, parameters, around)
        return
    contiguous_loop(schedule, block)
    if isinstance(parameters, WindowParameters) and isinstance(stage.kind, WindowFacts):
        schedule_window(schedule, stage.kind, parameters, fixed)


def _put_around(schedule: Schedule, block: str, fixed: int) -> str | None:
    """Move the innermost shared loop that runs more than once right around a fold."""
    shared = schedule.loops(block)[:fixed]
    around = next((n for n in reversed(shared) if extent_of(schedule, n) != 1), None)
    if around is not None and around != shared[-1]:
        schedule.reorder(*shared[shared.index(around) + 1 :], around)
    return around


def stages_space(
    stages: tuple[StageFacts, ...], machine: Cpu
) -> Product[tuple[StageParameters, ...]]:
    """The parameters of several stages."""
    return Space.each([stage_space(stage, machine) for stage in stages])


def default_stages(stages: tuple[StageFacts, ...], machine: Cpu) -> tuple[StageParameters, ...]:
    """The parameters that several stages have by default."""
    return tuple(default_stage(stage, machine) for stage in stages)


def schedule_stages(
    schedule: Schedule,
    stages: tuple[StageFacts, ...],
    parameters: tuple[StageParameters, ...],
    lanes: int,
    fixed: int,
) -> None:
    """Schedule the loops of several stages, under `fixed` loops that they share."""
    for stage, chosen in zip(stages, parameters, strict=True):
        schedule_stage(schedule, stage, chosen, lanes, fixed)


@dataclass(frozen=True, slots=True)
class Facts:
    """A kernel of stages of any kind. `are_independent`: no stage reads another's results.

    The kernel has one set of parameters for each stage.
    """

    stages: tuple[StageFacts, ...]
    are_independent: bool
    lanes: int


def match(function: LoopFunction, machine: Cpu) -> Facts:
    """Matches every kernel."""
    stages = stage_facts(Schedule(function), machine, 0)
    return Facts(stages, not function.allocations, machine.lanes)


def build(schedule: Schedule, facts: Facts, parameters: tuple[StageParameters, ...]) -> None:
    """Schedule every stage."""
    schedule_stages(schedule, facts.stages, parameters, facts.lanes, 0)


STAGES: Rule[Facts, tuple[StageParameters, ...], Cpu] = Rule(
    "stages",
    match,
    lambda facts, machine: stages_space(facts.stages, machine),
    lambda facts, machine: default_stages(facts.stages, machine),
    build,
)
