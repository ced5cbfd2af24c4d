"""Which nodes become kernels, and the form of a symbolic node inside a kernel."""

from __future__ import annotations

from webmlc.graph.ir import Node
from webmlc.graph.ops.control import CONTROL
from webmlc.graph.ops.operator import is_bind, symbolic_constant, symbolic_value
from webmlc.graph.ops.state import APPEND


def is_no_kernel(node: Node) -> bool:
    """True for nodes that become no kernel: views, appended rows, sizes that a run reads, and
    control flow.
    """
    return node.op == "View" or is_bind(node) or (node.domain, node.op) in {*CONTROL, APPEND}


def symbolic_constant_of(node: Node) -> Node:
    """A symbolic node as a node inside a kernel, whose parameters are the symbols."""
    value, dtype = symbolic_value(node), node.attributes["dtype"]
    return symbolic_constant(value, dtype, node.outputs[0], node.origin)
