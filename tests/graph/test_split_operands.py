"""Nodes of many operands: as many kernels as bindings ask for, and the same result."""

from __future__ import annotations

import numpy as np
import pytest

from tests.graph.graphs import module
from webmlc.graph.evaluate_module import evaluate_module
from webmlc.graph.fuse import FusionLimits
from webmlc.graph.split_operands import split_operands


def _text(count: int, size: str = "3") -> str:
    parts = [f"x{i}" for i in range(count)]
    inputs = ", ".join(f"float[2,{size}] {part}" for part in parts)
    return f"g ({inputs}) => (float[2,m] y) {{ y = Concat<axis = -1>({', '.join(parts)}) }}"


@pytest.mark.parametrize(("count", "kernels"), [(7, 1), (8, 2), (20, 4), (60, 12)])
def test_no_concat_binds_more_than_the_limit(count: int, kernels: int) -> None:
    made = split_operands(module(_text(count)), FusionLimits(buffers=8))
    assert [node.op for node in made.main.nodes] == ["Concat"] * kernels
    assert max(len(node.inputs) for node in made.main.nodes) <= 7
    rng = np.random.default_rng(0)
    inputs = {f"x{i}": rng.random((2, 3), np.float32) for i in range(count)}
    want = np.concatenate(list(inputs.values()), -1)
    np.testing.assert_array_equal(evaluate_module(made, inputs)["y"], want)
    assert all(made.main.type(n.outputs[0]).static_shape is not None for n in made.main.nodes)


def test_lengths_may_be_symbolic() -> None:
    made = split_operands(module(_text(9, "n")), FusionLimits(buffers=8))
    first = made.main.nodes[0]
    assert str(made.main.type(first.outputs[0])) == "float32[2, n * 7]"
