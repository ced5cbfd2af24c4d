"""Strategies: which members of a space to measure next.

    strategy = STRATEGIES["evolve"](space, seed=0)
    for member in strategy.ask(8):
        strategy.tell(member, time_relative_to_the_default)

`race` measures every member of a small space, in random order. `evolve` is the genetic algorithm
NSGA-II, and `tpe` a tree of Parzen estimators, both from optuna. `model` ranks many members by a
learned cost model before it measures a few (`ModelSearch`). `random` is the baseline.

Optuna proposes any combination of a space's leaves. Parts of violated constraints are drawn again,
always in the same way for the same proposal. The proposal is told the time of the mended member
(Whitley et al., "Lamarckian Evolution, the Baldwin Effect and Function Optimization", 1994).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from random import Random
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from webmlc.core.errors import UserError
from webmlc.schedule.rules.space import Space, leaves_of
from webmlc.tune.search.cost_model import FEWEST, CostModel, OnlineCostModel

POPULATION = 8
"""Members of a generation of `evolve`: as many as a trial. Of 24 searches of 64 measurements, with
times that trees learned from 1,042 schedules of a product, 17 came within 5 % of the schedule by
hand; with 16 members, 9 did (`benchmarks/program_search.py` measured the schedules, 2026-11-30)."""
RACE_MEMBERS = 96
"""A space with at most this many members is raced: all are measured in about twelve trials."""
ASKS = 8
"""The proposals for each member, at most: a search may propose members again that are measured or
about to be (chosen by hand)."""
FAILURE = 100.0
"""The relative time that stands for a disqualified member."""


class Strategy(Protocol):
    """Proposes members of a space, and learns their times."""

    def ask(self, count: int) -> list[Any]:
        """At most `count` members to measure; none if there is nothing left to try."""

    def tell(self, member: Any, ratio: float | None) -> None:
        """The time of a member relative to the default's; `None`: it is disqualified."""


class RandomSearch:
    """Members drawn at random, each once."""

    def __init__(self, space: Space[Any], seed: int) -> None:
        self.space, self.generator = space, Random(seed)
        self.asked: set[Any] = set()

    def ask(self, count: int) -> list[Any]:
        """See `Strategy`."""
        members: list[Any] = []
        for _ in range(ASKS * count):
            if len(members) == count:
                break
            try:
                member = self.space.random(self.generator)
            except ValueError:
                break
            if member not in self.asked:
                self.asked.add(member)
                members.append(member)
        return members

    def tell(self, member: Any, ratio: float | None) -> None:
        """See `Strategy`. A random search learns nothing."""


class Race:
    """Every member of a small space, in random order. Trials drop the hopeless."""

    def __init__(self, space: Space[Any], seed: int) -> None:
        members = list(itertools.islice(space.members(), 10 * RACE_MEMBERS))
        Random(seed).shuffle(members)
        self.members = iter(members)

    def ask(self, count: int) -> list[Any]:
        """See `Strategy`."""
        return list(itertools.islice(self.members, count))

    def tell(self, member: Any, ratio: float | None) -> None:
        """See `Strategy`. A race measures all members anyway."""


