"""Nodes in any order: they are sorted, subgraphs and local functions too; a cycle is named."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest

import webmlc
from tests.against_onnxruntime import parse
from webmlc.core.errors import ModelError
from webmlc.frontend.read_model import read_model
from webmlc.frontend.sort_nodes import sort_nodes

DIGITS = Path(__file__).parents[2] / "demos" / "digits" / "digits.onnx"

CHAIN = "g (float[2] x) => (float[2] y) { a = Abs(x)  b = Neg(a)  c = Exp(a)  y = Add(b, c) }"
LOOP = """g (float[2] x, int64 n, bool c) => (float[2] y) {
    w = Exp(x)
    y = Loop (n, c, x) <body = b (int64 i, bool k, float[2] s) => (bool l, float[2] t) {
        l = Identity (k)
        u = Mul (s, w)
        v = Add (u, x)
        t = Neg (v) }>
}"""
FUNCTION = """<ir_version: 8, opset_import: ["" : 17, "mine" : 1]>
g (float[2] x) => (float[2] y) { y = mine.f(x) }
<domain: "mine", opset_import: ["" : 17]>
f (a) => (d) { b = Exp(a)  c = Neg(b)  d = Add(c, b) }"""


def reverse(nodes) -> None:  # type: ignore[no-untyped-def]
    """Reverse a list of nodes in place."""
    backwards = [*nodes][::-1]
    del nodes[:]
    nodes.extend(backwards)


def files_of(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def test_a_sorted_model_is_left_alone() -> None:
    model = onnx.load(DIGITS)
    assert sort_nodes(model) is model


def test_a_model_in_reversed_order_is_the_same_package(tmp_path: Path) -> None:
    model = onnx.load(DIGITS)
    webmlc.build(model, tmp_path / "given")
    before = model.SerializeToString()
    reverse(model.graph.node)
    assert model.SerializeToString() != before
    webmlc.build(model, tmp_path / "reversed")
    assert files_of(tmp_path / "given") == files_of(tmp_path / "reversed")


@pytest.mark.parametrize("seed", range(5))
def test_every_shuffled_order_is_sorted(seed: int) -> None:
    model = parse(CHAIN)
    nodes = [*model.graph.node]
    random.Random(seed).shuffle(nodes)
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    given = model.SerializeToString()
    onnx.checker.check_model(sort_nodes(model))
    assert model.SerializeToString() == given  # the caller's model is not changed


def test_the_sort_is_stable() -> None:
    model = parse(CHAIN)
    assert [n.outputs[0] for n in read_model(model).main.nodes] == ["a", "b", "c", "y"]
    model.graph.node[1].CopyFrom(parse(CHAIN).graph.node[2])
    model.graph.node[2].CopyFrom(parse(CHAIN).graph.node[1])
    assert [n.outputs[0] for n in read_model(model).main.nodes] == ["a", "c", "b", "y"]


def test_subgraphs_are_sorted_and_so_is_what_they_read(tmp_path: Path) -> None:
    """The body is reversed, and the loop stands before the node whose value its body reads."""
    model = parse(LOOP)
    reverse(model.graph.node)
    reverse(model.graph.node[0].attribute[0].g.node)
    webmlc.build(model, tmp_path, target="wasm")
    loaded = webmlc.load(tmp_path)
    x = np.array([0.25, -0.5], np.float32)
    actual = loaded.run({"x": x, "n": np.int64(3), "c": np.array(True)})["y"]
    loaded.dispose()
    expected = x
    for _ in range(3):
        expected = -(expected * np.exp(x) + x)
    np.testing.assert_allclose(actual, expected, rtol=1e-5)


def test_local_functions_are_sorted() -> None:
    model = onnx.parser.parse_model(FUNCTION)
    reverse(model.functions[0].node)
    assert [node.op for node in read_model(model).main.nodes] == ["Exp", "Neg", "Add"]


@pytest.mark.parametrize(
    ("nodes", "cycle"),
    [
        (
            "a = Add(x, c)  b = Neg(a)  c = Exp(b)  y = Abs(a)",
            "node 'a' needs 'c' from node 'c', which needs 'b' from node 'b', "
            "which needs 'a' from node 'a'",
        ),
        ("a = Add(x, a)  y = Abs(a)", "node 'a' needs 'a' from node 'a'"),
        ("y = Abs(a)  b = Neg(a)  a = Exp(b)", "node 'a' needs 'b' from node 'b', which needs 'a' "
         "from node 'a'"),
    ],
)  # fmt: skip
def test_a_cycle_is_named_node_by_node(nodes: str, cycle: str) -> None:
    with pytest.raises(ModelError) as caught:
        read_model(parse(f"g (float[2] x) => (float[2] y) {{ {nodes} }}"))
    assert str(caught.value) == (
        f"the model has a cycle: {cycle}. No value may depend on itself: export the model again"
    )
