"""Sizes stay short in chains of any length: equal sizes are one, and long ones become symbols."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnxruntime
import pytest

import webmlc
from tests.against_onnxruntime import parse
from webmlc.core.rewrite import variables, written_out
from webmlc.frontend.read_model import read_model
from webmlc.graph.infer.evaluate_symbols import MAX_SIZE
from webmlc.graph.infer.infer_shapes import infer_shapes
from webmlc.graph.infer.normalise import normalise
from webmlc.graph.ir import Function

CONSTANTS = """
    none = Constant<value_ints=[0]>() one = Constant<value_ints=[1]>()
    eight = Constant<value_ints=[8]>() rest = Constant<value_ints=[-1]>()
    first = Constant<value_int=0>() second = Constant<value_int=1>()
    two = Constant<value_int=2>() three = Constant<value_int=3>()
"""
LAYERS = {
    # As in an encoder whose mask has dimensions of other names than its tokens.
    "a mask of other symbols": (
        "float[b,s,8] x0, float[c,1,t] mask",
        """k{i} = Transpose<perm=[0,2,1]>(x{i}) l{i} = MatMul(x{i}, k{i}) m{i} = Add(l{i}, mask)
        p{i} = Softmax(m{i}) a{i} = MatMul(p{i}, x{i}) x{j} = Add(x{i}, a{i})""",
    ),
    "two residuals": (
        "float[b,s,8] x0, float[c,1,8] z, float[d,t,1] w",
        "u{i} = Add(x{i}, z) v{i} = Mul(w, u{i}) x{j} = Sub(v{i}, x{i})",
    ),
    "a reshape there and back": (
        "float[b,s,8] x0",
        """d{i} = Shape(x{i}) b{i} = Gather(d{i}, first) s{i} = Gather(d{i}, second)
        n{i} = Mul(b{i}, s{i}) q{i} = Unsqueeze(n{i}, none) t{i} = Concat<axis=0>(q{i}, eight)
        f{i} = Reshape(x{i}, t{i}) g{i} = Relu(f{i}) c{i} = Unsqueeze(b{i}, none)
        h{i} = Concat<axis=0>(c{i}, rest, eight) y{i} = Reshape(g{i}, h{i})
        x{j} = Add(x{i}, y{i})""",
    ),
    "sizes without a short form": (
        "float[s,8] x0",
        """s{i} = Shape<start=0, end=1>(x{i}) q{i} = Mod(s{i}, eight) w{i} = Sub(eight, q{i})
        r{i} = Mod(w{i}, eight) p{i} = Concat<axis=0>(none, none, r{i}, none)
        y{i} = Pad(x{i}, p{i}) x{j} = Slice(y{i}, one, rest, none)""",
    ),
    "computed lengths": (
        "float[s,8] x0",
        """s{i} = Shape<start=0, end=1>(x{i}) u{i} = Squeeze(s{i}, none) v{i} = Div(u{i}, two)
        n{i} = Max(v{i}, three) m{i} = Add(n{i}, u{i}) w{i} = Div(m{i}, two)
        e{i} = Unsqueeze(w{i}, none) z{i} = Slice(x{i}, none, e{i}, none)
        x{j} = Concat<axis=0>(z{i}, x{i})""",
    ),
}
"""The inputs of a model, and the nodes of its layer `i`, from `x{i}` to `x{j}`."""
FEEDS: dict[str, list[dict[str, tuple[int, ...]]]] = {
    "a mask of other symbols": [
        {"x0": (2, 5, 8), "mask": (2, 1, 5)},
        {"x0": (2, 5, 8), "mask": (1, 1, 5)},
        {"x0": (1, 5, 8), "mask": (3, 1, 1)},
    ],
    "two residuals": [
        {"x0": (2, 5, 8), "z": (1, 1, 8), "w": (2, 1, 1)},
        {"x0": (1, 1, 8), "z": (3, 1, 8), "w": (1, 4, 1)},
        {"x0": (0, 5, 8), "z": (1, 1, 8), "w": (1, 5, 1)},
    ],
    "sizes without a short form": [{"x0": (rows, 8)} for rows in (1, 3, 8, 50)],
    "computed lengths": [{"x0": (rows, 8)} for rows in (1, 2, 5)],
}


def model_of(name: str, layers: int) -> Any:
    inputs, layer = LAYERS[name]
    rank = inputs.partition("]")[0].count(",") + 1
    nodes = "\n".join(layer.format(i=i, j=i + 1) for i in range(layers))
    sizes = ",".join("?" * rank)
    return parse(f"g ({inputs}) => (float[{sizes}] x{layers}) {{ {CONSTANTS} {nodes} }}")


def inferred(name: str, layers: int) -> Function:
    return infer_shapes(normalise(read_model(model_of(name, layers)))).main


@pytest.mark.parametrize("name", LAYERS)
def test_no_size_grows_with_the_length_of_a_chain(name: str) -> None:
    main = inferred(name, 200)
    sizes = {size for type_ in main.types.values() for size in type_.shape}
    assert max(map(written_out, sizes)) <= MAX_SIZE
    if name not in ("sizes without a short form", "computed lengths"):
        assert max(map(written_out, sizes)) < 30
        symbols = {v.name for size in sizes for v in variables(size)}
        assert symbols <= {"b", "c", "d", "s", "t"}


@pytest.mark.parametrize("device", ["wasm", "webgpu"])
@pytest.mark.parametrize("name", FEEDS)
def test_a_long_chain_computes_right(
    name: str, device: Literal["wasm", "webgpu"], tmp_path: Path
) -> None:
    model = model_of(name, 5)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    webmlc.build(model, tmp_path, device)
    loaded = webmlc.load(tmp_path, device)
    rng = np.random.default_rng(0)
    for shapes in FEEDS[name]:
        feeds = {n: rng.uniform(-0.2, 0.2, s).astype(np.float32) for n, s in shapes.items()}
        (expected,) = session.run(None, feeds)
        np.testing.assert_allclose(loaded.run(feeds)["x5"], expected, rtol=1e-4, atol=1e-6)
    loaded.dispose()