class OptunaSearch:
    """A sampler of optuna over the leaves of a space, as indices of categories."""

    def __init__(self, space: Space[Any], sampler: Any, seed: int) -> None:
        optuna = _optuna()
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.space, self.seed = space, seed
        self.study = optuna.create_study(sampler=sampler)
        self.leaves = dict(space.leaves())
        self.distributions: dict[str, Any] = {
            path: optuna.distributions.CategoricalDistribution(range(len(values)))
            for path, values in self.leaves.items()
        }
        self.pending: dict[Any, list[Any]] = {}

    def ask(self, count: int) -> list[Any]:
        """See `Strategy`."""
        members: list[Any] = []
        for _ in range(ASKS * count):
            if len(members) == count:
                break
            trial = self.study.ask(self.distributions)
            leaves = {path: v[trial.params[path]] for path, v in self.leaves.items()}
            proposal = self.space.at(leaves)
            try:
                member = self.space.mended(proposal, Random(f"{self.seed} {proposal}"))
            except ValueError:
                self.study.tell(trial, FAILURE)
                continue
            waiting = self.pending.setdefault(member, [])
            waiting.append(trial)
            if len(waiting) == 1:
                members.append(member)
        return members

    def tell(self, member: Any, ratio: float | None) -> None:
        """See `Strategy`."""
        score = FAILURE if ratio is None else ratio
        trials = self.pending.pop(member, None)
        for trial in trials or ():
            self.study.tell(trial, score)
        if trials is None:
            self._add(member, score)

    def _add(self, member: Any, score: float) -> None:
        """Add a member that the sampler did not propose, such as the default. Leaves of the sum's
        other records get arbitrary values.
        """
        optuna = _optuna()
        indices = dict.fromkeys(self.leaves, 0)
        indices |= {path: self.leaves[path].index(v) for path, v in leaves_of(member).items()}
        self.study.add_trial(
            optuna.create_trial(params=indices, distributions=self.distributions, value=score)
        )


def _optuna() -> Any:
    """The library of search algorithms. Raises `UserError` if it is not installed."""
    try:
        import optuna
    except ImportError as error:
        raise UserError(
            f"this strategy needs optuna ({error}); install it with pip install 'webmlc[tune]', "
            "or choose --strategy random"
        ) from error
    return optuna


def evolve(space: Space[Any], seed: int) -> Strategy:
    """NSGA-II (Deb et al., 2002) with one objective: a genetic algorithm with elitism."""
    optuna = _optuna()
    return OptunaSearch(
        space, optuna.samplers.NSGAIISampler(population_size=POPULATION, seed=seed), seed
    )


def tpe(space: Space[Any], seed: int) -> Strategy:
    """Tree-structured Parzen estimators (Bergstra et al., 2011)."""
    optuna = _optuna()
    return OptunaSearch(space, optuna.samplers.TPESampler(seed=seed, constant_liar=True), seed)


def is_small(space: Space[Any]) -> bool:
    """True if the space has few enough members to race."""
    if space.size > 100 * RACE_MEMBERS:
        return False
    return len(list(itertools.islice(space.members(), RACE_MEMBERS + 1))) <= RACE_MEMBERS


STRATEGIES: dict[str, Callable[[Space[Any], int], Strategy]] = {
    "race": Race,
    "evolve": evolve,
    "tpe": tpe,
    "random": RandomSearch,
}
"""Strategies that need nothing but the space, and a seed. `search` adds `model`."""


POOL = 200
"""Members that the model of parameters screens for each trial: 0.2 ms each (chosen by hand)."""
BUILT = 2
"""Candidates built for each one measured (chosen by hand: building one takes 0.3 s)."""
ELITE = 6
"""Fastest members that are mutated."""
MUTATIONS = (1, 1, 2, 3)
"""The numbers of leaves that a mutation changes, all equally likely (chosen by hand)."""
RANDOM_SHARE = 0.2
"""The share of the members that no model chose."""

Features = Callable[[Sequence[Any]], list[NDArray[np.float32] | None]]
"""The features of the code of some members: `None` if a member cannot be built, or is code that
was measured before."""


