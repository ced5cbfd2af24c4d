"""A small recurrent model, and what onnxruntime computes with it."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime

from tests.against_onnxruntime import parse

Array = np.ndarray[Any, np.dtype[Any]]
RECURRENT = parse(
    "g (float[b,4] x, float[s,4] state, float[b,4] cache_in, float[8,4] w)"
    " => (float[b,4] y, float[b,4] stateN, float[c,4] cache_out) {"
    " joined = Concat<axis=1>(x, state) k = MatMul(joined, w) stateN = Tanh(k)"
    " cache_out = Identity(state) y = Add(stateN, cache_in) }"
)
"""A recurrent layer, and a cache that delays its state by one more run."""
RNG = np.random.default_rng(0)
WEIGHTS = RNG.standard_normal((8, 4)).astype(np.float32)
TOLERANCE = {"rtol": 1e-4, "atol": 1e-5}


def inputs(rows: int) -> dict[str, Array]:
    return {"x": RNG.standard_normal((rows, 4)).astype(np.float32), "w": WEIGHTS}


def zeros(rows: int) -> dict[str, Array]:
    """The states of a new session."""
    return {name: np.zeros((rows, 4), np.float32) for name in ("state", "cache_in")}


def expected(feeds: dict[str, Array], states: dict[str, Array]) -> tuple[Array, dict[str, Array]]:
    """The output, and the states after the run."""
    session = onnxruntime.InferenceSession(RECURRENT.SerializeToString())
    y, state, cache = session.run(None, feeds | states)
    return y, {"state": state, "cache_in": cache}


def session_data() -> dict[str, Any]:
    """The job of `tests/js/recurrent.mjs`."""
    xs = [inputs(2)["x"].ravel().tolist() for _ in range(20)]
    return {"x": xs, "w": WEIGHTS.ravel().tolist()}


def check_session(data: dict[str, Any], results: dict[str, Any]) -> None:
    """The results of `tests/js/recurrent.mjs` are those of onnxruntime."""
    states, ys = zeros(2), []
    for x in data["x"]:
        feeds = {"x": np.array(x, np.float32).reshape(2, 4), "w": WEIGHTS}
        y, states = expected(feeds, states)
        ys.append(y.ravel())
    for runs in ("together", "chained"):
        for actual, y in zip(results[runs], ys, strict=True):
            np.testing.assert_allclose(actual, y, **TOLERANCE)
    np.testing.assert_allclose(results["state"], states["state"].ravel(), **TOLERANCE)
    assert results["chosen"] == {"cache_out": results["state"]}
    for name in ("other", "reset", "reused"):
        np.testing.assert_allclose(results[name], ys[0], **TOLERANCE)
    np.testing.assert_allclose(results["continued"], ys[-1], **TOLERANCE)
    last = {"x": np.array(data["x"][-1], np.float32).reshape(2, 4), "w": WEIGHTS}
    y, _ = expected(last, expected(last, states)[1])
    np.testing.assert_allclose(results["after"], y.ravel(), **TOLERANCE)
    y, after = expected(last, {name: np.full((2, 4), 0.5, np.float32) for name in states})
    np.testing.assert_allclose(results["alone"]["y"], y.ravel(), **TOLERANCE)
    np.testing.assert_allclose(results["alone"]["stateN"], after["state"].ravel(), **TOLERANCE)
    np.testing.assert_allclose(results["alone"]["cache_out"], 0.5)
    assert "has shape [3, 4], expected [b, 4] = [2, 4]" in results["refused"]
    assert "but other pasts are there" in results["incomplete"]
    assert "call reset, or load" in results["truncated"]
