"""Kernels that write slabs of a constant around their results: a result and its padding.

In: a naive function in which some nests store a constant. Out: the schedule of the nests that
compute, as if they were alone, then the schedule of the slabs.

    conv, relu = ...                            for row, tile: conv, relu -> out[1:57, 1:57]
    out[0], out[57], out[:, 0], ... = 0    ->   for vector: out[0] = 0; ...
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from msgspec import Struct

from webmlc.core.machine import Cpu
from webmlc.loops.ir import LoopFunction
from webmlc.schedule.rules.rule import AnyRule, Match, Rule, match_rules
from webmlc.schedule.rules.space import Product, Space
from webmlc.schedule.rules.tiling.slabs import results_and_fills
from webmlc.schedule.schedule import Schedule


@dataclass(frozen=True, slots=True)
class Facts:
    """The nests that compute and the nests that fill, as two kernels."""

    result: Match
    fills: Match


class Parameters(Struct, frozen=True):
    """The parameters of both kernels' rules."""

    result: Any
    fills: Any


def slabs(rules: tuple[AnyRule, ...]) -> Rule[Facts, Parameters, Cpu]:
    """The rule for kernels with slabs: other `rules` schedule the two halves."""

    def match(function: LoopFunction, machine: Cpu) -> Facts | None:
        halves = results_and_fills(function)
        if halves is None:
            return None
        result, filled = (match_rules(rules, half, machine) for half in halves)
        return None if result is None or filled is None else Facts(result, filled)

    return Rule("slabs", match, space, default, build)


def space(facts: Facts, _machine: Cpu) -> Product[Parameters]:
    """The parameters to choose from for both kernels."""
    return Space.of(Parameters, result=facts.result.space(), fills=facts.fills.space())


def default(facts: Facts, _machine: Cpu) -> Parameters:
    """The default parameters of both kernels."""
    return Parameters(facts.result.default(), facts.fills.default())


def build(schedule: Schedule, facts: Facts, parameters: Parameters) -> None:
    """Follow the steps of one schedule, then the steps of the other."""
    schedule.follow(facts.result.build(parameters.result).trace)
    schedule.follow(facts.fills.build(parameters.fills).trace)
