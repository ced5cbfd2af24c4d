"""Sizes that a model computes from symbolic ones, by every operator: built and run on both devices,
against onnxruntime, and by the JavaScript runtime under Node.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

import webmlc
from tests.against_onnxruntime import ERRORS_ONLY, check, parse
from tests.node import in_node, tensor
from webmlc.core.errors import InputError
from webmlc.package.manifest import Bind

HEIGHTS = (1, 2, 8, 9, 10, 17, 40)

SIZES = {
    "truncdiv of what may be negative": "a = Sub(h, one)  c = Div(a, eight)",
    "truncdiv of what may not": "c = Div(h, two)",
    "truncmod": "a = Sub(h, nine)  b = Mod<fmod = 1>(a, eight)  c = Add(b, nine)",
    "floormod": "a = Sub(h, nine)  c = Mod(a, eight)",
    "a symbol as divisor": "c = Div(nine, h)",
    "abs": "a = Sub(h, nine)  c = Abs(a)",
    "neg and max": "a = Sub(h, nine)  b = Neg(a)  c = Max(b, one)",
    "sign": "a = Sub(h, nine)  b = Sign(a)  c = Add(b, one)",
    "select of sizes": "b = Greater(h, eight)  c = Where(b, eight, h)",
    "select of numbers": "b = Greater(h, eight)  c = Where(b, nine, two)",
    "logic": "b = Less(h, eight)  d = Equal(h, nine)  e = Or(b, d)  f = Not(e)  k = Xor(f, d)"
             "  c = Where(k, h, two)",
    "a condition as number": "b = GreaterOrEqual(h, eight)  d = Cast<to = 7>(b)  c = Add(d, one)",
}  # fmt: skip
READ_DURING_A_RUN = {
    "ceil of a product": "a = Cast<to = 1>(h)  b = Mul(a, third)  d = Ceil(b)  c = Cast<to = 7>(d)",
    "a root": "a = Cast<to = 1>(h)  b = Sqrt(a)  c = Cast<to = 7>(b)",
    "a remainder of bits": "d = Cast<to = 13>(h)  b = BitShift<direction = \"RIGHT\">(d, bits)"
                           "  c = Cast<to = 7>(b)",
}  # fmt: skip


def model_of(body: str) -> onnx.ModelProto:
    """A model whose output has as many rows as `body` computes from the height `h`."""
    return parse(f"""g (float[height, 3] x) => (float[rows, 3] y)
        <int64[1] zero = {{0}}, int64[1] one = {{1}}, int64[1] two = {{2}}, int64[1] three = {{3}},
         int64[1] eight = {{8}}, int64[1] nine = {{9}}, float[1] third = {{0.3}},
         uint64[1] bits = {{2}}> {{
        s = Shape(x)  h = Slice(s, zero, one)  {body}
        t = Concat<axis = 0>(c, three)  r = ConstantOfShape(t)
        v = ReduceSum<keepdims = 1>(x, zero)  w = Add(r, v)  y = Exp(w) }}""")


def runs() -> list[dict[str, Any]]:
    draw = np.random.default_rng(0)
    return [{"x": draw.standard_normal((n, 3)).astype(np.float32) / n} for n in HEIGHTS]


@pytest.mark.parametrize("name", SIZES)
def test_sizes_of_every_operator(tmp_path: Path, name: str) -> None:
    check(model_of(SIZES[name]), tmp_path, *runs())
    segments = webmlc.load(tmp_path).program.segments
    assert not any(isinstance(s, Bind) for s in segments)


@pytest.mark.parametrize("name", READ_DURING_A_RUN)
def test_what_no_size_can_say_is_read_during_a_run(tmp_path: Path, name: str) -> None:
    check(model_of(READ_DURING_A_RUN[name]), tmp_path, *runs())
    segments = webmlc.load(tmp_path).program.segments
    assert any(isinstance(s, Bind) for s in segments)


def test_the_javascript_runtime_evaluates_the_same_sizes(tmp_path: Path) -> None:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = ERRORS_ONLY
    for name, body in SIZES.items():
        model = model_of(body)
        webmlc.build(model, tmp_path / name, target="wasm")
        session = onnxruntime.InferenceSession(model.SerializeToString(), options)
        feeds = runs()
        results = in_node(tmp_path / name, [{"x": tensor(f["x"])} for f in feeds])
        for feed, result in zip(feeds, results, strict=True):
            (want,) = session.run(None, feed)
            assert result["y"]["shape"] == list(want.shape)
            numbers = np.array(result["y"]["data"], np.float64).reshape(want.shape)
            np.testing.assert_allclose(numbers, want, rtol=1e-4)


WINDOWS = """g (float[1, 2, height, width] x) => (float[1, 2, a, b] y) <int64[1] zero = {0},
    int64[1] one = {1}, int64[1] two = {2}, int64[1] three = {3}, int64[1] eight = {8},
    int64[1] last = {-1}, int64[1] step = {-2}, int64[1] end = {-9223372036854775807}> {
    p = AveragePool<kernel_shape = [3, 3], strides = [2, 2], ceil_mode = 1, pads = [1, 1, 1, 1]>(x)
    s = Shape(x)  h = Slice(s, two, three)  m = Sub(h, one)  rows = Div(m, eight)
    count = Add(rows, one)
    r = Slice(p, zero, count, two)
    y = Slice(r, last, end, three, step) }"""


def test_windows_over_a_height_that_a_size_cuts(tmp_path: Path) -> None:
    """The rows of a strided window, `(height - 1)` truncated by 8, of a pooled image."""
    draw = np.random.default_rng(0)
    sizes = [(1, 1), (16, 5), (17, 9), (33, 62), (128, 3)]
    feeds = [{"x": draw.standard_normal((1, 2, *size)).astype(np.float32)} for size in sizes]
    check(parse(WINDOWS), tmp_path, *feeds)
    (port,) = webmlc.load(tmp_path).outputs
    assert "truncdiv" in str(port.shape[2])


@pytest.mark.parametrize("device", ["wasm", "webgpu"])
def test_a_size_divided_by_an_empty_one_is_zero(tmp_path: Path, device: Any) -> None:
    """Nothing traps."""
    webmlc.build(model_of(SIZES["a symbol as divisor"]), tmp_path, target=device)
    loaded = webmlc.load(tmp_path, device=device)
    assert loaded.run({"x": np.ones((0, 3), np.float32)})["y"].shape == (0, 3)
    assert loaded.run({"x": np.ones((4, 3), np.float32)})["y"].shape == (2, 3)
    loaded.dispose()


def test_a_negative_size_is_an_error_in_both_runtimes(tmp_path: Path) -> None:
    webmlc.build(model_of("c = Sub(h, nine)"), tmp_path, target="wasm")
    loaded = webmlc.load(tmp_path)
    x = np.ones((3, 3), np.float32)
    with pytest.raises(InputError) as caught:
        loaded.run({"x": x})
    message = "with these inputs a size of 'y' is -6: negative"
    assert str(caught.value) == message
    (result,) = in_node(tmp_path, [{"x": tensor(x)}])
    assert result == {"error": message.replace("'", '"'), "code": "input"}


TRANSFORMS = """
    g (float[batch, n, 1] x, float[n, 3, 2] z)
      => (float[a,b,c] whole, float[d,e,f] half, float[g,h,i] back, float[j,k,l] longer)
    <int64 nine = {9}, int64 first = {0}, int64 last = {1}> {
      whole = DFT (x, , last)  half = DFT <onesided = 1> (x, , last)
      back = DFT <inverse = 1> (z, , first)  longer = DFT (z, nine, first) }"""


def test_a_fourier_transform_of_any_length(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    check(
        parse(TRANSFORMS, opset=20),
        tmp_path / "package",
        *(
            {
                "x": draw.standard_normal((2, n, 1)).astype(np.float32),
                "z": draw.standard_normal((n, 3, 2)).astype(np.float32),
            }
            for n in (1, 6, 9, 13)
        ),
    )
