"""Programs of whole models: what is done at load, and what every run does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.numpy_helper
import onnx.parser
import onnxruntime

import webmlc
from webmlc.host.load import load
from webmlc.package.manifest import Run

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


def test_what_a_function_computes_of_constants_is_computed_at_load(tmp_path: Path) -> None:
    """Winograd's weights of a loop and of two branches, each of which writes the same output."""
    text = """
    <ir_version: 8, opset_import: ["" : 17]>
    g (bool c, int64 n, float[1,64,60,60] x) => (float[1,64,60,60] y, float[1,64,60,60] z) {
      y = If (c) <
        then_branch = t () => (float[1,64,60,60] a) { a = Conv <pads = [1,1,1,1]> (x, w) },
        else_branch = e () => (float[1,64,60,60] b) { b = Conv <pads = [1,1,1,1]> (x, v) }
      >
      z = Loop (n, , x) <body = l (int64 i, bool on, float[1,64,60,60] s)
        => (bool go, float[1,64,60,60] r) {
          go = Identity (on)  r = Conv <pads = [1,1,1,1]> (s, w) }>
    }
    """
    model = onnx.parser.parse_model(text)
    random = np.random.default_rng(0)
    for name in ("w", "v"):
        weights = random.standard_normal((64, 64, 3, 3)).astype(np.float32) / 24
        model.graph.initializer.append(onnx.numpy_helper.from_array(weights, name))
    manifest = webmlc.build(model, tmp_path / "package", target="wasm")
    program = manifest.programs["wasm"]
    runs = [part for part in program.segments if isinstance(part, Run)]
    once = [run.last - run.first for run in runs if run.once]
    steps = [step.kernel for step in program.steps]
    transforms = [kernel.startswith("winogradweights") for kernel in steps]
    assert once == [3] and transforms == [True] * 3 + [False] * (len(steps) - 3)
    compiled = load(tmp_path / "package", "wasm")
    session = onnxruntime.InferenceSession(model.SerializeToString())
    for condition, trips in ((True, 2), (False, 0), (True, 1)):
        feeds = {
            "c": np.array(condition),
            "n": np.array(trips),
            "x": random.standard_normal((1, 64, 60, 60)).astype(np.float32),
        }
        actual = compiled.run(feeds)
        for name, expected in zip(("y", "z"), session.run(None, feeds), strict=True):
            np.testing.assert_allclose(actual[name], expected, atol=1e-4)
