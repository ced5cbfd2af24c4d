"""Rows describe how they are written in NHWC. A node follows its input, or reads NCHW."""

from typing import get_args

import pytest

from tests.graph.graphs import module, zeros
from webmlc.graph.ir import Node
from webmlc.graph.layout.choose_layouts import _RULES, choose_layouts
from webmlc.graph.layout.layout_values import channels_first, channels_last
from webmlc.graph.ops.operator import Form, Layout, Operand
from webmlc.graph.table import OPS


def test_every_form_has_a_rule() -> None:
    assert set(_RULES) == set(get_args(Form))


def test_each_operand_and_form_is_used_by_a_row() -> None:
    layouts = [row.layout for row in OPS.values() if row.layout is not None]
    assert {o for layout in layouts for o in layout.inputs} == set(get_args(Operand))
    assert {layout.form for layout in layouts if layout.form} == set(get_args(Form))


def test_a_single_entry_holds_for_all_inputs() -> None:
    assert Layout(("map",)).operands(3) == ("map", "map", "map")
    assert Layout(("map", "pads", "any")).operands(2) == ("map", "pads", "any")
    assert Layout(("map", "pads")).operands(3) is None
    assert Layout().operands(1) is None


@pytest.mark.parametrize("rank", [3, 4, 5])
def test_channels_first_is_the_inverse_of_channels_last(rank: int) -> None:
    first, last = channels_first(rank), channels_last(rank)
    assert [last[d] for d in first] == list(range(rank))


def last_node(operation: str, constants: str = "", shape: str = "1, 4, 6, 6") -> Node:
    """The node that computes %y from the result %c of a convolution, after layouts are chosen."""
    text = f"""g (float[1, 2, 6, 6] x) => (float[{shape}] y)
    <{zeros("w", 4, 2, 1, 1)}{"," + constants if constants else ""}> {{
        c = Conv(x, w)
        y = {operation}
    }}"""
    return choose_layouts(module(text)).main.nodes[-2]


@pytest.mark.parametrize(
    ("operation", "constants", "shape", "attributes"),
    [
        ("Concat<axis=1>(c, c)", "", "1, 8, 6, 6", {"axis": 3}),
        ("Concat<axis=-1>(c, c)", "", "1, 4, 6, 12", {"axis": 2}),
        ("Gather<axis=1>(c, i)", "int64[2] i = {3, 1}", "1, 2, 6, 6", {"axis": 3}),
        ("LRN<size=3>(c)", "", "1, 4, 6, 6", {"size": 3, "axis": 3}),
    ],
)
def test_a_node_follows(
    operation: str, constants: str, shape: str, attributes: dict[str, object]
) -> None:
    node = last_node(operation, constants, shape)
    assert node.op == operation.partition("<")[0]
    assert node.outputs == ("y.nhwc",)
    assert all(i == "i" or i == "c.nhwc" for i in node.inputs)
    assert dict(node.attributes) == attributes


@pytest.mark.parametrize(
    ("operation", "constants", "shape"),
    [
        ("Gather<axis=1>(c, i)", "int64[1, 2] i = {3, 1}", "1, 1, 2, 6, 6"),
        ("ReduceMean<keepdims=0, axes=[1]>(c)", "", "1, 6, 6"),
        ("Softmax<axis=1>(c)", "", "1, 4, 6, 6"),
    ],
)
def test_a_node_that_depends_on_the_order_of_dimensions_reads_nchw(
    operation: str, constants: str, shape: str
) -> None:
    text = f"""g (float[1, 2, 6, 6] x) => (float[{shape}] y)
    <{zeros("w", 4, 2, 1, 1)}{"," + constants if constants else ""}> {{
        c = Conv(x, w)
        y = {operation}
    }}"""
    node = choose_layouts(module(text)).main.nodes[-1]
    assert node.op == operation.partition("<")[0]
    assert node.inputs[0] == "c"
