"""A small decoder with a past and a present, and what onnxruntime computes with it."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime

from tests.against_onnxruntime import parse

Array = np.ndarray[Any, np.dtype[Any]]
DECODER = parse(
    "g (float[s,4] x, float[1,p,4] past, float[4,4] w) => (float[s,4] y, float[1,t,4] present) {"
    " k = MatMul(x, w) front = Constant<value_ints=[0]>() rows = Unsqueeze(k, front)"
    " present = Concat<axis=1>(past, rows) keys = Squeeze(present, front)"
    " columns = Transpose(keys) scores = MatMul(x, columns) weights = Softmax(scores)"
    " y = MatMul(weights, keys) }"
)
"""A decoder of one head whose keys are its values. The past grows along the second axis."""
RNG = np.random.default_rng(0)
WEIGHTS = RNG.standard_normal((4, 4)).astype(np.float32)


def rows(count: int) -> dict[str, Array]:
    return {"x": RNG.standard_normal((count, 4)).astype(np.float32), "w": WEIGHTS}


def expected(feeds: dict[str, Array], past: Array) -> tuple[Array, Array]:
    session = onnxruntime.InferenceSession(DECODER.SerializeToString())
    y, present = session.run(None, {**feeds, "past": past})
    return y, present


def session_data() -> dict[str, Any]:
    """The job of `tests/js/session.mjs`: a few rows, then many single ones."""
    counts = (3, 2, *[1] * 12, 4, 1)
    return {"x": [rows(n)["x"].ravel().tolist() for n in counts], "w": WEIGHTS.ravel().tolist()}


def check_session(data: dict[str, Any], results: dict[str, Any]) -> None:
    """The results of `tests/js/session.mjs` are those of onnxruntime."""
    xs = [np.array(x, np.float32).reshape(-1, 4) for x in data["x"]]
    past, ys, presents = np.zeros((1, 0, 4), np.float32), [], []
    for x in (*xs, xs[-1]):
        y, past = expected({"x": x, "w": WEIGHTS}, past)
        ys.append(y.ravel())
        presents.append(past)
    tolerance = {"rtol": 1e-4, "atol": 1e-5}
    for actual, y in zip(results["together"], ys[:-1], strict=True):
        np.testing.assert_allclose(actual, y, **tolerance)
    for actual, y in zip(results["interleaved"], ys[:2], strict=True):
        np.testing.assert_allclose(actual, y, **tolerance)
    assert results["length"] == sum(map(len, xs))
    for actual in results["continued"]:
        np.testing.assert_allclose(actual, ys[-1], **tolerance)
    np.testing.assert_allclose(results["truncated"], ys[1], **tolerance)
    assert "holds 5 of 9 rows, so 9 more do not fit" in results["refused"]
    for (y, shape, present), want, want_present in zip(
        results["alone"], ys[:2], presents[:2], strict=True
    ):
        np.testing.assert_allclose(y, want, **tolerance)
        np.testing.assert_allclose(np.reshape(present, shape), want_present, **tolerance)
    assert "disposed of" in results["disposed"]
    assert results["profiled"]
