"""A case of the regressions, and the arrays that cases are written with.

A case is a model as ONNX text, and runs: the right kind of verdict, and the inputs.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Runs = list[tuple[str, dict[str, Any]]]
Cases = dict[str, tuple[str, Runs]]

INF, NAN = np.inf, np.nan
YES, NO = np.array(True), np.array(False)


def floats(*numbers: float) -> np.ndarray:
    return np.array(numbers, np.float32)


def ones(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


def number(value: float) -> np.ndarray:
    return np.array(value, np.float32)


def integers(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)
