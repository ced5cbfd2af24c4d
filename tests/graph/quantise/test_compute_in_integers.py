"""Quantised graphs: the operators that they become, and results equal to onnxruntime's."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper
from onnxruntime.quantization import QuantFormat, QuantType

import webmlc
from tests.graph.graphs import parsed
from tests.graph.quantised import SHAPE, quantised_cnn
from webmlc.core.dtypes import DType
from webmlc.core.machine import Features
from webmlc.frontend.read_model import read_model
from webmlc.graph.fuse.fuse import fuse
from webmlc.graph.infer.infer_shapes import infer_shapes
from webmlc.graph.infer.normalise import normalise
from webmlc.graph.ir import Module
from webmlc.graph.layout.choose_layouts import choose_layouts
from webmlc.graph.quantise.compute_in_integers import QUANTISED_CONSTANTS, compute_in_integers
from webmlc.graph.quantise.duplicate_dequantisation import duplicate_dequantisation
from webmlc.graph.simplify.constants import fold_constants
from webmlc.graph.simplify.simplify_graph import simplify_graph
from webmlc.host.load import load


def in_integers(model: onnx.ModelProto) -> Module:
    typed = infer_shapes(normalise(read_model(model)))
    return compute_in_integers(simplify_graph(fold_constants(typed, keep=QUANTISED_CONSTANTS)))


def operators(graph: Module) -> list[str]:
    return [node.op for node in graph.main.nodes]


def test_all_products_of_a_quantised_network_are_integer_products(tmp_path: Path) -> None:
    graph = in_integers(quantised_cnn(tmp_path))
    names = operators(graph)
    assert names.count("ConvInteger") == 5
    assert names.count("MatMulInteger") == 1
    assert not {"Conv", "Gemm", "MatMul"} & set(names)
    floats = [a for a in graph.main.constants.values() if a.dtype == np.float32]
    assert all(array.size <= 24 for array in floats)  # scales; the weights are integers


def test_a_convolution_is_scaled_once() -> None:
    graph = in_integers(
        parsed("""
g (uint8[1,2,4,4] x) => (uint8[1,2,3,3] y)
<float s = {0.5}, float t = {0.25}, float u = {2.0}, uint8 zero = {7}, uint8 lowest = {0},
 int8[2,2,2,2] w = {1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16}> {
  a = DequantizeLinear(x, s, zero)
  b = DequantizeLinear(w, t)
  c = Conv(a, b)
  d = Relu(c)
  y = QuantizeLinear(d, u, lowest)
}
""")
    )
    assert operators(graph) == ["ConvInteger", "Cast", "Mul", "QuantizeLinear"]
    factor = graph.main.constants[graph.main.nodes[2].inputs[1]]
    assert factor.item() == 0.5 * 0.25 / 2


def test_operators_that_select_elements_move_integers() -> None:
    graph = in_integers(
        parsed("""
g (uint8[2,3] x) => (uint8[3,2] y) <float s = {0.5}, uint8 zero = {7}> {
  a = DequantizeLinear(x, s, zero)
  b = Transpose <perm = [1, 0]> (a)
  y = QuantizeLinear(b, s, zero)
}
""")
    )
    assert operators(graph) == ["Transpose"]


def test_values_with_other_parameters_are_requantised() -> None:
    graph = in_integers(
        parsed("""
g (uint8[2,3] x) => (uint8[2,3] y)
<float s = {0.5}, float t = {0.25}, uint8 zero = {7}, uint8 other = {8}> {
  a = DequantizeLinear(x, s, zero)
  b = QuantizeLinear(a, s, other)
  c = DequantizeLinear(b, s, other)
  y = QuantizeLinear(c, t, other)
}
""")
    )
    assert operators(graph) == ["DequantizeLinear", "QuantizeLinear"] * 2


@pytest.mark.parametrize(
    ("weights", "form", "per_channel"),
    [
        (QuantType.QInt8, QuantFormat.QDQ, True),
        (QuantType.QUInt8, QuantFormat.QDQ, False),
        (QuantType.QInt8, QuantFormat.QOperator, True),
    ],
)
def test_quantised_network_equals_onnxruntime(
    weights: QuantType, form: QuantFormat, per_channel: bool, tmp_path: Path
) -> None:
    """Every element within one step of the output's quantisation, nearly all of them equal.

    On x86 without VNNI, onnxruntime's products of unsigned and signed bytes saturate by default;
    the option makes them exact. (onnx.reference has no QLinearAdd.)
    """
    model = quantised_cnn(tmp_path, weights, form, per_channel)
    x = {"x": np.random.default_rng(5).standard_normal(SHAPE).astype(np.float32)}
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.x64quantprecision", "1")
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    (expected,) = session.run(None, x)
    webmlc.build(tmp_path / "quantised.onnx", tmp_path / "package", target="wasm")
    actual = load(tmp_path / "package", "wasm").run(x)["y"]
    (last,) = [node for node in model.graph.node if "y" in node.output]
    constants = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    steps = np.abs(actual - expected) / constants[last.input[1]]
    assert steps.max() < 1.01
    assert np.mean(steps < 0.5) >= 0.8


def test_sums_and_means_of_integers_round_like_onnxruntime(tmp_path: Path) -> None:
    """Add all pairs of bytes, and take the mean of a feature map. Only a sum between two steps
    differs.
    """
    model = parsed("""
