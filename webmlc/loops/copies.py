"""Build kernels that copy a value to another name."""

from __future__ import annotations

import numpy as np

from webmlc.core.dtypes import DType
from webmlc.graph.ir import Array, Function, Node, TensorType
from webmlc.graph.ops.operator import Scope


def copy_node(value: str, target: str, function: Function, like: str = "") -> Node:
    """Build a kernel that copies a value to `target`.

    `like` names a value of the same type, by default the value itself. Without a value, the kernel
    writes `true`.
    """
    if not value:
        value = f"{target}.start"
        copied_type, constants = TensorType(DType.bool, ()), {value: np.array(True)}
    else:
        copied_type = value_type(function, like or value)
        constants = {v: a for v, a in function.constants.items() if v == value and a.size == 1}
    inner = Node("Identity", (value,), (target,))
    return fused_node("copy", inner, value, {value: copied_type, target: copied_type}, constants)


def fused_node(
    name: str, node: Node, value: str, types: dict[str, TensorType], constants: dict[str, Array]
) -> Node:
    """Build a fused node of one node that reads one value."""
    inputs = () if constants else (value,)
    body = Function(name, inputs, node.outputs, (node,), types, constants)
    return Node("fused", inputs, node.outputs, {"body": body}, "webmlc")


def view_roots(function: Function) -> dict[str, str]:
    """The value that owns the bytes of each view."""
    roots: dict[str, str] = {}
    for node in function.nodes:
        if node.op == "View":
            roots[node.outputs[0]] = roots.get(node.inputs[0], node.inputs[0])
    return roots


def value_type(function: Function, value: str) -> TensorType:
    """The type of a value, which may be a constant."""
    tensor_type = Scope(function.types, function.constants, {}).type_of(value)
    assert tensor_type is not None, value
    return tensor_type
