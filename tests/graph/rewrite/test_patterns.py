"""Patterns match the nodes that they describe, and capture their parts."""

from __future__ import annotations

import numpy as np
import pytest

from webmlc.core.dtypes import DType
from webmlc.core.errors import InternalError
from webmlc.core.expr import const
from webmlc.graph.builder import Builder, Value
from webmlc.graph.ir import Function, Node, TensorType
from webmlc.graph.rewrite.patterns import (
    Nodes,
    P,
    Rule,
    by_operator,
    constant,
    nothing,
    number,
    value,
    view,
)
from webmlc.graph.rewrite.rewriting import Rewriting, Simplification, rewritten

VECTOR = TensorType(DType.float32, (const(4),))
NODES = (
    Node("Tanh", ("x",), ("t",)),
    Node("Mul", ("a", "t"), ("m",)),
    Node("Add", ("m", "b"), ("y",)),
    Node("Clip", ("x", "", "a"), ("z",)),
)
FUNCTION = Function(
    "main",
    ("x",),
    ("y", "z"),
    NODES,
    dict.fromkeys(("x", "t", "m", "y", "z"), VECTOR),
    {"a": np.array(2, np.float32), "b": np.full(4, 2, np.float32)},
)


def captures(pattern: Nodes, node: Node) -> list[dict[str, object]]:
    rewriting = Simplification(FUNCTION, {})
    for earlier in NODES[: NODES.index(node)]:
        rewriting.add(earlier)
    return list(pattern.of_node(node, Builder(node, rewriting), rewriting, {}))


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        (P("Mul", value("l"), value("r")), [{"l": "a", "r": "t"}, {"l": "t", "r": "a"}]),
        (P("Mul", P("Tanh", value("x")), number("k")), [{"x": "x", "k": "a"}]),
        (P("Mul", P("Tanh", value("x")).once(), constant("k")), [{"x": "x", "k": "a"}]),
        (P("Mul", P("Exp", value("x")) | P("Tanh", value("x")), constant("")), [{"x": "x"}]),
        (P("Mul", constant("k"), constant("k")), []),
        (P("Mul", value("l").where(lambda v: v == "t"), value("")), [{"l": "t"}]),
        (P("Mul", view("rank", lambda _, v: v.type.rank), constant("")), [{"rank": 1}]),
        (P("Mul", value("x")), []),
        (P("Mul", P("Tanh"), more=True), []),
        (P(("Mul", "Add")), [{}]),
    ],
)
def test_a_pattern_matches_each_order_of_a_product(
    pattern: Nodes, expected: list[dict[str, object]]
) -> None:
    assert captures(pattern, NODES[1]) == expected


def test_a_name_of_a_node_captures_the_node() -> None:
    (match,) = captures(P("Mul", P("Tanh", name="maker"), constant("")), NODES[1])
    assert isinstance(match["maker"], Node)
    assert (match["maker"].op, match["maker"].outputs) == ("Tanh", ("t",))


def test_a_name_stands_for_equal_constants() -> None:
    scaled = P("Mul", P("Tanh", value("x")), number("a"))
    assert captures(P("Add", scaled, constant("a")), NODES[2]) == [{"x": "x", "a": "b"}]
    assert captures(P("Add", P("Mul", value("x"), value("x")), value("")), NODES[2]) == []


def test_an_omitted_input_matches_nothing() -> None:
    low = constant("low") | nothing("low")
    assert captures(P("Clip", value("x"), low, number("high")), NODES[3]) == [
        {"x": "x", "low": None, "high": "a"}
    ]
    assert captures(P("Clip", value("x"), value("low"), value("high")), NODES[3]) == []


def square(x: Value, y: Value) -> Value:
    """tanh(x)  ->  relu(x) · x"""
    assert (x, y) == ("x", "t")
    return x.op("Relu") * x


@pytest.mark.parametrize(("kind", "relu"), [(Rewriting, "t/Relu"), (Simplification, "t/Relu_1")])
def test_the_node_that_a_rule_writes_last_has_the_name_of_the_output(
    kind: type[Rewriting], relu: str
) -> None:
    after = kind(FUNCTION, by_operator([Rule(P("Tanh", value("x")), square)])).run()
    assert [(n.op, n.outputs[0]) for n in after.nodes[:2]] == [("Relu", relu), ("Mul", "t")]
    assert after.types["t"] == VECTOR
    assert [n.op for n in after.nodes[2:]] == ["Mul", "Add", "Clip"]


def test_a_rule_may_write_the_values_of_later_nodes() -> None:
    def both(x: Value, build: Builder) -> Value:
        build("Neg", x, output="m")
        return build("Exp", x, output="t")

    after = rewritten(FUNCTION, [Rule(P("Tanh", value("x")), both)])
    # The value of the rule's own node is dead: only the node that is passed over reads it.
    assert [(n.op, *n.outputs) for n in after.nodes] == [
        ("Neg", "m"), ("Add", "y"), ("Clip", "z"),
    ]  # fmt: skip
    assert after.constants.keys() == {"a", "b"}


def test_a_rule_that_returns_another_value_is_refused() -> None:
    def bypass(x: Value) -> Value:
        return x

    with pytest.raises(InternalError, match="'x' is not the last value written"):
        rewritten(FUNCTION, [Rule(P("Tanh", value("x")), bypass)])
