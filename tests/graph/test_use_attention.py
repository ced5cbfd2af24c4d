"""Attention as one operator: the forms that are recognised, and those that are not replaced."""

from __future__ import annotations

import pytest

from tests.graph.graphs import module
from webmlc.graph.algorithms.attention.use_attention import use_attention
from webmlc.graph.ir import Module
from webmlc.graph.layout.choose_layouts import choose_layouts

PLAIN = "p = Softmax <axis = -1> (s)"
SCALED = "m = Mul(s, c) a = Add(bias, m) p = Softmax <axis = -1> (a)"


def attention(middle: str, queries: int = 600, output: str = "y") -> Module:
    text = f"""
    g (float[2,{queries},8] q, float[2,8,500] k, float[2,500,8] v, float[1,500] bias)
      => (float[a,b,d] {output})
    <float c = {{0.5}}> {{ s = MatMul(q, k) {middle} y = MatMul(p, v) }}
    """
    return use_attention(choose_layouts(module(text)))


def operators(graph: Module) -> list[str]:
    return [node.op for node in graph.main.nodes]


@pytest.mark.parametrize("middle", [PLAIN, SCALED])
def test_products_around_a_softmax_are_one_operator(middle: str) -> None:
    assert operators(attention(middle)) == ["Pack", "Pack", "Attention"]


def test_attention_includes_scale_and_bias() -> None:
    node = attention(SCALED).main.nodes[-1]
    assert node.inputs == ("q", "s.packed", "y.packed", "bias")
    assert node.attributes["scale"] == 0.5


def test_attention_includes_a_scale_by_division() -> None:
    node = attention("m = Div(s, c) p = Softmax <axis = -1> (m)").main.nodes[-1]
    assert node.attributes["scale"] == 2


@pytest.mark.parametrize(
    "middle",
    [
        "m = Div(c, s) p = Softmax <axis = -1> (m)",
        "p = Softmax <axis = 1> (s)",
        "m = Relu(s) p = Softmax <axis = -1> (m)",
    ],
)
def test_other_forms_of_attention_are_not_replaced(middle: str) -> None:
    assert "Attention" not in operators(attention(middle))


def test_scores_with_other_consumers_are_not_replaced() -> None:
    assert "Softmax" in operators(attention(PLAIN, output="p, float[a,b,d] y"))


@pytest.mark.parametrize("queries", [100, 601])
def test_few_scores_and_rows_that_divide_badly_are_not_replaced(queries: int) -> None:
    assert "Softmax" in operators(attention(PLAIN, queries))


def test_attention_in_branches_is_replaced_too() -> None:
    text = """
    g (bool c, float[2,600,8] q, float[2,8,500] k, float[2,500,8] v) => (float[2,600,8] y) {
      y = If (c) <
        then_branch = t () => (float[2,600,8] a) {
          s = MatMul (q, k) p = Softmax <axis = -1> (s) a = MatMul (p, v) },
        else_branch = e () => (float[2,600,8] b) { b = Relu (q) }
      >
    }
    """
    graph = use_attention(choose_layouts(module(text)))
    nodes = [node.op for function in graph.functions.values() for node in function.nodes]
    assert nodes.count("Attention") == 1 and "Softmax" not in nodes
