"""A Gaussian process over the leaves of a space: it predicts the time of members from few
measurements, and says how sure it is.

    process = GaussianProcess(space, members, log2_of_times)
    means, deviations = process.predict(pool)
    process.best(pool, 8)                        # the members to measure in the next trial

Two members are the more alike the fewer leaves they differ in, and the less these leaves matter
(Rasmussen & Williams, "Gaussian Processes for Machine Learning", 2006, chapter 5.1: automatic
relevance determination). The measurements decide how much each leaf matters. `best` takes the
members whose expected improvement is highest, one after the other: a chosen member counts as
measured, with the predicted time (Ginsbourger et al., "Kriging is well-suited to parallelize
optimization", 2010: "kriging believer").

optuna's process needs torch, which is larger than webmlc and all it needs together.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from webmlc.schedule.rules.space import Space, Value, leaves_of

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]

RELEVANCES = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
"""The relevances that a leaf may have. At 1, the times of a leaf's first and last value correlate
by half."""
NOISES = (1e-4, 1e-3, 1e-2, 1e-1)
"""The shares of the variance that may be noise of the measurements."""
SWEEPS = 2
"""How often the relevance of each leaf is chosen again, at most (chosen by hand)."""
PRIOR = 0.02
"""The cost of a relevance far from 1, in nats for the square of its logarithm: few measurements are
no proof that a leaf does not matter (chosen by hand)."""
LEAST_VARIANCE = 1e-9
"""The variance of times that are all the same, so that nothing is divided by 0."""


class GaussianProcess:
    """The logarithms of the times of a space's members."""

    def __init__(self, space: Space[Any], members: Sequence[Any], targets: Vector) -> None:
        """Learn from the logarithms of some members' times."""
        self._leaves = {path: values for path, values in space.leaves() if len(values) > 1}
        self._places = self._places_of(members)
        self._mean = float(np.mean(targets))
        self._targets = targets - self._mean
        self._relevances = np.ones(len(self._leaves))
        self._noise = NOISES[1]
        self._learn_relevances()

    def predict(self, members: Sequence[Any]) -> tuple[Vector, Vector]:
        """The means and the standard deviations of some members' logarithms."""
        count = len(self._targets)
        correlation = self._correlation_with(members)
        means, deviations = self._predict(correlation, self._targets, list(range(count)))
        return means[count:], deviations[count:]

    def best(self, members: Sequence[Any], count: int) -> list[Any]:
        """The members to measure next, at most `count`."""
        correlation = self._correlation_with(members)
        targets, measured = self._targets, list(range(len(self._targets)))
        waiting = list(range(len(measured), len(correlation)))
        chosen: list[Any] = []
        while waiting and len(chosen) < count:
            means, deviations = self._predict(correlation, targets, measured)
            least = float(np.min(means[measured]))
            gains = expected_improvement(means[waiting], deviations[waiting], least)
            number = waiting.pop(int(np.argmax(gains)))
            chosen.append(members[number - len(self._targets)])
            targets = np.append(targets, means[number] - self._mean)
            measured.append(number)
        return chosen

    def _correlation_with(self, members: Sequence[Any]) -> Matrix:
        """The correlation of the measured members and of some more members with each other."""
        places = np.vstack([self._places, self._places_of(members)])
        total = np.zeros((len(places), len(places)))
        for relevance, squares in zip(self._relevances, self._squares(places), strict=True):
            total += relevance * squares
        return _correlation(total)

    def _predict(
        self, correlation: Matrix, targets: Vector, measured: Sequence[int]
    ) -> tuple[Vector, Vector]:
        """The means and the deviations of all members, from the times of the measured ones."""
        between = correlation[:, measured]
        factor = np.linalg.cholesky(between[measured] + self._noise * np.eye(len(measured)))
        scaled = np.linalg.solve(factor, targets)
        variance = max(LEAST_VARIANCE, float(scaled @ scaled) / len(scaled))
        means = between @ np.linalg.solve(factor.T, scaled) + self._mean
        explained = np.linalg.solve(factor, between.T)
        share = np.maximum(LEAST_VARIANCE, 1 - (explained**2).sum(axis=0))
        return means, np.sqrt(variance * share)

    def _places_of(self, members: Sequence[Any]) -> Matrix:
        """The places of the members' leaves, as [member, leaf]. The values of a leaf with an order
        lie from 0 to 1, and 0.5 stands for a leaf that a member does not have: the leaf with the
        tags tells these members apart. Other values are numbered, and -1 stands for no leaf.
        """
        places = np.empty((len(members), len(self._leaves)))
        for row, member in zip(places, members, strict=True):
            leaves = leaves_of(member)
            for number, (path, values) in enumerate(self._leaves.items()):
                scale = len(values) - 1 if _has_order(values) else 1
                missing = 0.5 if _has_order(values) else -1.0
                row[number] = values.index(leaves[path]) / scale if path in leaves else missing
        return places

    def _squares(self, places: Matrix) -> Iterator[Matrix]:
        """The squared distance of any two members in each leaf. Numbered values are 1 apart."""
        for column in places.T:
            yield np.minimum(1.0, (column[:, None] - column) ** 2)

    def _learn_relevances(self) -> None:
        """Choose the relevance of each leaf, and the noise, that make the measured times most
        likely, one after the other.
        """
        squares = np.array(list(self._squares(self._places)))
        total = np.tensordot(self._relevances, squares, 1)
        best = self._likelihood(total, self._noise)
        for _ in range(SWEEPS):
            before = best
            for number, relevance in product(range(len(squares)), RELEVANCES):
                current = self._relevances[number]
                other = total + (relevance - current) * squares[number]
                cost = PRIOR * (math.log(relevance) ** 2 - math.log(current) ** 2)
                if (score := self._likelihood(other, self._noise) - cost) > best:
                    self._relevances[number], total, best = relevance, other, score + cost
            for noise in NOISES:
                if (score := self._likelihood(total, noise)) > best:
                    self._noise, best = noise, score
            if best == before:
                break

    def _likelihood(self, squares: Matrix, noise: float) -> float:
        """The logarithm of the likelihood of the measured times, with the best scale."""
        factor = np.linalg.cholesky(_correlation(squares) + noise * np.eye(len(squares)))
        scaled = np.linalg.solve(factor, self._targets)
        variance = max(LEAST_VARIANCE, float(scaled @ scaled) / len(scaled))
        return -0.5 * len(scaled) * math.log(variance) - float(np.log(np.diag(factor)).sum())


def expected_improvement(means: Vector, deviations: Vector, least: float) -> Vector:
    """How much lower than `least` the values of normal distributions are expected to be (Jones et
    al., "Efficient Global Optimization of Expensive Black-Box Functions", 1998).
    """
    distance = (least - means) / deviations
    below = np.array([0.5 * math.erfc(-d / math.sqrt(2)) for d in distance])
    density = np.exp(-(distance**2) / 2) / math.sqrt(2 * math.pi)
    improvement: Vector = deviations * (distance * below + density)
    return improvement


def _correlation(squares: Matrix) -> Matrix:
    """The correlation of times at some squared distances (Matérn, of smoothness 5/2)."""
    distance = np.sqrt(5 * squares)
    correlation: Matrix = (1 + distance + distance**2 / 3) * np.exp(-distance)
    return correlation


def _has_order(values: Sequence[Value]) -> bool:
    """True if the values of a leaf have an order: numbers, or False and True."""
    return all(isinstance(value, int) for value in values)
