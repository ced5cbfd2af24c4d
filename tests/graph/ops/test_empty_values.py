"""Operators over values without elements, on both devices, in a size that is static or that a run
decides.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx.parser
import pytest

import webmlc
from webmlc.core.errors import InputError

SUM = "y = ReduceSum <keepdims = 0> (v)"
EMPTY = {
    "CumSum": (f"v = CumSum (x, zero) {SUM}", 0.0),
    "CumSum from the end": (f"v = CumSum <exclusive = 1, reverse = 1> (x, zero) {SUM}", 0.0),
    "Unique": (f"v = Unique (x) {SUM}", 0.0),
    "Unique in order": (f"v, p = Unique <sorted = 0> (x) {SUM}", 0.0),
    "NonZero": ("i = NonZero (x) v = Shape <start = 1> (i) y0 = Cast <to = 1> (v) "
                "y = ReduceSum <keepdims = 0> (y0)", 0.0),
    "Softmax": (f"v = Softmax (x) {SUM}", 0.0),
    "LogSoftmax": (f"v = LogSoftmax (x) {SUM}", 0.0),
    "ReduceProd": ("y = ReduceProd <keepdims = 0> (x)", 1.0),
    "ReduceMax": ("y = ReduceMax <keepdims = 0> (x)", -np.inf),
    "ReduceL2": ("y = ReduceL2 <keepdims = 0> (x)", 0.0),
    "ScatterElements": (f"i = Cast <to = 7> (x) v = ScatterElements (x, i, x) {SUM}", 0.0),
    "Concat": (f"v = Concat <axis = 0> (x, x) {SUM}", 0.0),
    "Pad": (f"v = Pad (x, two) {SUM}", 0.0),
}  # fmt: skip
"""Nodes that compute a number `y` from an empty vector `x`, and the number."""


@pytest.mark.parametrize("size", ["0", "n"])
@pytest.mark.parametrize("name", EMPTY)
def test_an_operator_over_an_empty_vector(name: str, size: str, tmp_path: Path) -> None:
    nodes, want = EMPTY[name]
    model = onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["": 21]>
        g (float[{size}] x) => (float y) <int64 zero = {{0}}, int64[2] two = {{2, 2}}>
        {{ {nodes} }}"""
    )
    webmlc.build(model, tmp_path)
    for device in ("wasm", "webgpu"):
        loaded = webmlc.load(tmp_path, device=device)
        result = loaded.run({"x": np.zeros(0, np.float32)})["y"]
        loaded.dispose()
        assert result == want


def test_nothing_is_read_from_an_axis_without_elements(tmp_path: Path) -> None:
    """The index of its last element would be -1, which WGSL refuses as a constant."""
    model = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["": 21]>
        g (float[3, 0] x, bool[2] c) => (float[k] y) { y = Compress (x, c) }"""
    )
    webmlc.build(model, tmp_path)
    for device in ("wasm", "webgpu"):
        loaded = webmlc.load(tmp_path, device=device)
        feeds = {"x": np.zeros((3, 0), np.float32), "c": np.zeros(2, bool)}
        assert loaded.run(feeds)["y"].shape == (0,)
        with pytest.raises(InputError, match="out of range"):
            loaded.run({**feeds, "c": np.ones(2, bool)})
        loaded.dispose()
