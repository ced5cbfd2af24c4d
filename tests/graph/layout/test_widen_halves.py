"""`widen_halves`: operators that calculate do so in float32, and operators that only move values
stay small. Models of halves compute in float32 and round once.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import ml_dtypes
import numpy as np
import onnx.parser
import pytest
from onnx import numpy_helper

import webmlc
from tests.graph.graphs import module
from tests.graph.quantise.test_join_products import products, records
from webmlc.graph.ir import print_function
from webmlc.graph.layout.widen_halves import widen_halves
from webmlc.graph.ops.block_quantised import BlockQuantised

RNG = np.random.default_rng(0)
Device = Literal["wasm", "webgpu"]


def widened(text: str, opset: int = 17) -> str:
    return print_function(widen_halves(module(text, opset)).main)


def test_values_stay_wide_between_operators() -> None:
    text = """g (float16[n,4] x, float16[n,4] y) => (float16[n,4] z) {
        s = Add(x, y)
        t = Tanh(s)
        z = Mul(t, s)
    }"""
    assert (
        widened(text)
        == """\
func main(%x: float16[n, 4], %y: float16[n, 4]) {
  %x.wide: float32[n, 4] = Cast(%x) {to=1}
  %y.wide: float32[n, 4] = Cast(%y) {to=1}
  %s.wide: float32[n, 4] = Add(%x.wide, %y.wide)
  %t.wide: float32[n, 4] = Tanh(%s.wide)
  %z.wide: float32[n, 4] = Mul(%t.wide, %s.wide)
  %z: float16[n, 4] = Cast(%z.wide) {to=10}
  return %z
}"""
    )


def test_operators_that_only_move_values_read_halves() -> None:
    text = """g (float16[3,4] x) => (float16[4,3] y, float16[4,3] z) {
        y = Transpose(x)
        z = Exp(y)
    }"""
    assert (
        widened(text)
        == """\
func main(%x: float16[3, 4]) {
  %y: float16[4, 3] = Transpose(%x)
  %y.wide: float32[4, 3] = Cast(%y) {to=1}
  %z.wide: float32[4, 3] = Exp(%y.wide)
  %z: float16[4, 3] = Cast(%z.wide) {to=10}
  return %y, %z
}"""
    )


def test_operators_that_read_bits_read_halves() -> None:
    text = """g (float16[4] x) => (int16[4] y) {
        s = Neg(x)
        y = BitCast<to = 5>(s)
    }"""
    assert (
        widened(text, 26)
        == """\
func main(%x: float16[4]) {
  %x.wide: float32[4] = Cast(%x) {to=1}
  %s.wide: float32[4] = Neg(%x.wide)
  %s: float16[4] = Cast(%s.wide) {to=10}
  %y: int16[4] = BitCast(%s) {to=5}
  return %y
}"""
    )


def test_casts_of_the_model_and_operators_with_steps_round() -> None:
    text = """g (float[n,4] a, float16[n,4] x) => (float[n,4] y, float16[n,4] h) {
        h = Cast<to = 10>(a)
        s = Add(h, x)
        f = Floor(s)
        t = Mul(f, s)
        y = Cast<to = 1>(t)
    }"""
    assert (
        widened(text)
        == """\
func main(%a: float32[n, 4], %x: float16[n, 4]) {
  %h.wide: float32[n, 4] = webmlc.RoundToHalf(%a) {to=10}
  %x.wide: float32[n, 4] = Cast(%x) {to=1}
  %s.wide: float32[n, 4] = Add(%h.wide, %x.wide)
  %s.rounded: float32[n, 4] = webmlc.RoundToHalf(%s.wide) {to=10}
  %f.wide: float32[n, 4] = Floor(%s.rounded)
  %t.wide: float32[n, 4] = Mul(%f.wide, %s.wide)
  %t.rounded: float32[n, 4] = webmlc.RoundToHalf(%t.wide) {to=10}
  %y: float32[n, 4] = Cast(%t.rounded) {to=1}
  %h: float16[n, 4] = Cast(%a) {to=10}
  return %y, %h
}"""
    )


def test_operators_that_widen_constants_read_halves() -> None:
    before = products([weights_of_halves()])
    after = widen_halves(before).main
    assert [n.op for n in after.nodes] == [n.op for n in before.main.nodes]
    assert after.constants.keys() == before.main.constants.keys()
    halves = [array for array in after.constants.values() if array.dtype == np.float16]
    assert len(halves) == 2  # scales and minimums


def weights_of_halves() -> BlockQuantised:
    """Weights whose scales and minimums float16 represents."""
    (weights,) = records(16)
    assert weights.minimums is not None
    scales, minimums = (
        a.astype(np.float16).astype(np.float32) for a in (weights.scales, weights.minimums)
    )
    return replace(weights, scales=scales, minimums=minimums)


def test_without_halves_nothing_changes() -> None:
    before = module("g (float[4] x) => (float[4] y) { y = Neg(x) }")
    assert widen_halves(before).main is before.main


MODEL = """<ir_version: 10, opset_import: ["" : 21]>
agraph (HALF[n, 16, h, h] x) => (HALF[n, 32, h, h] y, HALF[n, 32] s) {
    c = Conv <pads = [1, 1, 1, 1]> (x, w, b)
    r = Relu (c)
    y = Mul (r, r)
    m = ReduceMean <keepdims = 0> (y, axes)
    s = Softmax <axis = 1> (m)
}"""


@pytest.mark.parametrize("device", ["wasm", "webgpu"])
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_results_are_rounded_once(device: Device, dtype: Any, tmp_path: Path) -> None:
    model = onnx.parser.parse_model(MODEL.replace("HALF", np.dtype(dtype).name))
    weights = RNG.standard_normal((32, 16, 3, 3)).astype(dtype) * dtype(0.125)
    bias = RNG.standard_normal(32).astype(dtype)
    for name, array in (("w", weights), ("b", bias), ("axes", np.array([2, 3]))):
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    webmlc.build(model, tmp_path, target=device)
    shipped = (tmp_path / "weights.safetensors").stat().st_size
    assert shipped < weights.nbytes * 1.1 + 500  # a half is two bytes in the download
    loaded = webmlc.load(tmp_path, device=device)
    for n, h in ((1, 5), (2, 8)):
        x = RNG.standard_normal((n, 16, h, h)).astype(dtype)
        got = loaded.run({"x": x})
        y = np.maximum(_convolved(x, weights) + bias.astype(np.float64)[:, None, None], 0) ** 2
        e = np.exp(y.mean((2, 3)) - y.mean((2, 3)).max(1, keepdims=True))
        for name, want in (("y", y), ("s", e / e.sum(1, keepdims=True))):
            assert got[name].dtype == dtype
            step = 2.0 ** -(10 if dtype is np.float16 else 7)
            np.testing.assert_allclose(got[name].astype(np.float64), want, rtol=step, atol=1e-6)
    loaded.dispose()


def _convolved(x: Any, w: Any) -> Any:
    """A 3x3 convolution in float64, with one row of zeros around the feature map."""
    padded = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))
    return np.einsum("nchwab,ocab->nohw", windows, w.astype(np.float64))
