"""Test small integers in vectors of 32-bit lanes: the instructions emitted for them, and the
results.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import onnx.reference
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


def build_text(model: onnx.ModelProto, folder: Path) -> str:
    """Build the model's package in `folder` and return its WAT text."""
    webmlc.build(model, folder, target="wasm", emit_text=True)
    return (folder / "model.relaxed.wat").read_text()


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16"])
def test_bytes_are_widened_and_narrowed(dtype: str, tmp_path: Path) -> None:
    model = onnx.parser.parse_model(ADD.format(dtype=dtype))
    text = build_text(model, tmp_path / "package")
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


def test_an_integer_matrix_product_is_vectorised(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(PRODUCT)
    rng = np.random.default_rng(0)
    weights = onnx.numpy_helper.from_array(rng.integers(-128, 128, (32, 16)).astype(np.int8), "b")
    model.graph.initializer.append(weights)
    del model.graph.input[1]
    text = build_text(model, tmp_path / "package")
    assert "i32x4.dot_i16x8_s" in text
    words = b'"dtype":"I32","shape":[2,8,8],"data_offsets":[0,512]'  # a byte for each weight
    assert words in (tmp_path / "package" / "weights.safetensors").read_bytes()
    assert "i8x16.narrow_i16x8_u" in text
    inputs = {"a": rng.integers(0, 256, (48, 32)).astype(np.uint8)}
    # Not onnxruntime: on x86 without VNNI, its products of unsigned and signed bytes saturate.
    (expected,) = onnx.reference.ReferenceEvaluator(model).run(None, inputs)
    actual = load(tmp_path / "package", "wasm").run(inputs)["y"]
    np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize(
    ("kernel", "attributes"),
    [
        ((3, 3), {"pads": [1, 1, 1, 1]}),
        ((5, 5), {"pads": [2, 2, 2, 2], "strides": [2, 2]}),
        ((3, 2), {"dilations": [2, 1]}),
    ],
)
@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_a_depthwise_convolution_of_bytes(dtype, kernel, attributes, tmp_path: Path) -> None:
    """Four taps of a column form a word, which three instructions per vector put together."""
    rng = np.random.default_rng(0)
    weights = rng.integers(-128, 128, (38, 1, *kernel)).astype(np.int8)
    kind = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    node = onnx.helper.make_node("ConvInteger", ["x", "w", "z"], ["y"], group=38, **attributes)
    graph = onnx.helper.make_graph(
        [node],
        "g",
        [onnx.helper.make_tensor_value_info("x", kind, (2, 38, 9, 11))],
        [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.INT32, list("abcd"))],
        [
            onnx.numpy_helper.from_array(weights, "w"),
            onnx.numpy_helper.from_array(np.array(3, dtype), "z"),
        ],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)])
    assert build_text(model, tmp_path / "package").count("i8x16.shuffle") >= 3
    limits = np.iinfo(dtype)
    inputs = {"x": rng.integers(limits.min, limits.max + 1, (2, 38, 9, 11)).astype(dtype)}
    (expected,) = onnx.reference.ReferenceEvaluator(model).run(None, inputs)
    for features in ("relaxed", "simd128"):
        actual = load(tmp_path / "package", "wasm", features=features).run(inputs)["y"]
        np.testing.assert_array_equal(actual, expected, err_msg=features)
