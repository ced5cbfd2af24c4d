"""The strategy `model`: predict the times of many members before a few are measured.

    strategy = ModelSearch(space, seed, features, model, is_slow)
    for member in strategy.ask(8):
        strategy.tell(member, time_relative_to_the_default)

A Gaussian process learns from the parameters of a task's measurements, and a cost model from the
code of all kernels of a platform.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from webmlc.schedule.rules.space import Space
from webmlc.tune.search.cost_model import OnlineCostModel
from webmlc.tune.search.gaussian_process import GaussianProcess
from webmlc.tune.search.population import FIRST_MEMBERS, Population

POOL = 200
"""Members whose times are predicted for each trial: 0.2 ms each (chosen by hand)."""
MOST_LEARNED = 128
"""The fastest measurements, from which the process learns: its work grows with their cube."""
SLOWEST = 2.0
"""Members that take longer than this multiple of the fastest time count as members of this time.
The process then tells fast members apart: 27 of 30 searches of 64 measurements came within 5 % of a
schedule by hand, but 7 of 12 with a limit of 8 (see `population.MUTATIONS`)."""
BUILT = 2
"""Candidates built for each one measured (chosen by hand: building one takes 0.3 s)."""

Features = Callable[[Sequence[Any]], list[NDArray[np.float32] | None]]
"""The features of the code of some members: `None` if a member cannot be built, or is code that
was measured before."""


class ModelSearch(Population):
    """A strategy over two learned models, which rank many members before a few are measured.

    Building a candidate takes longer than measuring a small candidate, so members are ranked twice.
    The Gaussian process screens a pool of `POOL` members, without building any. If measuring takes
    longer than building, `BUILT` times the requested number of members are built, and the cost
    model chooses among them. Else all built members are measured. Half of the pool are children of
    the fastest members, as in an evolutionary search (Zheng et al., "Ansor", 2020). The other
    members are random.

    The first members are near the default, if the strategy was told its time: half of all members
    near the default take less than 1.1 times its time, but half of the random members take twice
    its time or longer (measured on convolutions, lavapipe, 2026-11-27).
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
        super().__init__(space, seed)
        self.features, self.model, self.is_slow = features, model, is_slow

    def ask(self, count: int) -> list[Any]:
        """See `strategies.Strategy`."""
        size = max(POOL, 4 * count)
        strangers = self.strangers(count)
        children = self.children(size // 2)
        pool = dict.fromkeys((*children, *self.drawn(size - len(children))))
        for stranger in strangers:
            pool.pop(stranger, None)
        chosen = [*self._best([*pool], count - len(strangers)), *strangers]
        self.asked.update(chosen)
        return chosen

    def _best(self, pool: list[Any], count: int) -> list[Any]:
        """At most `count` members of a pool, as the models choose."""
        if self.is_slow() and self.model.is_ready:
            return self._ranked(self._screened(pool, BUILT * count), count)
        return self._screened(pool, count)

    def _screened(self, pool: list[Any], count: int) -> list[Any]:
        """The `count` members of a pool whose improvement of the best time is expected to be the
        largest. The pool is in the order that counts before anything is known.
        """
        times = self.times
        if len(times) < FIRST_MEMBERS:
            return pool[:count]
        fastest = sorted(times, key=lambda member: times[member])[:MOST_LEARNED]
        ratios = np.array([times[member] for member in fastest], np.float64)
        targets = np.log2(np.minimum(ratios, SLOWEST * ratios[0]))
        return GaussianProcess(self.space, fastest, targets).best(pool, count)

    def _ranked(self, members: list[Any], count: int) -> list[Any]:
        """The `count` members that the model of features expects to be fastest."""
        rows = zip(members, self.features(members), strict=True)
        built = [(member, row) for member, row in rows if row is not None]
        if not built:
            return []
        predicted = self.model.predict([row for _, row in built])
        return [built[i][0] for i in np.argsort(predicted, kind="stable")[:count]]
