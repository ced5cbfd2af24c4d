"""Constants that are added one after another to integers are added at once."""

from __future__ import annotations

import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator

from tests.against_onnxruntime import parse
from webmlc.frontend.read_model import read_model
from webmlc.graph.infer.evaluate import evaluate_module
from webmlc.graph.infer.infer_shapes import infer_shapes
from webmlc.graph.ir import Module
from webmlc.graph.quantise.join_shifts import join_shifts

X = np.array([[5, -7, 2**31 - 1], [-(2**31), 0, 11]], np.int32)


def joined(text: str) -> tuple[list[str], Module]:
    """The operators of a graph after the pass, and the module."""
    module = join_shifts(infer_shapes(read_model(parse(text))))
    return [node.op for node in module.main.nodes], module


def check(text: str, module: Module, x: np.ndarray) -> None:
    """The outputs are those of the reference."""
    expected = ReferenceEvaluator(parse(text)).run(None, {"x": x})
    outputs = evaluate_module(module, {"x": x})
    for name, value in zip(module.main.outputs, expected, strict=True):
        np.testing.assert_array_equal(outputs[name], value)


CHAIN = """
chain (int32[2, 3] x) => (int32[2, 3] y)
  <int32[3] a = {1, 2, 2147483647}, int32 b = {-3}, int32[1, 3] c = {9, 2147483647, 4}> {
  p = Sub (x, a)
  q = Add (b, p)
  y = Add (q, c)
}
"""


def test_a_chain_of_sums_and_differences_is_one_sum() -> None:
    operators, module = joined(CHAIN)
    assert operators == ["Add"]
    assert list(module.main.nodes[0].inputs) == ["x", "-a+b+c"]
    check(CHAIN, module, X)


def test_a_result_that_others_read_stays() -> None:
    text = """
shared (int32[2, 3] x) => (int32[2, 3] y, int32[2, 3] z) <int32[3] a = {1, 2, 3}, int32 b = {4}> {
  p = Add (x, a)
  y = Add (p, b)
  z = Mul (p, p)
}
"""
    operators, module = joined(text)
    assert sorted(operators) == ["Add", "Add", "Mul"]
    assert sum("x" in node.inputs for node in module.main.nodes) == 2
    check(text, module, X % 1000)


@pytest.mark.parametrize(
    "text",
    [
        # The constant is what is subtracted from.
        """
reversed (int32[2, 3] x) => (int32[2, 3] y) <int32 a = {1}, int32 b = {2}> {
  p = Sub (a, x)
  y = Add (p, b)
}
""",
        # Sums of floats are rounded one after another.
        """
floats (float[2, 3] x) => (float[2, 3] y) <float a = {1e8}, float b = {-1e8}> {
  p = Add (x, a)
  y = Add (p, b)
}
""",
        # A constant for each element may be large.
        """
rows (int32[2, 3] x) => (int32[2, 3] y) <int32[2, 1] a = {1, 2}, int32[3] b = {3, 4, 5}> {
  p = Add (x, a)
  y = Add (p, b)
}
""",
    ],
)
def test_other_sums_stay(text: str) -> None:
    operators, module = joined(text)
    assert len(operators) == 2
    check(text, module, (X % 1000).astype(np.float32 if "float" in text else np.int32))
