"""A learned cost model: it predicts a kernel's time from the features of its code.

    model = CostModel(records)
    model.predict(matrix_of_features)          # float64 [n], the log2 of milliseconds of a call

    model = OnlineCostModel()
    model.learn(features, milliseconds)        # while kernels are measured
    if model.is_ready:
        model.predict(rows_of_features)

Gradient-boosted trees (lightgbm) learn log2(milliseconds) from `features`, as in TVM's MetaSchedule
(Shao et al., "Tensor Program Optimization with Probabilistic Programs", 2022). Times differ by
orders of magnitude between kernels, so the trees learn how far a time is from a linear fit to the
features.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from webmlc.core.errors import UserError

FEWEST = 12
"""Measurements below which there is nothing to learn."""
TREES = 120
"""Boosting rounds: more did not rank better on kernels left out (`benchmarks/cost_model.py`)."""

GROWTH = 1.2
"""A model learns again from all measurements when their number has grown by this factor (chosen by
hand: training takes 0.1 s)."""

Matrix = NDArray[np.float32]


class CostModel:
    """The times of kernels on one platform."""

    def __init__(self, features: Matrix, milliseconds: Sequence[float], seed: int = 0) -> None:
        """Learn from measurements: features [n, len(NAMES)] and the milliseconds of each.

        Raises `UserError` if lightgbm is not installed.
        """
        try:
            import lightgbm
        except (ImportError, OSError) as error:  # OSError: the library of OpenMP is missing
            advice = "install it with pip install 'webmlc[tune]', or choose another --strategy"
            raise UserError(f"the strategy `model` needs lightgbm ({error}); {advice}") from error
        targets = np.log2(np.array(milliseconds, np.float64))
        self._weights = np.linalg.lstsq(_with_one(features), targets, rcond=1e-3)[0]
        residuals = targets - _with_one(features) @ self._weights
        parameters = {
            "objective": "regression",
            "num_leaves": 15,
            "min_data_in_leaf": max(2, min(10, len(targets) // 10)),
            "learning_rate": 0.1,
            "num_threads": 1,
            "seed": seed,
            "deterministic": True,
            "verbosity": -1,
        }
        data = lightgbm.Dataset(features, residuals)
        self._booster: Any = lightgbm.train(parameters, data, num_boost_round=TREES)

    def predict(self, features: Matrix) -> NDArray[np.float64]:
        """The log2 of the milliseconds of each row's kernel."""
        baseline = _with_one(features) @ self._weights
        predicted: NDArray[np.float64] = baseline + self._booster.predict(features)
        return predicted


class OnlineCostModel:
    """A cost model that learns while the kernels of a platform are measured. Their searches share
    the model: measurements of one kernel rank the candidates of another kernel.
    """

    def __init__(
        self, examples: Iterable[tuple[NDArray[np.float32], float]] = (), seed: int = 0
    ) -> None:
        """`examples`: features and milliseconds of kernels that were measured before."""
        self.examples, self.seed = list(examples), seed
        self._model: CostModel | None = None
        self._next_training = FEWEST

    def learn(self, features: NDArray[np.float32], milliseconds: float) -> None:
        """Take in a measurement."""
        self.examples.append((features, milliseconds))

    @property
    def is_ready(self) -> bool:
        """True if enough was measured to learn from."""
        return len(self.examples) >= FEWEST

    def predict(self, features: Sequence[NDArray[np.float32]]) -> NDArray[np.float64]:
        """The log2 of the milliseconds of one kernel or more, when the model is ready."""
        if self._model is None or len(self.examples) >= self._next_training:
            rows = np.stack([row for row, _ in self.examples])
            self._model = CostModel(rows, [ms for _, ms in self.examples], self.seed)
            self._next_training = math.ceil(GROWTH * len(self.examples))
        return self._model.predict(np.stack(features))


def _with_one(features: Matrix) -> NDArray[np.float64]:
    return np.concatenate([features.astype(np.float64), np.ones((len(features), 1))], axis=1)
