"""Strassen's algorithm: when it is chosen, and the operators that it becomes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.graph.graphs import module, zeros
from webmlc.core.expr import as_int
from webmlc.core.machine import RELAXED
from webmlc.graph.algorithms.strassen.use_strassen import (
    CODE,
    Layer,
    direct_cost,
    strassen_cost,
    use_strassen,
    worthwhile,
)
from webmlc.graph.ir import Module
from webmlc.graph.layout.choose_layouts import choose_layouts


@pytest.fixture(autouse=True)
def _small_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """In graphs so small it would lose."""
    monkeypatch.setattr("webmlc.graph.algorithms.strassen.use_strassen.CODE", -(10**9))


def operators(graph: Module) -> list[str]:
    return [node.op for node in graph.main.nodes]


def product(rows: int | str = 13, depth: int = 16, columns: int = 32) -> Module:
    text = f"""
    g (float[n,{rows},{depth}] x) => (float[n,m,o] y)
    <{zeros("w", depth, columns)}> {{ y = MatMul (x, w) }}
    """
    return use_strassen(choose_layouts(module(text)), RELAXED)


def test_a_product_becomes_sums_of_quarters_and_their_products() -> None:
    graph = product()
    assert operators(graph) == ["StrassenInput", "StrassenProduct"]
    planes, result = (graph.main.types[node.outputs[0]].shape for node in graph.main.nodes)
    assert [*map(str, planes)] == ["7", "n", "7", "8"]
    assert [*map(str, result)] == ["n", "13", "32"]


def test_a_product_with_symbolic_rows_is_not_split() -> None:
    """They may be few."""
    assert operators(product(rows="m")) == ["MatMul"]


@pytest.mark.parametrize(("depth", "columns"), [(12, 32), (16, 24), (16, 30)])
def test_quarters_are_whole_vectors_and_panels(depth: int, columns: int) -> None:
    assert operators(product(depth=depth, columns=columns)) == ["MatMul"]


def convolution(lines: int | str = 5, line: int = 6, inputs: int = 16, **attributes: int) -> Module:
    kernel, stride, groups = (attributes.get(n, 1) for n in ("kernel", "stride", "groups"))
    text = f"""
    g (float[n,16,{lines},{line}] x) => (float[n,32,h,w] y)
    <{zeros("w", 32, inputs, kernel, kernel)}> {{
      y = Conv <strides = [{stride},{stride}], group = {groups}> (x, w)
    }}
    """
    return use_strassen(choose_layouts(module(text)), RELAXED)


def test_a_convolution_with_one_tap_becomes_a_product_of_its_pixels() -> None:
    graph = convolution()
    expected = ["Transpose", "StrassenInput", "StrassenProduct", "Transpose"]
    assert operators(graph) == expected
    planes, result = (graph.main.types[node.outputs[0]].shape for node in graph.main.nodes[1:3])
    assert [*map(str, planes)] == ["7", "n", "5", "3", "8"]
    assert [*map(str, result)] == ["n", "5", "6", "32"]


@pytest.mark.parametrize(
    "sizes",
    [
        {"line": 7},  # a pair would be of two lines
        {"lines": "h"},
        {"kernel": 3},
        {"stride": 2},
        {"inputs": 8, "groups": 2},
    ],
    ids=str,
)
def test_other_convolutions_are_not_split(sizes) -> None:
    assert operators(convolution(**sizes)) == ["Transpose", "Conv", "Transpose"]


def test_a_product_with_computed_weights_is_not_split() -> None:
    text = "g (float[8,16] x, float[16,32] w) => (float[8,32] y) { y = MatMul (x, w) }"
    assert "StrassenProduct" not in operators(use_strassen(choose_layouts(module(text)), RELAXED))


def test_products_share_the_sums_of_their_left_operand() -> None:
    text = f"""
    g (float[16,16] x) => (float[16,32] y, float[16,48] z)
    <{zeros("w", 16, 32)}, {zeros("v", 16, 48)}> {{ y = MatMul (x, w) z = MatMul (x, v) }}
    """
    graph = use_strassen(choose_layouts(module(text)), RELAXED)
    assert operators(graph) == ["StrassenInput", "StrassenProduct", "StrassenProduct"]


def test_products_in_branches_are_split_too() -> None:
    text = f"""
    g (bool c, float[16,16] x) => (float[16,32] y) <{zeros("w", 16, 32)}> {{
      y = If (c) <
        then_branch = t () => (float[16,32] a) {{ a = MatMul (x, w) }},
        else_branch = e () => (float[16,32] b) {{ s = MatMul (x, w) b = Relu (s) }}
      >
    }}
    """
    graph = use_strassen(choose_layouts(module(text)), RELAXED)
    nodes = [node.op for function in graph.functions.values() for node in function.nodes]
    assert nodes.count("StrassenProduct") == 2 and "MatMul" not in nodes


@pytest.mark.parametrize(
    ("layer", "count", "expected"),
    [
        (Layer(1024, 1024, 1024), 1, True),
        (Layer(197, 192, 768), 12, True),
        (Layer(197, 192, 768), 1, False),  # its kernels would be a kilobyte more of code
        (Layer(197, 192, 192), 12, False),  # as long as its planes take
        (Layer(197, 192, 192, readers=3), 36, True),
        (Layer(1500, 384, 1536), 4, True),
        (Layer(1500, 1536, 384), 4, False),  # 16 MB of planes, read again for every pair of panels
        (Layer(49, 512, 2048), 9, False),  # so few rows that the weights' sums take longer
        (Layer(1, 4096, 4096), 9, False),
    ],
)
def test_the_cost_model(layer: Layer, count: int, expected: bool, monkeypatch) -> None:
    monkeypatch.setattr("webmlc.graph.algorithms.strassen.use_strassen.CODE", CODE)
    assert (layer in worthwhile([layer] * count, RELAXED)) == expected


def saved(layer: Layer) -> int:
    """Multiply-adds that one layer saves."""
    cost = strassen_cost(layer, RELAXED)
    return 0 if cost is None else direct_cost(layer, RELAXED) - cost.total


def test_no_more_than_an_eighth_is_saved() -> None:
    for size in (256, 512, 1024):
        assert 0 < saved(Layer(size, size, size)) < size**3 // 8


def test_an_odd_row_is_paired_with_itself() -> None:
    """An odd row needs a whole further pair, which costs the products of a row."""
    assert saved(Layer(512, 256, 256)) > saved(Layer(511, 256, 256))
    assert as_int(product(rows=1).main.types["x.halves"].shape[2]) == 1


def test_products_are_those_of_the_machine() -> None:
    """Planes that its caches do not keep are no gain."""
    layer = Layer(1024, 1024, 1024)
    assert strassen_cost(layer, replace(RELAXED, l3_resident_bytes=1 << 20)) is None
