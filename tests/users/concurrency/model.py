"""A small classifier of any batch size, its inputs, and what numpy computes from them."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.against_onnxruntime import parse
from webmlc.host.load import Model

Array = np.ndarray[Any, np.dtype[Any]]
RNG = np.random.default_rng(0)
HIDDEN, OUT = (RNG.standard_normal(s).astype(np.float32) for s in ((16, 64), (64, 10)))
CLASSIFIER = parse(
    "g (float[n,16] x, float[16,64] hidden, float[64,10] out) => (float[n,10] y) {"
    " h = MatMul(x, hidden) r = Relu(h) z = MatMul(r, out) y = Softmax<axis=-1>(z) }"
)
"""Its weights are inputs, so that each run uploads what another thread's run could overwrite."""


def feeds(seed: int, rows: int) -> dict[str, Array]:
    """Inputs of a run."""
    x = np.random.default_rng(seed).standard_normal((rows, 16)).astype(np.float32)
    return {"x": x, "hidden": HIDDEN, "out": OUT}


def expected(x: Array) -> Array:
    """The results of the model, in float64."""
    z = np.maximum(x.astype(np.float64) @ HIDDEN, 0) @ OUT
    powers = np.exp(z - z.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)


class Case:
    """An input, and the result of a run that no other thread disturbs, compared with numpy."""

    def __init__(self, model: Model, seed: int, rows: int) -> None:
        self.feeds = feeds(seed, rows)
        self.result = model.run(self.feeds)["y"]
        np.testing.assert_allclose(self.result, expected(self.feeds["x"]), rtol=1e-4, atol=1e-6)

    def is_right(self, model: Model) -> bool:
        """Run the model, and compare with the undisturbed run."""
        return np.array_equal(model.run(self.feeds)["y"], self.result)
