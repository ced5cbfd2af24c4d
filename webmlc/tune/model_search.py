"""Search with a cost model: rank many members before a few are measured.

Building a candidate takes longer than measuring a small one, so members are ranked twice. Trees
that learned from the parameters of this task's measurements screen `POOL` members, without building
any. Where measuring takes longer than building, `BUILT` times as many of those as are asked for are
built, and the cost model, which learned from the features of measured code, chooses among them.
Elsewhere those that are built are measured. An elite is mutated, as in an evolutionary
search (Zheng et al., "Ansor", 2020), and some members are always random, so that no mistake of a
model lasts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from random import Random

import numpy as np
from numpy.typing import NDArray

from webmlc.schedule.rules.space import Space, Value, Values
from webmlc.tune.cost_model import FEWEST, CostModel
from webmlc.tune.strategies import identity, mutate

POOL = 200
"""Members that the model of parameters screens for each trial: 0.2 ms each (chosen by hand)."""
BUILT = 2
"""Candidates built for each one measured (chosen by hand: building one takes 0.3 s)."""
ELITE = 6
"""Fastest members that are mutated."""
RANDOM_SHARE = 0.2
"""The share of the members that no model chose."""
RETRAIN = 8
"""New measurements after which the model of features learns again."""

Features = Callable[[Sequence[Values]], list[NDArray[np.float32] | None]]
"""The features of the code of some members: `None` where a member cannot be built, or is code that
was measured before."""


class ModelSearch:
    """A strategy over two learned models (see the module)."""

    def __init__(
        self,
        space: Space,
        seed: int,
        features: Features,
        examples: Sequence[tuple[NDArray[np.float32], float]] = (),
        is_slow: Callable[[], bool] = lambda: True,
    ) -> None:
        """`examples`: features and milliseconds of kernels that were measured on this platform.
        `is_slow`: it takes longer to measure a member than to build it.
        """
        self.space, self.seed, self.features = space, seed, features
        self.generator = Random(seed)
        self.told: dict[str, tuple[Values, float]] = {}
        self.asked: set[str] = set()
        self.examples = list(examples)
        self.is_slow = is_slow
        self.model: CostModel | None = None
        self.next_training = max(FEWEST, len(self.examples))

    def ask(self, count: int) -> list[dict[str, Value]]:
        """See `strategies.Strategy`."""
        finite = [m for m in self.told.values() if math.isfinite(m[1])]
        pool = self._pool(max(POOL, 4 * count), [values for values, _ in finite])
        if not pool:
            return []
        explored = min(len(pool), max(1, round(RANDOM_SHARE * count)))
        screened = pool
        if len(finite) >= FEWEST:
            model = _ParameterModel(self.space, finite, self.seed)
            screened = [pool[i] for i in np.argsort(model.predict(pool), kind="stable")]
        chosen = screened[: count - explored]
        if self.is_slow():
            chosen = self._ranked(screened[: BUILT * (count - explored)], count - explored)
        explorers = [m for m in pool if m not in chosen]
        chosen += self.generator.sample(explorers, min(explored, len(explorers)))
        self.asked.update(map(identity, chosen))
        return chosen

    def tell(self, values: Values, ratio: float | None) -> None:
        """See `strategies.Strategy`."""
        self.asked.add(identity(values))
        self.told[identity(values)] = (values, math.inf if ratio is None else ratio)

    def learn(self, features: NDArray[np.float32], milliseconds: float) -> None:
        """A measurement of this task, for the model of features."""
        self.examples.append((features, milliseconds))

    def _pool(self, size: int, told: list[Values]) -> list[dict[str, Value]]:
        """Members that were not asked for: half random, half mutated from the elite."""
        elite = sorted(told, key=lambda v: self.told[identity(v)][1])[:ELITE]
        pool: dict[str, dict[str, Value]] = {}
        for number in range(size):
            member: dict[str, Value] | None = None
            if elite and number % 2:
                member = mutate(self.space, self.generator.choice(elite), self.generator, number)
            else:
                try:
                    member = self.space.random(self.generator)
                except ValueError:
                    continue
            if member is not None and identity(member) not in self.asked:
                pool.setdefault(identity(member), member)
        return list(pool.values())

    def _ranked(self, members: list[dict[str, Value]], count: int) -> list[dict[str, Value]]:
        """The `count` members that the model of features expects to be fastest."""
        self._train()
        if self.model is None:
            return members[:count]
        rows = zip(members, self.features(members), strict=True)
        built = [(member, row) for member, row in rows if row is not None]
        if not built:
            return []
        predicted = self.model.predict(np.stack([row for _, row in built]))
        return [built[i][0] for i in np.argsort(predicted, kind="stable")[:count]]

    def _train(self) -> None:
        if len(self.examples) < self.next_training:
            return
        self.next_training = len(self.examples) + RETRAIN
        rows = np.stack([row for row, _ in self.examples])
        times = [milliseconds for _, milliseconds in self.examples]
        self.model = CostModel(rows, times, self.seed)


class _ParameterModel:
    """Trees that predict a member's time from the positions of its choices."""

    def __init__(self, space: Space, told: Sequence[tuple[Values, float]], seed: int) -> None:
        self.space = space
        times = [ratio for _, ratio in told]
        self.model = CostModel(self._rows([values for values, _ in told]), times, seed)

    def predict(self, members: Sequence[Values]) -> NDArray[np.float64]:
        return self.model.predict(self._rows(members))

    def _rows(self, members: Sequence[Values]) -> NDArray[np.float32]:
        rows = [[c.values.index(m[c.name]) for c in self.space.choices] for m in members]
        return np.array(rows, np.float32)
