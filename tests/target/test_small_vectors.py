"""Small integers in vectors of 32-bit lanes: what is emitted for them, and that it is right."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest

import webmlc
from webmlc.host.load import load

ADD = """
<ir_version: 10, opset_import: ["" : 21]>
g ({dtype}[3,37] a, {dtype}[3,37] b) => ({dtype}[3,37] y)
<float s = {{0.1}}, float t = {{0.23}}, float u = {{0.31}}, {dtype} zero = {{7}}> {{
  x = DequantizeLinear(a, s, zero)
  w = DequantizeLinear(b, t, zero)
  z = Add(x, w)
  y = QuantizeLinear(z, u, zero)
}}
"""

PRODUCT = """
<ir_version: 10, opset_import: ["" : 21]>
g (uint8[48,32] a, int8[32,16] b) => (uint8[48,16] y)
<float s = {0.1}, float u = {3.0}, uint8 zero = {7}, int8 none = {0}> {
  x = DequantizeLinear(a, s, zero)
  w = DequantizeLinear(b, s, none)
  z = MatMul(x, w)
  y = QuantizeLinear(z, u, zero)
}
"""


def built(model: onnx.ModelProto, folder: Path) -> str:
    """The WAT text of the model's package in `folder`."""
    webmlc.build(model, folder, target="wasm", emit_text=True)
    return (folder / "model.relaxed.wat").read_text()


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16"])
def test_bytes_are_widened_and_narrowed(dtype: str, tmp_path: Path) -> None:
    model = onnx.parser.parse_model(ADD.format(dtype=dtype))
    text = built(model, tmp_path / "package")
    store = "v128.store32_lane" if dtype.endswith("8") else "v128.store64_lane"
    assert store in text
    limits = np.iinfo(dtype)
    rng = np.random.default_rng(0)
    inputs = {
        name: rng.integers(limits.min, limits.max + 1, (3, 37)).astype(dtype) for name in "ab"
    }
    session = onnxruntime.InferenceSession(model.SerializeToString())
    actual = load(tmp_path / "package", "wasm").run(inputs)["y"]
    np.testing.assert_array_equal(actual, session.run(None, inputs)[0])


def test_an_integer_product_is_vectorised(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(PRODUCT)
    rng = np.random.default_rng(0)
    weights = onnx.numpy_helper.from_array(rng.integers(-128, 128, (32, 16)).astype(np.int8), "b")
    model.graph.initializer.append(weights)
    del model.graph.input[1]
    text = built(model, tmp_path / "package")
    assert "i32x4.dot_i16x8_s" in text
    assert "i16x8.extend_low_i8x16_s" in text  # weights stay bytes
    assert "i8x16.narrow_i16x8_u" in text
    inputs = {"a": rng.integers(0, 256, (48, 32)).astype(np.uint8)}
    session = onnxruntime.InferenceSession(model.SerializeToString())
    actual = load(tmp_path / "package", "wasm").run(inputs)["y"]
    np.testing.assert_array_equal(actual, session.run(None, inputs)[0])
