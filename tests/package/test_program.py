"""Programs of whole models: what is done at load, and what every run does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx.parser
import onnxruntime

import webmlc
from webmlc.host.load import load

SCAN = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[n,2] x) => (float[2] last, float[n,2] sums) <float[2] start = {1.0, 2.0}> {
  last, sums = Scan <num_scan_inputs = 1, body = b (float[2] total, float[2] row)
    => (float[2] new, float[2] copy) { new = Add(total, row)  copy = Identity(new) }> (start, x)
}
"""


def test_a_loop_begins_anew_in_every_run(tmp_path: Path) -> None:
    """The constant that a loop begins with is copied by each run: the loop writes over the copy."""
    model = onnx.parser.parse_model(SCAN)
    webmlc.build(model, tmp_path / "package", target="wasm")
    compiled = load(tmp_path / "package", "wasm")
    session = onnxruntime.InferenceSession(model.SerializeToString())
    for length in (3, 5, 3):
        x = {"x": np.arange(2 * length, dtype=np.float32).reshape(length, 2)}
        actual = compiled.run(x)
        for name, expected in zip(("last", "sums"), session.run(None, x), strict=True):
            np.testing.assert_array_equal(actual[name], expected)


SYMBOLIC_INDEX = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[n] x) => (float[1] y, float[n] z) <float[4] c = {1.0, 2.0, 3.0, 4.0}, int64[1] k = {4}> {
  s = Shape(x)  i = Mod(s, k)  y = Gather(c, i)  z = Relu(x)
}
"""


def test_what_reads_a_symbol_is_computed_in_every_run(tmp_path: Path) -> None:
    """The kernel of y reads a constant, at a place that depends on the size of x."""
    webmlc.build(onnx.parser.parse_model(SYMBOLIC_INDEX), tmp_path / "package", target="wasm")
    compiled = load(tmp_path / "package", "wasm")
    for length, expected in ((3, 4), (5, 2), (4, 1)):
        assert compiled.run({"x": np.ones(length, np.float32)})["y"].tolist() == [expected]
