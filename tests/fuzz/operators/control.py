"""How to draw control flow: sub-graphs of elementwise nodes that capture values of the graph."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper

from tests.fuzz.graph import element_type
from tests.fuzz.sketch import Sketch

UNARY = ("Relu", "Abs", "Neg", "Sigmoid", "Tanh", "Identity")
BINARY = ("Add", "Sub", "Mul", "Max")


def if_(sketch: Sketch) -> None:
    """Two branches over captured values, which may be of different depths."""
    x = sketch.value(("float32", "float16"))
    y = sketch.new(sketch.array(x).dtype.name, sketch.array(x).shape)
    condition = sketch.new("bool", ())
    branches = [_body(sketch, name, (), (), x, y) for name in ("then", "else")]
    sketch.node("If", condition, then_branch=branches[0], else_branch=branches[1])


def loop(sketch: Sketch) -> None:
    """A carried value, so many times, and each of its values."""
    x = sketch.value(("float32",), within=(-1, 1), limits=(-8, 8))
    captured = sketch.new("float32", sketch.array(x).shape, (-1, 1))
    count = sketch.constant if sketch.chance(60) else sketch.input
    times = count(np.array(sketch.integer(1, 4), np.int64))
    given = (("i", TensorProto.INT64, ()), ("more", TensorProto.BOOL, ()), _like(sketch, "s", x))
    scanned = 1 if sketch.chance(50) else 0
    body = _body(sketch, "body", given, ("more",), "s", captured, scanned)
    sketch.node("Loop", times, "", x, outputs=1 + scanned, body=body)


def scan(sketch: Sketch) -> None:
    """A state, and the rows of a sequence."""
    shape = sketch.shape(1, 3)
    rows = sketch.new("float32", (sketch.integer(1, 4), *shape), (-1, 1))
    state = sketch.new("float32", shape, (-1, 1))
    row = ("r", TensorProto.FLOAT, shape)
    body = _body(sketch, "body", (_like(sketch, "s", state), row), (), "s", "r", 1)
    sketch.node("Scan", state, rows, outputs=2, body=body, num_scan_inputs=1)


def _like(sketch: Sketch, name: str, value: str) -> tuple[str, int, tuple[int, ...]]:
    array = sketch.array(value)
    return name, element_type(array), array.shape


def _body(
    sketch: Sketch,
    name: str,
    inputs: tuple[tuple[str, int, tuple[int, ...]], ...],
    passed: tuple[str, ...],
    x: str,
    y: str,
    scanned: int = 0,
) -> onnx.GraphProto:
    """Elementwise nodes of x and y; gives what is passed on, the last result, and that again."""
    prefix = f"{name}{sum(len(n.output) for n in sketch.nodes)}"
    nodes = []
    last = x
    for number in range(sketch.choose((1, 2, 3))):
        made = f"{prefix}_{number}"
        if sketch.chance(50):
            nodes.append(helper.make_node(sketch.choose(BINARY), [last, y], [made]))
        else:
            nodes.append(helper.make_node(sketch.choose(UNARY), [last], [made]))
        last = made
    nodes += [helper.make_node("Identity", [last], [f"{prefix}_scan"])] * scanned
    results = []
    for value in passed:
        nodes.append(helper.make_node("Identity", [value], [f"{prefix}_{value}"]))
        results.append(helper.make_tensor_value_info(f"{prefix}_{value}", TensorProto.BOOL, ()))
    given = {n: (element, shape) for n, element, shape in inputs}
    element, shape = given[x] if x in given else _like(sketch, x, x)[1:]
    results.append(helper.make_tensor_value_info(last, element, shape))
    results += [helper.make_tensor_value_info(f"{prefix}_scan", element, shape)] * scanned
    infos = [helper.make_tensor_value_info(*given_input) for given_input in inputs]
    return helper.make_graph(nodes, prefix, infos, results)
