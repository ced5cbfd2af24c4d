"""The three packages that every host runs: their inputs, and onnxruntime's outputs for them.

package = quantised(tmp_path)     # built into tmp_path / "quantised"
package.feeds_as_json()           # one item a run, for page.js
package.check(outputs)            # raises AssertionError where they differ from onnxruntime's
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import numpy_helper, parser

import webmlc
from demos.digits.build import HERE as DIGITS
from demos.digits.run import held_out
from tests.graph.quantised import SHAPE, quantised_cnn

Array = NDArray[Any]
Tensors = Mapping[str, Array]
Check = Callable[[Array, Array], None]


@dataclass(frozen=True, slots=True)
class Package:
    """A package in the folder `name` of a site, the inputs of some runs, and their results.

    The latency that hosts report is that of the last run.
    """

    name: str
    feeds: tuple[Tensors, ...]
    expected: tuple[Tensors, ...]
    check_array: Check

    def feeds_as_json(self) -> list[dict[str, Any]]:
        """The inputs of each run, as page.js reads them."""
        return [{name: _as_json(array) for name, array in run.items()} for run in self.feeds]

    def check(self, results: Sequence[Mapping[str, Any]]) -> None:
        """Compare what page.js returned with onnxruntime's results, all runs, all outputs."""
        for run, outputs in zip(results, self.expected, strict=True):
            assert run.keys() == outputs.keys()
            for name, array in outputs.items():
                tensor = run[name]
                assert (tensor["dtype"], tuple(tensor["shape"])) == (array.dtype.name, array.shape)
                data = np.array(tensor["data"], array.dtype)
                self.check_array(data.reshape(tensor["shape"]), array)


def digits(site: Path) -> Package:
    """The demo's classifier: one digit, and 32 of them."""
    images, _ = held_out()
    runs = [{"image": images[:1]}, {"image": images[:32]}, {"image": images[:1]}]
    return _package(site, "digits", onnx.load(DIGITS / "digits.onnx"), runs, _is_close)


ATTENTION = """
<ir_version: 9, opset_import: ["" : 20]>
attention (int64[batch, length] tokens) => (float[batch, length, 64] y, float[batch, 64] pooled) {
  x = Gather(table, tokens)
  queries = MatMul(x, query_weight)
  keys = MatMul(x, key_weight)
  values = MatMul(x, value_weight)
  columns = Transpose<perm = [0, 2, 1]>(keys)
  scores = MatMul(queries, columns)
  shares = Softmax<axis = -1>(scores)
  mixed = MatMul(shares, values)
  residual = Add(x, mixed)
  normalised = LayerNormalization<axis = -1>(residual, scale, bias)
  wide = MatMul(normalised, wide_weight)
  active = Gelu(wide)
  narrow = MatMul(active, narrow_weight)
  y = Add(normalised, narrow)
  pooled = ReduceMean<keepdims = 0>(y, axis)
}
"""
TOKENS = 50
ATTENTION_WEIGHTS: Mapping[str, tuple[int, ...]] = {
    "table": (TOKENS, 64),
    "query_weight": (64, 64),
    "key_weight": (64, 64),
    "value_weight": (64, 64),
    "scale": (64,),
    "bias": (64,),
    "wide_weight": (64, 256),
    "narrow_weight": (256, 64),
}


def attention(site: Path) -> Package:
    """A transformer's layer of symbolic batch and length.

    The second run needs more memory than the first, which moves it; the last is long enough for
    two threads.
    """
    rng = np.random.default_rng(0)
    model = parser.parse_model(ATTENTION)
    for name, shape in ATTENTION_WEIGHTS.items():
        weight = rng.standard_normal(shape) / np.sqrt(shape[0] if len(shape) == 2 else 1)
        model.graph.initializer.append(numpy_helper.from_array(weight.astype(np.float32), name))
    model.graph.initializer.append(numpy_helper.from_array(np.array([1]), "axis"))
    sizes = [(1, 7), (3, 90), (1, 1), (2, 240)]
    runs = [{"tokens": rng.integers(0, TOKENS, size)} for size in sizes]
    return _package(site, "attention", model, runs, _is_close)


def quantised(site: Path) -> Package:
    """A small CNN that onnxruntime quantised to bytes."""
    scratch = site / "quantised_model"
    scratch.mkdir()
    model = quantised_cnn(scratch)
    constants = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    (last,) = [node for node in model.graph.node if "y" in node.output]
    rng = np.random.default_rng(5)
    runs = [{"x": rng.standard_normal((n, *SHAPE[1:])).astype(np.float32)} for n in (2, 1, 3)]
    step = float(constants[last.input[1]])
    return _package(site, "quantised", model, runs, lambda a, b: _within_a_step(a, b, step))


PACKAGES: Mapping[str, Callable[[Path], Package]] = {
    "digits": digits,
    "attention": attention,
    "quantised": quantised,
}


def _package(
    site: Path, name: str, model: onnx.ModelProto, runs: Iterable[Tensors], check: Check
) -> Package:
    """Build the package for both devices; run the model in onnxruntime."""
    webmlc.build(model, site / name, target="both")
    options = onnxruntime.SessionOptions()
    # Without this, products of bytes saturate on processors without VNNI.
    options.add_session_config_entry("session.x64quantprecision", "1")
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    names = [output.name for output in model.graph.output]
    feeds = tuple(runs)
    expected = tuple(dict(zip(names, session.run(None, run), strict=True)) for run in feeds)
    return Package(name, feeds, expected, check)


def _as_json(array: Array) -> dict[str, Any]:
    return {"dtype": array.dtype.name, "shape": array.shape, "data": array.ravel().tolist()}


def _is_close(actual: Array, expected: Array) -> None:
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)


def _within_a_step(actual: Array, expected: Array, step: float) -> None:
    """Every element within one step of the output's quantisation, most of them equal."""
    steps = np.abs(actual - expected) / step
    assert steps.max() < 1.01
    assert np.mean(steps < 0.5) >= 0.8
