"""`check` allows one step of difference in nearly all elements of quantised outputs."""

from __future__ import annotations

import numpy as np
import onnx.parser

from webmlc.host.output_error import compare, quantisation_steps

MODEL = """
<ir_version: 8, opset_import: ["" : 17]>
g (uint8[2,3] x) => (float[3,2] a, uint8[2,3] b, float[2,3] c, float[2,3] d)
<float s = {0.25}, float t = {2.0}, uint8 zero = {7}> {
  real = DequantizeLinear(x, s, zero)
  a = Transpose <perm = [1, 0]> (real)
  b = QuantizeLinear(real, t, zero)
  named = Identity(t)
  c = DequantizeLinear(b, named, zero)
  d = Relu(c)
}
"""


def test_steps_are_the_scales_of_what_is_quantised() -> None:
    model = onnx.parser.parse_model(MODEL)
    assert quantisation_steps(model) == {"a": 0.25, "b": 1.0, "c": 2.0}


def test_a_step_off_passes_and_is_reported() -> None:
    expected = np.arange(10, dtype=np.float32) * np.float32(0.1)
    actual = expected + np.float32(0.1) * (np.arange(10) == 4)
    assert not compare("y", expected, actual, 1e-3).passed
    found = compare("y", expected, actual, 1e-3, step=0.1)
    assert found.passed
    assert found.within == 1.0
    assert round(found.steps or 0, 3) == 1.0


def test_two_steps_off_fail() -> None:
    expected = np.arange(100, dtype=np.uint8)
    actual = expected + np.uint8(2) * (expected == 4)
    found = compare("y", expected, actual, 1e-3, step=1.0)
    assert not found.passed
    assert found.within == 0.99
