"""The nodes of kernels: `fused` nodes, whose attribute `body` is a graph function.

%y = fused(%x, %w) {conv, relu}      kernel(body of Conv and Relu, ...)
"""

from __future__ import annotations

from collections.abc import Sequence

from webmlc.core.symbol_names import is_name
from webmlc.graph.algorithms.attention.nodes import is_attention
from webmlc.graph.ir import Function, Node, joined_origin
from webmlc.graph.rewrite.meaning import MAPS, kind_of

POINTWISE = MAPS | {"injective"}
"""Kinds of nodes whose elements each depend on one element of every input, at any position."""


def kernel(body: Function, *origins: Node) -> Node:
    """The node that computes a function in one kernel, in place of nodes of these origins."""
    origin = joined_origin(*origins)
    return Node("fused", body.inputs, body.outputs, {"body": body}, "webmlc", origin)


def kernel_name(members: Sequence[Node]) -> str:
    """The name of a kernel: its first operators (`conv_add_relu`), or only its attention, which is
    a late node. A name that the text of loops reserves (`And`) has `_` at its end.
    """
    shown = list(filter(is_attention, members)) or members[:4]
    name = "_".join(node.op.lower() for node in shown)
    return name if is_name(name) or not name else f"{name}_"


def body_of(node: Node) -> Function | None:
    """The function that a kernel computes; `None` for nodes that are no kernel."""
    body = node.attributes.get("body")
    return body if node.op == "fused" and isinstance(body, Function) else None


def is_pointwise(node: Node) -> bool:
    """True for a kernel whose elements depend on elements at one position each."""
    body = body_of(node)
    return body is not None and all(kind_of(inner) in POINTWISE for inner in body.nodes)


def constant_values(function: Function) -> set[str]:
    """The values that are computed once, at load."""
    values = set(function.constants)
    for node in function.nodes:
        if node.op in ("fused", "View") and node.inputs and values.issuperset(node.inputs):
            values.update(node.outputs)
    return values