g (uint8[1,256,1,1] a, uint8[1,1,16,16] b) => (uint8[1,256,16,16] y, uint8[1,256,1,1] m)
<float r = {0.0234}, float s = {0.0171}, float t = {0.0301}, float u = {0.0117},
 uint8 i = {117}, uint8 j = {140}, uint8 k = {96}, uint8 l = {131}> {
  c = DequantizeLinear(a, r, i)
  d = DequantizeLinear(b, s, j)
  e = Add(c, d)
  y = QuantizeLinear(e, t, k)
  f = DequantizeLinear(y, t, k)
  h = GlobalAveragePool(f)
  m = QuantizeLinear(h, u, l)
}
""")
    onnx.save(model, tmp_path / "model.onnx")
    graph = in_integers(model).main.nodes
    assert "GlobalAveragePool" not in [n.op for n in graph]
    every = np.arange(256, dtype=np.uint8)
    feeds = {"a": every.reshape(1, 256, 1, 1), "b": every.reshape(1, 1, 16, 16)}
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    sums, means = session.run(None, feeds)
    webmlc.build(tmp_path / "model.onnx", tmp_path / "package", target="wasm")
    actual = load(tmp_path / "package", "wasm").run(feeds)
    assert np.mean(actual["y"] == sums) > 0.9999
    assert np.abs(actual["y"].astype(int) - sums).max() <= 1
    np.testing.assert_array_equal(actual["m"], means)


@pytest.fixture(scope="module")
def close_sums(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A package that adds quantised bytes; of all pairs, 20 round otherwise without an fma."""
    folder = tmp_path_factory.mktemp("close_sums")
    model = parsed("""
g (uint8[1,256,1,1] a, uint8[1,1,16,16] b) => (uint8[1,256,16,16] y)
<float r = {0.0436}, float s = {0.0065}, float t = {0.0378},
 uint8 i = {117}, uint8 j = {140}, uint8 k = {96}> {
  c = DequantizeLinear(a, r, i)
  d = DequantizeLinear(b, s, j)
  e = Add(c, d)
  y = QuantizeLinear(e, t, k)
}
""")
    onnx.save(model, folder / "model.onnx")
    webmlc.build(folder / "model.onnx", folder / "package", target="both")
    return folder


@pytest.mark.parametrize(
    ("device", "features"), [("wasm", "relaxed"), ("wasm", "simd128"), ("webgpu", "relaxed")]
)
def test_integer_sums_are_rounded_once_for_each_operand(
    device: Literal["wasm", "webgpu"], features: Features, close_sums: Path
) -> None:
    every = np.arange(256, dtype=np.uint8)
    feeds = {"a": every.reshape(1, 256, 1, 1), "b": every.reshape(1, 1, 16, 16)}
    (expected,) = onnxruntime.InferenceSession(close_sums / "model.onnx").run(None, feeds)
    actual = load(close_sums / "package", device, features=features).run(feeds)["y"]
    np.testing.assert_array_equal(actual, expected)


def test_a_sum_keeps_a_zero_point_known_only_at_run_time(tmp_path: Path) -> None:
    model = parsed("""
g (uint8[2,3] a, uint8[2,3] b, uint8 k) => (uint8[2,3] y)
<float r = {0.0234}, float s = {0.0171}, float t = {0.0301}, uint8 i = {117}> {
  c = DequantizeLinear(a, r, i)
  d = DequantizeLinear(b, s, i)
  e = Add(c, d)
  y = QuantizeLinear(e, t, k)
}
""")
    onnx.save(model, tmp_path / "model.onnx")
    rng = np.random.default_rng(1)
    feeds = {name: rng.integers(0, 256, (2, 3)).astype(np.uint8) for name in "ab"}
    feeds["k"] = np.array(96, np.uint8)
    (expected,) = onnxruntime.InferenceSession(tmp_path / "model.onnx").run(None, feeds)
    webmlc.build(tmp_path / "model.onnx", tmp_path / "package", target="wasm")
    actual = load(tmp_path / "package", "wasm").run(feeds)["y"]
    np.testing.assert_array_equal(actual, expected)


def test_an_integer_residual_is_added_in_the_kernel_of_its_convolution(tmp_path: Path) -> None:
    """The kernel reads and writes bytes: no dequantised feature map is stored."""
    graph = in_integers(quantised_cnn(tmp_path))
    fused = fuse(duplicate_dequantisation(simplify_graph(choose_layouts(graph))))
    stored = [fused.main.types[v].dtype for node in fused.main.nodes for v in node.outputs]
    assert stored.count(DType.float32) == 1  # the network's result
    bodies = [node.attributes["body"] for node in fused.main.nodes if node.op == "fused"]
    (residual,) = (b for b in bodies if {"Conv", "DequantizeLinear"} <= {n.op for n in b.nodes})
    assert [n.op for n in residual.nodes].count("DequantizeLinear") == 4  # factors are two numbers


def test_quantised_feature_maps_are_padded_with_the_zero_point(tmp_path: Path) -> None:
    """Also test a zero point that a run computes."""
    model = parsed("""
g (float[1,2,5,5] x, int8[3,2,3,3] w) => (int32[1,3,5,5] y) {
  q, s, zero = DynamicQuantizeLinear(x)
  y = ConvInteger <pads = [1,1,1,1]> (q, w, zero)
}
""")
    rng = np.random.default_rng(0)
    weights = rng.integers(-128, 128, (3, 2, 3, 3)).astype(np.int8)
    model.graph.initializer.append(numpy_helper.from_array(weights, "w"))
    del model.graph.input[1]
    onnx.save(model, tmp_path / "model.onnx")
    x = {"x": rng.standard_normal((1, 2, 5, 5)).astype(np.float32)}
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    webmlc.build(tmp_path / "model.onnx", tmp_path / "package", target="wasm")
    actual = load(tmp_path / "package", "wasm").run(x)["y"]
    np.testing.assert_array_equal(actual, session.run(None, x)[0])
