"""Small kernels that read one value become one kernel."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import webmlc
from tests.graph.graphs import module, parsed
from webmlc.graph.fuse.fuse import fuse
from webmlc.graph.fuse.merge_siblings import merge_siblings

SIBLINGS = (
    "m (float[n, 4] x) => (float[4, n] a, float[n, 4] b, float[n, 4] c) "
    "{ a = Transpose(x) b = Abs(x) c = Neg(x) }"
)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        pytest.param(SIBLINGS, 1, id="siblings"),
        pytest.param(
            "m (float[n, 4] x) => (float[n, 4] a, float[n, 4] c) "
            "{ a = Sin(x) s = Softmax(a) c = Add(s, x) }",
            2,
            id="a reader of a result between",
        ),
        pytest.param(
            "m (float[9000] x) => (float[9000] a, float[9000] b) { a = Sin(x) b = Cos(x) }",
            2,
            id="large results",
        ),
    ],
)
def test_kernels_that_read_one_value(text: str, count: int) -> None:
    assert len(merge_siblings(fuse(module(text))).main.nodes) == count


def test_a_merged_kernel_computes_every_result(tmp_path: Path) -> None:
    webmlc.build(parsed(SIBLINGS), tmp_path, "wasm")
    x = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
    results = webmlc.load(tmp_path, "wasm").run({"x": x})
    for name, wanted in (("a", x.T), ("b", abs(x)), ("c", -x)):
        np.testing.assert_array_equal(results[name], wanted)
