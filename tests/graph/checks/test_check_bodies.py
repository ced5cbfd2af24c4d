"""Requirements inside control flow become counts in 32-bit integers, also of more elements."""

from __future__ import annotations

import pytest

from tests.graph.graphs import module
from webmlc.core.expr import Expr
from webmlc.core.rewrite import evaluate
from webmlc.graph.checks.check_bodies import check_bodies

OUTER_PRODUCT = """g (bool c, float[n] x, float[m] z) => (float y) <int64[2] s = {-1,1}> {
    y = If(c) <
        then_branch = t () => (float a) {
            r = Reshape(x, s) p = Mul(r, z) a = ReduceSum<keepdims=0>(p) },
        else_branch = e () => (float b) { b = ReduceSum<keepdims=0>(x) }> }"""
"""The branch has an intermediate of n · m elements."""


def counts(text: str) -> list[Expr]:
    """The elements of every count that sizes decide."""
    checked = check_bodies(module(text))
    nodes = (node for function in checked.functions.values() for node in function.nodes)
    values = (n.attributes["elements"] for n in nodes if n.op == "SymbolicConstant")
    return [e for elements in values for e in elements if isinstance(e, Expr)]


@pytest.mark.parametrize(
    ("n", "m", "fails"),
    [
        (2, 3, 0),
        (46340, 46341, 0),
        (46341, 46341, 1),
        (1 << 16, 1 << 16, 1),
        (0, 1 << 30, 0),
        (1 << 30, 0, 0),
    ],
)
def test_elements_of_a_branch_are_counted(n: int, m: int, fails: int) -> None:
    assert [evaluate(count, {"n": n, "m": m}) for count in counts(OUTER_PRODUCT)] == [fails]
