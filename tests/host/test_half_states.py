"""States of halves keep their names and types: a package with them loads, and computes right."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import ml_dtypes
import numpy as np
import pytest

import webmlc
from tests.against_onnxruntime import parse

Array = np.ndarray[Any, np.dtype[Any]]
Device = Literal["wasm", "webgpu"]
DTYPES = {"float16": (np.float16, 2e-3), "bfloat16": (ml_dtypes.bfloat16, 2e-2)}
"""The type of each name, and the error that its roundings may leave."""
DECODERS = {
    # The past grows along its second axis, so that the state is a transposition of it.
    "inner": """g (TYPE[s,4] x, TYPE[1,p,4] past, TYPE[4,4] w)
        => (TYPE[s,4] y, TYPE[1,t,4] present) {
        front = Constant<value_ints=[0]>()  k = MatMul(x, w)  rows = Unsqueeze(k, front)
        present = Concat<axis=1>(past, rows)  keys = Squeeze(present, front)
        columns = Transpose(keys)  scores = MatMul(x, columns)  weights = Softmax(scores)
        y = MatMul(weights, keys) }""",
    # It grows along its first axis: the state has the name of the output.
    "first": """g (TYPE[s,4] x, TYPE[p,4] past, TYPE[4,4] w) => (TYPE[s,4] y, TYPE[t,4] present) {
        rows = MatMul(x, w)  present = Concat<axis=0>(past, rows)
        columns = Transpose(present)  scores = MatMul(x, columns)  weights = Softmax(scores)
        y = MatMul(weights, present) }""",
    # The rows are computed from the past of another state, which is wide by then.
    "two": """g (TYPE[s,4] x, TYPE[p,4] past, TYPE[p,4] past_v, TYPE[4,4] w)
        => (TYPE[s,4] y, TYPE[t,4] present, TYPE[t,4] present_v) {
        k = MatMul(x, w)  v = Tanh(k)  rows = Add(k, k)
        present = Concat<axis=0>(past, rows)  present_v = Concat<axis=0>(past_v, v)
        columns = Transpose(present)  scores = MatMul(x, columns)  weights = Softmax(scores)
        y = MatMul(weights, present_v) }""",
}


def softmax(x: Array) -> Array:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def computed(name: str, x: Array, w: Array) -> Array:
    """The decoder on all rows seen so far, in float64: `y` of the last ones is compared."""
    k = x @ w
    keys, values = (2 * k, np.tanh(k)) if name == "two" else (k, k)
    return softmax(x @ keys.T) @ values


@pytest.mark.parametrize("device", ["wasm", "webgpu"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", DECODERS)
def test_a_session_of_halves(tmp_path: Path, name: str, dtype: str, device: Device) -> None:
    half, tolerance = DTYPES[dtype]
    webmlc.build(parse(DECODERS[name].replace("TYPE", dtype)), tmp_path, device)
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(shape).astype(half) for shape in ((6, 4), (4, 4)))
    model = webmlc.load(tmp_path, device)
    session = model.session(capacity=8)
    past = {p.past.name: np.zeros((0, 4), half) for p in model.manifest.states}
    if name == "inner":
        past = {key: rows[None] for key, rows in past.items()}
    for start, end in ((0, 3), (3, 4), (4, 6)):
        feeds = {"x": x[start:end], "w": w}
        expected = computed(name, x[:end].astype(np.float64), w.astype(np.float64))[start:]
        together = model.run({**feeds, **past})
        for y in (session.run(feeds)["y"], together["y"]):
            assert y.dtype == half
            scale = np.abs(expected).max()
            np.testing.assert_allclose(y.astype(np.float64), expected, atol=tolerance * scale * 4)
        past = {key: together[key.replace("past", "present")] for key in past}
    model.dispose()


@pytest.mark.parametrize("device", ["wasm", "webgpu"])
def test_a_replaced_state_of_halves(tmp_path: Path, device: Device) -> None:
    model = parse(
        "g (float16[1,4] x, float16[1,4] state) => (float16[1,4] y, float16[1,4] stateN) {"
        " s = Add(x, state) stateN = Tanh(s) y = Mul(stateN, x) }"
    )
    webmlc.build(model, tmp_path, device)
    loaded = webmlc.load(tmp_path, device)
    session, state = loaded.session(), np.zeros((1, 4))
    for step in range(3):
        x = np.full((1, 4), 0.25 * step, np.float16)
        state = np.tanh(x + state)
        np.testing.assert_allclose(session.run({"x": x})["y"], state * x, atol=2e-3)
    loaded.dispose()
