"""Strategies: which members of a space to measure next.

    strategy = STRATEGIES["evolve"](space, seed=0)
    for values in strategy.ask(8):
        strategy.tell(values, time_relative_to_the_default)

`race` measures every member of a small space, in random order. `evolve` is the genetic algorithm
NSGA-II, and `tpe` a tree of Parzen estimators, both from optuna. `model` ranks many members by a
learned cost model before it measures a few (see `cost_model`). `random` is the baseline.

Constraints of a space are met by repair: the algorithms propose any combination of choices, and the
parameters of a violated constraint are drawn again, always in the same way for the same proposal
(Whitley et al., "Lamarckian Evolution, the Baldwin Effect and Function Optimization", 1994: the
proposal is told the time of the repaired member).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from random import Random
from typing import Any, Protocol

from webmlc.core.errors import UserError
from webmlc.schedule.rules.space import Space, Value, Values

POPULATION = 16
"""Members of a generation of `evolve`: 12 generations in 200 measurements."""
RACE_MEMBERS = 96
"""A space with at most this many members is raced: all are measured in about twelve trials."""
REPAIRS = 200
"""Draws of a violated constraint's parameters before a proposal is given up."""
FAILURE = 100.0
"""The relative time that stands for a member that is disqualified."""


class Strategy(Protocol):
    """Proposes members of a space, and learns their times."""

    def ask(self, count: int) -> list[dict[str, Value]]:
        """At most `count` members to measure; none if there is nothing left to try."""

    def tell(self, values: Values, ratio: float | None) -> None:
        """The time of a member relative to the default's; `None`: it is disqualified."""


class RandomSearch:
    """Members drawn at random, each once."""

    def __init__(self, space: Space, seed: int) -> None:
        self.space, self.generator = space, Random(seed)
        self.asked: set[str] = set()

    def ask(self, count: int) -> list[dict[str, Value]]:
        """See `Strategy`."""
        members: list[dict[str, Value]] = []
        for _ in range(20 * count):
            if len(members) == count:
                break
            try:
                values = self.space.random(self.generator)
            except ValueError:
                break
            key = identity(values)
            if key not in self.asked:
                self.asked.add(key)
                members.append(values)
        return members

    def tell(self, values: Values, ratio: float | None) -> None:
        """See `Strategy`. A random search learns nothing."""


class Race:
    """Every member of a small space, in random order. Trials drop the hopeless."""

    def __init__(self, space: Space, seed: int) -> None:
        members = list(itertools.islice(space.members(), 10 * RACE_MEMBERS))
        Random(seed).shuffle(members)
        self.members = iter(members)

    def ask(self, count: int) -> list[dict[str, Value]]:
        """See `Strategy`."""
        return list(itertools.islice(self.members, count))

    def tell(self, values: Values, ratio: float | None) -> None:
        """See `Strategy`. A race measures all members anyway."""


class OptunaSearch:
    """A sampler of optuna over the choices of a space, as indices of categories."""

    def __init__(self, space: Space, sampler: Any, seed: int) -> None:
        optuna = _optuna()
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.space, self.seed = space, seed
        self.study = optuna.create_study(sampler=sampler)
        self.distributions: dict[str, Any] = {
            choice.name: optuna.distributions.CategoricalDistribution(range(len(choice.values)))
            for choice in space.choices
        }
        self.pending: dict[str, list[Any]] = {}

    def ask(self, count: int) -> list[dict[str, Value]]:
        """See `Strategy`."""
        members = []
        for _ in range(count):
            trial = self.study.ask(self.distributions)
            proposal: dict[str, Value] = {
                choice.name: choice.values[trial.params[choice.name]]
                for choice in self.space.choices
            }
            values = repair(self.space, proposal, self.seed)
            if values is None:
                self.study.tell(trial, FAILURE)
                continue
            waiting = self.pending.setdefault(identity(values), [])
            waiting.append(trial)
            if len(waiting) == 1:
                members.append(values)
        return members

    def tell(self, values: Values, ratio: float | None) -> None:
        """See `Strategy`."""
        score = FAILURE if ratio is None else ratio
        trials = self.pending.pop(identity(values), None)
        for trial in trials or ():
            self.study.tell(trial, score)
        if trials is None:
            self._add(values, score)

    def _add(self, values: Values, score: float) -> None:
        """Add a member that the sampler did not propose, such as the default."""
        optuna = _optuna()
        indices = {c.name: c.values.index(values[c.name]) for c in self.space.choices}
        self.study.add_trial(
            optuna.create_trial(params=indices, distributions=self.distributions, value=score)
        )


def _optuna() -> Any:
    """The library of search algorithms. Raises `UserError` where it is not installed."""
    try:
        import optuna
    except ImportError as error:
        raise UserError(
            f"this strategy needs optuna ({error}); install it with pip install 'webmlc[tune]', "
            "or choose --strategy random"
        ) from error
    return optuna


def evolve(space: Space, seed: int) -> Strategy:
    """NSGA-II (Deb et al., 2002) with one objective: a genetic algorithm with elitism."""
    optuna = _optuna()
    return OptunaSearch(
        space, optuna.samplers.NSGAIISampler(population_size=POPULATION, seed=seed), seed
    )


def tpe(space: Space, seed: int) -> Strategy:
    """Tree-structured Parzen estimators (Bergstra et al., 2011)."""
    optuna = _optuna()
    return OptunaSearch(space, optuna.samplers.TPESampler(seed=seed, constant_liar=True), seed)


def repair(space: Space, values: Mapping[str, Value], seed: int) -> dict[str, Value] | None:
    """A member of the space near `values`: parameters of violated constraints are drawn again, in
    the same way whenever `values` are the same. `None` if no member is found.
    """
    generator = Random(f"{seed} {identity(values)}")
    choices = {choice.name: choice.values for choice in space.choices}
    repaired = dict(values)
    for _ in range(REPAIRS):
        violated = next((c for c in space.constraints if not c.is_met(repaired)), None)
        if violated is None:
            return repaired
        name = generator.choice(violated.names)
        repaired[name] = generator.choice(choices[name])
    return None


def mutate(space: Space, values: Values, generator: Random, seed: int) -> dict[str, Value] | None:
    """A member that differs from `values` in a parameter or two; `None` if none is found."""
    proposal = dict(values)
    for _ in range(generator.choice((1, 1, 2, 3))):
        choice = generator.choice(space.choices)
        proposal[choice.name] = generator.choice(choice.values)
    return repair(space, proposal, seed)


def identity(values: Values) -> str:
    """A text that is the same for the same values of a space. A search asks for it often."""
    return repr([values[name] for name in sorted(values)])


def is_small(space: Space) -> bool:
    """True if the space has few enough members to race."""
    if math.prod(len(choice.values) for choice in space.choices) > 100 * RACE_MEMBERS:
        return False
    return len(list(itertools.islice(space.members(), RACE_MEMBERS + 1))) <= RACE_MEMBERS


STRATEGIES: dict[str, Callable[[Space, int], Strategy]] = {
    "race": Race,
    "evolve": evolve,
    "tpe": tpe,
    "random": RandomSearch,
}
"""Strategies that need nothing but the space, and a seed. `search` adds `model`."""
