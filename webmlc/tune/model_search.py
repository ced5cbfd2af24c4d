"""Search with a cost model: rank many members before a few are measured.

Building a candidate takes longer than measuring a small candidate, so members are ranked twice.
Trees that learned from the parameters of this task's measurements screen `POOL` members, without
building any. If measuring takes longer than building, `BUILT` times the requested number of members
are built. The cost model, which learned from the features of measured code, chooses among them.
Else all built members are measured. An elite is mutated, as in an evolutionary search (Zheng et
al., "Ansor", 2020). At first the elite is the default alone: half of all members near the default
take less than 1.1 times its time, but half of the random members take twice its time or longer
(measured on convolutions, lavapipe, 2026-11-27). Some members are always random, so that no mistake
of a model lasts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from random import Random
from typing import Any

import numpy as np
from numpy.typing import NDArray

from webmlc.schedule.rules.space import Space, leaves_of
from webmlc.tune.cost_model import FEWEST, CostModel, OnlineCostModel

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
    """A strategy over two learned models (see the module)."""

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
