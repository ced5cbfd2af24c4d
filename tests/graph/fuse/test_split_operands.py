"""Nodes with many operands are split into kernels that bind few buffers. The result stays the
same.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.against_onnxruntime import check, parse
from tests.graph.graphs import module
from webmlc.graph.fuse.fusion_limits import FusionLimits
from webmlc.graph.fuse.split_operands import split_operands
from webmlc.graph.infer.evaluate import evaluate_module


def _text(count: int, size: str = "3") -> str:
    parts = [f"x{i}" for i in range(count)]
    inputs = ", ".join(f"float[2,{size}] {part}" for part in parts)
    return f"g ({inputs}) => (float[2,m] y) {{ y = Concat<axis = -1>({', '.join(parts)}) }}"


@pytest.mark.parametrize(("count", "kernels"), [(7, 1), (8, 2), (20, 4), (60, 12)])
def test_no_concat_binds_more_than_the_limit(count: int, kernels: int) -> None:
    graph = split_operands(module(_text(count)), FusionLimits(buffers=8))
    assert [node.op for node in graph.main.nodes] == ["Concat"] * kernels
    assert max(len(node.inputs) for node in graph.main.nodes) <= 7
    rng = np.random.default_rng(0)
    inputs = {f"x{i}": rng.random((2, 3), np.float32) for i in range(count)}
    want = np.concatenate(list(inputs.values()), -1)
    np.testing.assert_array_equal(evaluate_module(graph, inputs)["y"], want)
    assert all(graph.main.type(n.outputs[0]).static_shape is not None for n in graph.main.nodes)


def test_lengths_may_be_symbolic() -> None:
    graph = split_operands(module(_text(9, "n")), FusionLimits(buffers=8))
    first = graph.main.nodes[0]
    assert str(graph.main.type(first.outputs[0])) == "float32[2, n * 7]"


@pytest.mark.parametrize("op", ["Sum", "Mean", "Max", "Min"])
def test_folds_keep_their_order(op: str) -> None:
    parts = [f"x{i}" for i in range(20)]
    inputs = ", ".join(f"float[3] {part}" for part in parts)
    source = module(f"g ({inputs}) => (float[3] y) {{ y = {op}({', '.join(parts)}) }}")
    split = split_operands(source, FusionLimits(buffers=8))
    assert max(len(node.inputs) for node in split.main.nodes) <= 7
    rng = np.random.default_rng(0)
    values = {part: rng.random(3, np.float32) for part in parts}
    expected = evaluate_module(source, values)["y"]
    np.testing.assert_array_equal(evaluate_module(split, values)["y"], expected)


@pytest.mark.parametrize("size", ["20", "n"])
def test_no_split_binds_more_than_the_limit(size: str) -> None:
    parts = [f"y{i}" for i in range(20)]
    outputs = ", ".join(f"float[m] {part}" for part in parts)
    source = module(f"g (float[{size}] x) => ({outputs}) {{ {', '.join(parts)} = Split(x) }}")
    split = split_operands(source, FusionLimits(buffers=8))
    splits = [node for node in split.main.nodes if node.op == "Split"]
    assert [len(node.outputs) for node in splits] == [7, 7, 6]
    if size != "n":
        x = np.arange(20, dtype=np.float32)
        for part, value in evaluate_module(split, {"x": x}).items():
            np.testing.assert_array_equal(value, x[int(part[1:]), None], err_msg=part)


@pytest.mark.parametrize(
    ("shape", "axis", "sizes"),
    [
        ((3, 20), 1, [1] * 20),
        ((20, "n"), 0, [1] * 20),
        ((2, 40, "n"), -2, [1, 3] * 10),
        (("n", 25), -1, [1] * 7 + [3] + [0] + [1] * 15),
        ((17,), 0, [1] * 17),
    ],
)
def test_devices_have_groups_of_different_sizes(
    shape: tuple[int | str, ...], axis: int, sizes: list[int], tmp_path: Path
) -> None:
    """A package for both devices joins the parts again in the reverse order."""
    parts = [f"y{i}" for i in range(len(sizes))]
    numbers = ", ".join(map(str, sizes))
    dims = ", ".join("m" if size == "n" else str(size) for size in shape)
    model = parse(
        f"""g (float[{dims}] x) => (float[{dims}] y)
        <int64[{len(sizes)}] sizes = {{{numbers}}}> {{
            {", ".join(parts)} = Split<axis = {axis}>(x, sizes)
            y = Concat<axis = {axis}>({", ".join(reversed(parts))}) }}"""
    )
    x = np.random.default_rng(0).random([2 if isinstance(s, str) else s for s in shape], np.float32)
    check(model, tmp_path, {"x": x})
