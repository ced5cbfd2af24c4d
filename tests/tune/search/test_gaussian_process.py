"""The Gaussian process beside that of scikit-learn, and what it learns about leaves."""

from __future__ import annotations

from random import Random
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
from msgspec import Struct
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import Matern

from webmlc.schedule.rules.space import Space
from webmlc.tune.search import gaussian_process
from webmlc.tune.search.gaussian_process import GaussianProcess, expected_improvement


class Panel(Struct, frozen=True, tag="panel"):
    """A part that a member may have."""

    columns: int


class Tiles(Struct, frozen=True):
    """Parameters with an order, without an order, and of a part."""

    rows: int
    steps: int
    is_first: bool
    order: str
    packing: Panel | None


SPACE = Space.of(
    Tiles,
    rows=(1, 2, 4, 8, 16),
    steps=(1, 2, 4),
    is_first=(False, True),
    order=("ij", "ji", "z"),
    packing=Space.either(None, Space.of(Panel, columns=(8, 16, 32))),
)


def draws(count: int, seed: int) -> list[Tiles]:
    """Different random members."""
    generator = Random(seed)
    members: dict[Tiles, None] = {}
    while len(members) < count:
        members[SPACE.random(generator)] = None
    return list(members)


def columns(members: list[Tiles]) -> Any:
    """The members as numbers whose squared distances are those of their leaves: leaves without an
    order are one-hot.
    """
    rows = []
    for member in members:
        places = [(1, 2, 4, 8, 16).index(member.rows) / 4, (1, 2, 4).index(member.steps) / 2]
        order = [(member.order == name) / np.sqrt(2) for name in ("ij", "ji", "z")]
        tag = [float((member.packing is None) == kind) / np.sqrt(2) for kind in (True, False)]
        wide = 0.5 if member.packing is None else (8, 16, 32).index(member.packing.columns) / 2
        rows.append([*places, float(member.is_first), *order, *tag, wide])
    return np.array(rows)


def test_predictions_are_those_of_scikit_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gaussian_process, "SWEEPS", 0)  # the relevances stay 1
    members = draws(30, 0)
    other = [member for member in draws(30, 1) if member not in members]
    targets = np.random.default_rng(0).normal(size=len(members))
    process = GaussianProcess(SPACE, members, targets)
    means, deviations = process.predict(other)
    theirs = GaussianProcessRegressor(
        Matern(nu=2.5), alpha=gaussian_process.NOISES[1], optimizer=None
    )
    centred = targets - targets.mean()
    theirs.fit(columns(members), centred)
    expected, spread = theirs.predict(columns(other), return_std=True)
    np.testing.assert_allclose(means, expected + targets.mean(), rtol=1e-6, atol=1e-6)
    matrix = theirs.kernel_(columns(members)) + gaussian_process.NOISES[1] * np.eye(len(members))
    scale = np.sqrt(centred @ np.linalg.solve(matrix, centred) / len(members))
    np.testing.assert_allclose(deviations, scale * spread, rtol=1e-5, atol=1e-6)


def test_a_part_that_only_one_member_has_sets_them_apart() -> None:
    members = draws(80, 2)
    targets = np.array([float(member.packing is None) for member in members])
    other = [member for member in draws(80, 3) if member not in members]
    means, _ = GaussianProcess(SPACE, members, targets).predict(other)
    assert [mean > 0.5 for mean in means] == [member.packing is None for member in other]


def test_few_measurements_tell_which_leaf_matters() -> None:
    members = draws(24, 4)
    targets = np.array([0.5 * abs(np.log2(member.rows) - 2) for member in members])
    other = [member for member in draws(60, 5) if member not in members]
    process = GaussianProcess(SPACE, members, targets)
    means, deviations = process.predict(other)
    actual = [0.5 * abs(np.log2(member.rows) - 2) for member in other]
    assert np.abs(means - actual).max() < 0.1
    assert np.all(np.abs(means - actual) < 4 * deviations + 0.01)
    best = process.best(other, 4)
    assert len(set(best)) == 4
    assert {member.rows for member in best} <= {2, 4, 8}


def test_equal_times_are_no_reason_to_divide_by_nothing() -> None:
    members = draws(8, 6)
    process = GaussianProcess(SPACE, members, np.ones(8))
    means, deviations = process.predict(draws(8, 7))
    np.testing.assert_allclose(means, 1.0)
    assert np.all(np.isfinite(deviations))
    assert len(process.best(draws(20, 8), 30)) == 20


def test_the_expected_improvement_is_the_mean_of_what_is_gained() -> None:
    means, deviations = np.array([0.0, 1.0, -2.0]), np.array([1.0, 0.5, 0.1])
    improvements = expected_improvement(means, deviations, 0.25)
    for mean, deviation, improvement in zip(means, deviations, improvements, strict=True):
        normal = NormalDist(mean, deviation)
        samples = [normal.inv_cdf((number + 0.5) / 20_000) for number in range(20_000)]
        gained = np.mean([max(0.0, 0.25 - sample) for sample in samples])
        assert improvement == pytest.approx(gained, rel=1e-2, abs=1e-4)
