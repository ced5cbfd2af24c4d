"""A package has one constant of each name, which all devices share."""

from __future__ import annotations

import numpy as np
import pytest

from webmlc.core.errors import InternalError
from webmlc.graph.ir import Function, Module
from webmlc.package.emit_code import join_constants

WEIGHTS = np.array([[1.5, np.nan], [-0.0, 2.0]], np.float32)


def module(**constants: np.ndarray) -> Module:
    return Module("m", {"main": Function("main", (), (), (), {}, constants)})


def test_equal_constants_of_two_devices_are_one() -> None:
    one = module(weights=WEIGHTS, scale=np.array(3))
    other = module(weights=WEIGHTS.copy(), none=np.zeros((0, 4)))
    joined = join_constants([one, other])
    assert sorted(joined) == ["none", "scale", "weights"]
    np.testing.assert_array_equal(joined["weights"], WEIGHTS)


@pytest.mark.parametrize(
    "other",
    [WEIGHTS.T, WEIGHTS.reshape(-1), WEIGHTS.astype(np.float64), np.abs(WEIGHTS)],
    ids=["values", "shape", "type", "sign of zero"],
)
def test_different_constants_of_one_name_are_refused(other: np.ndarray) -> None:
    with pytest.raises(InternalError, match="main: another constant has the name of weights"):
        join_constants([module(weights=WEIGHTS), module(weights=other)])