class ModelSearch:
    """A strategy over two learned models, which rank many members before a few are measured.

    Building a candidate takes longer than measuring a small candidate, so members are ranked twice.
    Trees that learned from the parameters of this task's measurements screen `POOL` members,
    without building any. If measuring takes longer than building, `BUILT` times the requested
    number of members are built. The cost model, which learned from the features of measured code,
    chooses among them. Else all built members are measured. An elite is mutated, as in an
    evolutionary search (Zheng et al., "Ansor", 2020). At first the elite is the default alone: half
    of all members near the default take less than 1.1 times its time, but half of the random
    members take twice its time or longer (measured on convolutions, lavapipe, 2026-11-27). Some
    members are always random, so that no mistake of a model lasts.
    """

    def __init__(
        self,
        space: Space[Any],
        seed: int,
        features: Features,
        model: OnlineCostModel,
        is_slow: Callable[[], bool] = lambda: True,
    ) -> None:
        """`model` is the cost model of this platform. `is_slow`: it takes longer to measure a
        member than to build it.
        """
        self.space, self.seed, self.features = space, seed, features
        self.generator = Random(seed)
        self.told: dict[Any, float] = {}
        self.asked: set[Any] = set()
        self.model, self.is_slow = model, is_slow

    def ask(self, count: int) -> list[Any]:
        """See `strategies.Strategy`."""
        finite = {member: ratio for member, ratio in self.told.items() if math.isfinite(ratio)}
        size = max(POOL, 4 * count)
        mutated = self._mutated(finite, size // 2)
        drawn = self._drawn(size - len(mutated))
        pool = list(dict.fromkeys((*mutated, *drawn)))
        if not pool:
            return []
        explored = min(len(pool), max(1, round(RANDOM_SHARE * count)))
        screened = pool  # mutated members come first
        if len(finite) >= FEWEST:
            model = _ParameterModel(self.space, finite, self.seed)
            screened = [pool[i] for i in np.argsort(model.predict(pool), kind="stable")]
        chosen = screened[: count - explored]
        if self.is_slow() and self.model.is_ready:
            chosen = self._ranked(screened[: BUILT * (count - explored)], count - explored)
        explorers = [m for m in drawn or pool if m not in chosen]
        chosen += self.generator.sample(explorers, min(explored, len(explorers)))
        self.asked.update(chosen)
        return chosen

    def tell(self, member: Any, ratio: float | None) -> None:
        """See `strategies.Strategy`."""
        self.asked.add(member)
        self.told[member] = math.inf if ratio is None else ratio

    def _mutated(self, told: Mapping[Any, float], count: int) -> list[Any]:
        """At most `count` members that were not asked for, and differ from the fastest members in
        one to three leaves.
        """
        elite = sorted(told, key=lambda member: told[member])[:ELITE]
        members = []
        for _ in range(count if elite else 0):
            member = self.generator.choice(elite)
            try:
                for _ in range(self.generator.choice(MUTATIONS)):
                    member = self.space.near(member, self.generator)
            except ValueError:
                continue
            if member not in self.asked:
                members.append(member)
        return members

    def _drawn(self, count: int) -> list[Any]:
        """At most `count` random members, which were not asked for."""
        members = []
        for _ in range(count):
            try:
                member = self.space.random(self.generator)
            except ValueError:
                break
            if member not in self.asked:
                members.append(member)
        return members

    def _ranked(self, members: list[Any], count: int) -> list[Any]:
        """The `count` members that the model of features expects to be fastest."""
        rows = zip(members, self.features(members), strict=True)
        built = [(member, row) for member, row in rows if row is not None]
        if not built:
            return []
        predicted = self.model.predict([row for _, row in built])
        return [built[i][0] for i in np.argsort(predicted, kind="stable")[:count]]


class _ParameterModel:
    """Trees that predict a member's time from the positions of its leaves among their choices. A
    leaf that a member does not have is at -1.
    """

    def __init__(self, space: Space[Any], told: Mapping[Any, float], seed: int) -> None:
        self.leaves = dict(space.leaves())
        self.model = CostModel(self._rows(told), list(told.values()), seed)

    def predict(self, members: Iterable[Any]) -> NDArray[np.float64]:
        return self.model.predict(self._rows(members))

    def _rows(self, members: Iterable[Any]) -> NDArray[np.float32]:
        rows = []
        for member in members:
            leaves = leaves_of(member)
            every = self.leaves.items()
            rows.append([v.index(leaves[path]) if path in leaves else -1 for path, v in every])
        return np.array(rows, np.float32)
