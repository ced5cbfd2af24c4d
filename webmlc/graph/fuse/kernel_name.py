"""Name the kernel of a group of nodes.

Conv, Add, Relu -> conv_add_relu
"""

from __future__ import annotations

from collections.abc import Sequence

from webmlc.core.symbol_names import is_name
from webmlc.graph.algorithms.attention.nodes import is_attention
from webmlc.graph.ir import Node


def kernel_name(members: Sequence[Node]) -> str:
    """The name of a kernel: its first operators, or only its attention, which is a late node. A
    name that the text of loops reserves (`And`) has `_` at its end.
    """
    shown = list(filter(is_attention, members)) or members[:4]
    name = "_".join(node.op.lower() for node in shown)
    return name if is_name(name) or not name else f"{name}_"
