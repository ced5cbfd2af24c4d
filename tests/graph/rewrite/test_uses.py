"""Test that a rewriting counts the readers of each value as they are."""

from __future__ import annotations

import numpy as np
import pytest

from tests.graph.rewrite.uses import rewritten
from webmlc.core.dtypes import DType
from webmlc.core.expr import const
from webmlc.graph.builder import Builder, Value
from webmlc.graph.ir import Function, Node, TensorType
from webmlc.graph.quantise import compute_in_integers
from webmlc.graph.rewrite.patterns import P, Rule, Rules, by_operator, value
from webmlc.graph.rewrite.rewriting import Rewriting, Simplification, count_uses
from webmlc.graph.simplify import simplify_graph

VECTOR = TensorType(DType.float32, (const(4),))


def function(*nodes: tuple[str, str, str], outputs: tuple[str, ...]) -> Function:
    """A function of float vectors; each node is an operator, its inputs, and its outputs."""
    written = tuple(Node(op, tuple(i.split()), tuple(o.split())) for op, i, o in nodes)
    types = {"x": VECTOR} | {o: VECTOR for node in written for o in node.outputs}
    return Function("main", ("x",), outputs, written, types, {})


def test_readers_of_equal_nodes_are_added_up() -> None:
    source = function(
        ("Exp", "x", "a"), ("Exp", "x", "b"), ("Sin", "a", "p"), ("Cos", "b", "q"),
        outputs=("p", "q"),
    )  # fmt: skip
    rewriting = Simplification(source, {})
    rewriting.run()
    assert not rewriting.is_single_use("a")
    assert (rewriting.uses["a"], rewriting.uses["x"]) == (2, 1)


def test_a_node_counts_as_a_reader_once_something_reads_it() -> None:
    rewriting = Simplification(function(("Exp", "x", "y"), outputs=("y",)), {})
    build = Builder(Node("Sin", ("x",), ("z",)), rewriting)
    sine = build("Sin", "x")
    assert rewriting.uses["x"] == 1
    build("Cos", sine, output="y")
    assert (rewriting.uses["x"], rewriting.uses[sine]) == (2, 1)


def test_a_bypassed_node_reads_no_more() -> None:
    def bypass(x: Value) -> str:
        return x

    rules = by_operator([Rule(P("Neg", P("Neg", value("x"))), bypass)])
    source = function(
        ("Exp", "x", "a"), ("Neg", "a", "b"), ("Neg", "b", "c"), ("Sin", "c", "y"),
        outputs=("y",),
    )  # fmt: skip
    rewriting = Simplification(source, rules)
    rewriting.run()
    assert (rewriting.uses["a"], rewriting.uses["b"]) == (1, 0)


def test_dead_nodes_are_no_readers() -> None:
    source = function(("Exp", "x", "a"), ("Sin", "a", "b"), ("Cos", "x", "y"), outputs=("y",))
    assert count_uses(source) == {"x": 1, "y": 1}


def test_nodes_with_other_optional_outputs_are_not_equal() -> None:
    nodes = (Node("LayerNormalization", ("x", "x"), outputs) for outputs in (("y", "m"), ("z", "")))
    types = dict.fromkeys(("x", "y", "z", "m"), VECTOR)
    source = Function("main", ("x",), ("y", "z"), tuple(nodes), types, {})
    assert len(Simplification(source, {}).run().nodes) == 2


OPERATORS = ("Exp", "Neg", "Tanh", "Identity", "Add", "Mul", "Sub", "Transpose", "Bytes")
"""Operators that rules rewrite, or that stand between them; `Bytes` quantises and dequantises."""


def random_function(seed: int) -> Function:
    """A function of random nodes, of which some are equal and some are dead."""
    rng = np.random.default_rng(seed)
    writer = Rewriting(Function("main", (), (), (), {}, {}))
    writer.types["x"] = TensorType(DType.float32, (const(3), const(3)))
    values = ["x"]
    for number in range(30):
        build = Builder(Node("", (), (f"v{number}",)), writer)
        left, right = (build.value(values[rng.integers(max(0, len(values) - 6), len(values))])
                       for _ in range(2))  # fmt: skip
        operand = rng.choice([np.float32(0), np.float32(1), np.float32(2)])
        match str(rng.choice(OPERATORS)):
            case "Bytes":
                zero = np.int8(rng.integers(2))
                bytes_ = build("QuantizeLinear", left, np.float32(0.5), zero)
                result = build("DequantizeLinear", bytes_, np.float32(0.5), zero)
            case "Transpose":
                result = build("Transpose", left, perm=(1, 0))
            case "Add" | "Mul" | "Sub" as op:
                result = build(op, left, operand if rng.random() < 0.5 else right)
            case op:
                result = build(op, left)
        values.append(result)
    outputs = tuple(dict.fromkeys([*rng.choice(values[1:], 2), values[-1]]))
    nodes, types = tuple(writer.nodes), writer.types
    return Function("main", ("x",), outputs, nodes, types, writer.constants)


@pytest.mark.parametrize("rules", [simplify_graph.RULES, compute_in_integers.RULES])
def test_counts_of_random_graphs_equal_a_fresh_count(rules: Rules) -> None:
    changed = 0
    for seed in range(60):
        source = random_function(seed)
        after = rewritten(source, rules)
        changed += len(after.nodes) != len(source.nodes)
    assert changed
