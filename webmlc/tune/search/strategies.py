"""Strategies: which members of a space to measure next.

    strategy = STRATEGIES["evolve"](space, seed=0)
    for member in strategy.ask(8):
        strategy.tell(member, time_relative_to_the_default)

`race` measures every member of a small space, in random order. `evolve` is a genetic algorithm
(`Evolution`), and `tpe` a tree of Parzen estimators, from optuna. `model` predicts the times of
many members before it measures a few (`model_search`). `random` is the baseline.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from random import Random
from typing import Any, Protocol

from webmlc.core.errors import UserError
from webmlc.schedule.rules.space import Space, leaves_of
from webmlc.tune.search.population import Population

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


class RandomSearch(Population):
    """Members drawn at random, each once."""

    def ask(self, count: int) -> list[Any]:
        """See `Strategy`."""
        members = self.drawn(count)
        self.asked.update(members)
        return members


class Evolution(Population):
    """A genetic algorithm: members near the fastest, and some random members."""

    def ask(self, count: int) -> list[Any]:
        """See `Strategy`."""
        members = self.strangers(count)
        members += self.children(count - len(members))
        members = list(dict.fromkeys([*members, *self.drawn(count)]))[:count]
        self.asked.update(members)
        return members


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
    """A sampler of optuna over the leaves of a space, as indices of categories.

    Optuna proposes any combination of leaves. Parts of violated constraints are drawn again, always
    in the same way for the same proposal. The proposal is told the time of the mended member
    (Whitley et al., "Lamarckian Evolution, the Baldwin Effect and Function Optimization", 1994).
    """

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
    "evolve": Evolution,
    "tpe": tpe,
    "random": RandomSearch,
}
"""Strategies that need nothing but the space, and a seed. `starter` adds `model`."""
