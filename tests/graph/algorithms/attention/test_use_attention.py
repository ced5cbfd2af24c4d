"""Attention as one operator: the forms that are recognised, and those that are not replaced."""

from __future__ import annotations

import pytest

from tests.graph.graphs import module
from webmlc.graph.algorithms.attention.use_attention import Operands, use_attention
from webmlc.graph.fuse.fuse import fuse
from webmlc.graph.fuse.fusion_limits import FusionLimits
from webmlc.graph.ir import Function, Module
from webmlc.graph.layout.choose_layouts import choose_layouts

PLAIN = "p = Softmax <axis = -1> (s)"
SCALED = "m = Mul(s, c) a = Add(bias, m) p = Softmax <axis = -1> (a)"
MAPS = ("Mul", "Add", "Relu")
"""The operators between the products."""
OPERANDS: tuple[Operands, ...] = ("packed", "plain")
GPU = FusionLimits(buffers=8, joins_transposes=True)
"""Limits like those of a GPU."""


def attention(
    middle: str, operands: Operands, queries: int = 600, output: str = "y", constants: str = ""
) -> Module:
    text = f"""
    g (float[2,{queries},8] q, float[2,8,500] k, float[2,500,8] v, float[1,500] bias)
      => (float[a,b,d] {output})
    <float c = {{0.5}}{constants}> {{ s = MatMul(q, k) {middle} y = MatMul(p, v) }}
    """
    return use_attention(choose_layouts(module(text)), operands)


def heads(queries: str = "", keys: str = "") -> Module:
    """Attention as exporters write it: heads are transposed in front of products and behind them.
    `queries` and `keys` are nodes that compute `a` and `b` of the transposed `q` and `k`.
    """
    text = f"""
    g (float[2,n,3,8] x, float[2,n,3,8] y, float[2,n,3,8] z, float[2,1,1,n] mask)
      => (float[2,n,3,8] result) <float c = {{0.5}}> {{
      q = Transpose <perm = [0, 2, 1, 3]> (x) {queries or "a = Identity(q)"}
      k = Transpose <perm = [0, 2, 3, 1]> (y) {keys or "b = Identity(k)"}
      v = Transpose <perm = [0, 2, 1, 3]> (z)
      s = MatMul(a, b) l = Add(s, mask) p = Softmax <axis = -1> (l) o = MatMul(p, v)
      result = Transpose <perm = [0, 2, 1, 3]> (o)
    }}
    """
    return use_attention(choose_layouts(module(text)), "plain")


def operators(graph: Module) -> list[str]:
    return [node.op for node in graph.main.nodes]


@pytest.mark.parametrize("middle", [PLAIN, SCALED, "m = Relu(s) p = Softmax <axis = -1> (m)"])
def test_a_softmax_and_a_product_are_one_operator(middle: str) -> None:
    """The nodes between the products stay. Only the CPU packs operands."""
    maps = [word.partition("(")[0] for word in middle.split() if word.startswith(MAPS)]
    assert operators(attention(middle, "plain")) == ["MatMul", *maps, "Attention"]
    assert operators(attention(middle, "packed")) == ["Pack", "MatMul", *maps, "Pack", "Attention"]


@pytest.mark.parametrize("operands", OPERANDS)
@pytest.mark.parametrize("middle", ["p = Softmax <axis = 1> (s)", "p = LogSoftmax <axis = -1> (s)"])
def test_other_weights_are_not_replaced(middle: str, operands: Operands) -> None:
    assert "Attention" not in operators(attention(middle, operands))


@pytest.mark.parametrize("operands", OPERANDS)
def test_weights_with_other_readers_are_not_replaced(operands: Operands) -> None:
    assert "Softmax" in operators(attention(PLAIN, operands, output="p, float[a,b,d] y"))


@pytest.mark.parametrize("queries", [100, 601])
def test_few_scores_and_rows_that_divide_badly_stay_apart_on_the_cpu(queries: int) -> None:
    assert "Softmax" in operators(attention(PLAIN, "packed", queries))
    assert "Softmax" not in operators(attention(PLAIN, "plain", queries))


def test_a_product_with_constant_weights_is_not_attention() -> None:
    text = """
    g (float[2,30,8] x) => (float[2,30,4] y) <float[8,4] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12,
      13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32}> {
      p = Softmax <axis = -1> (x) y = MatMul(p, w) }
    """
    graph = use_attention(choose_layouts(module(text)), "plain")
    assert "Attention" not in operators(graph)


def test_factors_of_queries_and_keys_become_one_of_the_logits() -> None:
    graph = heads("a = Mul(q, c)", "d = Mul(k, c) b = Div(d, c)")
    scale = next(node for node in graph.main.nodes if node.op == "Mul")
    assert graph.main.constants[scale.inputs[1]] == 0.5
    assert operators(graph).count("Mul") == 1 and "Div" not in operators(graph)


def test_a_kernel_transposes_operands_and_result() -> None:
    graph = fuse(heads("a = Mul(q, c)"), GPU).main
    (kernel,) = (node for node in graph.nodes if node.op == "fused")
    body = kernel.attributes["body"]
    assert isinstance(body, Function)
    assert [node.op for node in body.nodes].count("Transpose") == 4
    assert set(kernel.inputs) == {"x", "y", "z", "mask"} and kernel.outputs == ("result",)


@pytest.mark.parametrize(("queries", "is_replaced"), [(500, False), (600, True), (1, True)])
def test_products_of_as_many_queries_as_keys_can_stay_apart(
    queries: int, is_replaced: bool
) -> None:
    graph = use_attention(_scores(queries), "plain", apart=True)
    assert ("Attention" in operators(graph)) == is_replaced
    assert "Attention" in operators(use_attention(_scores(queries), "plain"))


def _scores(queries: int) -> Module:
    """Attention with 500 keys, before its operators are replaced."""
    text = f"""
    g (float[2,{queries},8] q, float[2,8,500] k, float[2,500,8] v) => (float[2,{queries},8] y) {{
      s = MatMul(q, k) p = Softmax <axis = -1> (s) y = MatMul(p, v) }}
    """
    return choose_layouts(module(text))


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
    graph = use_attention(choose_layouts(module(text)), "packed")
    nodes = [node.op for function in graph.functions.values() for node in function.nodes]
    assert nodes.count("Attention") == 1 and "Softmax" not in nodes
