"""A result no farther from the reference than the reference from itself is inconclusive."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.graph.graphs import parsed
from webmlc.core.errors import InputError
from webmlc.host.check import check_model
from webmlc.host.check_options import CheckOptions
from webmlc.host.output_error import compare, with_spread
from webmlc.host.reference import run_reference
from webmlc.pipeline import build_package


def test_what_the_reference_differs_by_itself_is_inconclusive() -> None:
    one = np.array([1.0, 0.5], np.float32)
    near, far = one + np.float32(0.002), one + np.float32(0.003)
    error = compare("y", one, one + np.float32(0.01), 1e-3)
    assert error.verdict == "failed"
    assert with_spread(error, one, far).verdict == "inconclusive"
    refused = with_spread(error, one, near)
    assert refused.verdict == "failed"
    assert refused.spread is not None and abs(refused.spread - 0.002) < 1e-6


def test_integers_are_exact_whatever_the_reference_does() -> None:
    one = np.array([1, 2])
    error = compare("y", one, one + 1, 1e-3)
    assert with_spread(error, one, one + 5).verdict == "failed"


def test_an_output_may_agree_with_either_reference(tmp_path: Path) -> None:
    """onnxruntime's sigmoid of -17 has hardly a digit right, numpy's has all."""
    model = parsed("""g (float[64] x) => (float[64] y) {
        c = Constant<value_float = 20.0>()
        z = Sub(x, c)
        y = Sigmoid(z)
    }""")
    path = tmp_path / "model.onnx"
    onnx.save(model, path)
    x = np.linspace(-1, 3, 64, dtype=np.float32)
    exact = 1 / (1 + np.exp(20 - x.astype(np.float64)))
    off, who = run_reference(path, {"x": x})
    assert who == "onnxruntime" and not compare("y", exact, off["y"], 1e-3).passed
    result = check_model(path, build_package, CheckOptions(examples={"x": x}))
    assert result.verdict == "passed" and result.rows()[0]["against"] == "onnx.reference"
    assert result.notes() == ["y: onnxruntime differs, and webmlc agrees with onnx.reference."]


def test_inputs_that_no_reference_takes_are_the_users(tmp_path: Path) -> None:
    model = parsed("""g (float[4] x, int64[1] n) => (float[m] y) { y = Reshape(x, n) }""")
    path = tmp_path / "model.onnx"
    onnx.save(model, path)
    inputs = {"x": np.zeros(4, np.float32), "n": np.array([3])}
    with pytest.raises(InputError, match=r"(?s)--dim.*onnxruntime: .*onnx.reference: "):
        run_reference(path, inputs)
