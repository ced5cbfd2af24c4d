"""A fold along the contiguous axis whose epilogue is expensive: a polynomial, best computed in
vectors.

In: a fold and its epilogue. Out: the results of a row are folded one after the other, then the
epilogue runs in vectors along the row:

    for i, j: { for k: s += ...; y[i, j] = sigmoid(s) }   ->   for i: for j: for k: t[j] += ...
                                                                      for j0: y[i, j0 * 8 + (0..7)]
                                                                      =
                                                                          sigmoid(t[j0 * 8 + ...])
"""

from __future__ import annotations

from dataclasses import dataclass

from msgspec import Struct

from webmlc.core.machine import Cpu
from webmlc.loops.ir import LoopFunction
from webmlc.schedule.analysis import fold_of, is_vectorizable, takes_polynomial
from webmlc.schedule.rules.rule import Rule
from webmlc.schedule.rules.space import Product, Space
from webmlc.schedule.rules.tiling.nests import (
    accumulate_locally,
    epilogue_of,
    extent_of,
    innermost,
)
from webmlc.schedule.rules.wasm.fold import (
    FoldFacts,
    FoldParameters,
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
from webmlc.schedule.schedule import Schedule


@dataclass(frozen=True, slots=True)
class Facts:
    """A fold, and the loop of its epilogue that walks whole rows."""

    update: str
    row: str
    fold: FoldFacts
    lanes: int


class Parameters(Struct, frozen=True):
    """The parameters of the fold and of its epilogue."""

    fold: FoldParameters
    pointwise: PointwiseParameters


def match(function: LoopFunction, machine: Cpu) -> Facts | None:
    """Matches a fold with such an epilogue."""
    schedule = Schedule(function)
    update, *others = schedule.blocks()
    epilogue = epilogue_of(schedule.function, schedule.block(update))
    if fold_of(schedule.block(update)) is None or epilogue is None:
        return None
    if others != [epilogue.name] or not takes_polynomial(epilogue):
        return None
    loops = [loop for loop in schedule.loops(others[0]) if extent_of(schedule, loop) != 1]
    if len(loops) < 2:
        return None
    *_, row, column = loops
    size = extent_of(schedule, column)
    if size is None or size < machine.lanes:
        return None
    if not is_vectorizable(schedule.function, others[0], column, machine.lanes):
        return None
    trial = schedule.copy()
    around = _fold_rows(trial, update, row)[1]
    fold = fold_facts(trial, update, around, machine.lanes)
    return None if fold is None else Facts(update, row, fold, machine.lanes)


def space(facts: Facts, machine: Cpu) -> Product[Parameters]:
    """The parameters to choose from for the fold and its epilogue."""
    fold = fold_space(facts.fold, machine)
    return Space.of(Parameters, fold=fold, pointwise=pointwise_space(machine.lanes))


def default(facts: Facts, machine: Cpu) -> Parameters:
    """The default parameters of the fold and its epilogue."""
    return Parameters(default_fold(facts.fold, machine), DEFAULT_POINTWISE)


def build(schedule: Schedule, facts: Facts, parameters: Parameters) -> None:
    """Fold the results of a row, then run the epilogue along it."""
    result, around = _fold_rows(schedule, facts.update, facts.row)
    fixed = schedule.loops(result).index(facts.row) + 1
    schedule_fold(schedule, facts.update, facts.lanes, parameters.fold, around)
    schedule_pointwise(schedule, result, facts.lanes, parameters.pointwise, fixed)


ROW_EPILOGUE = Rule("row epilogue", match, space, default, build)


def _fold_rows(schedule: Schedule, update: str, row: str) -> tuple[str, str]:
    """Put a fold and a copy of its results under the loop over rows; returns the epilogue and the
    loop around the fold.
    """
    nest = accumulate_locally(schedule, update)
    assert nest.copy is not None
    schedule.compute_at(nest.copy, row)
    schedule.compute_at(update, innermost(schedule, nest.copy))
    return nest.result, innermost(schedule, nest.copy)
