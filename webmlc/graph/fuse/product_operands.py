"""Say which nodes belong into the kernel of a product of block-quantised weights.

In: a `FloatBlockProduct` and a node before it, or before its epilogue. Out: whether the kernel of
the product computes that node, too.

    %h = RMSNormalization(%x, %g)
    %y = FloatBlockProduct(%h, ...); %z = FloatBlockProduct(%h, ...)     a kernel of all five nodes
    %s = Swish(%y); %m = Mul(%s, %z)
"""

from __future__ import annotations

from webmlc.graph.fuse.compare_shapes import is_same
from webmlc.graph.ir import Function, Node
from webmlc.graph.rewrite.meaning import MAPS, kind_of


def is_block_product(node: Node) -> bool:
    """True for a product of float32 data and block-quantised weights."""
    return (node.domain, node.op) == ("webmlc", "FloatBlockProduct")


def is_operand(function: Function, product: Node, maker: Node) -> bool:
    """True for the normalisation of a product's data, a product of the same data for its epilogue,
    and elementwise nodes between the two.

    Every workgroup repeats the normalisation, which is short beside its part of the product.
    """
    if product.inputs[0] in maker.outputs:
        types = (function.type(maker.inputs[0]), function.type(product.inputs[0]))
        return kind_of(maker) == "reduction" and is_same(*(type_.shape for type_ in types))
    if is_block_product(maker):
        return maker.inputs[0] == product.inputs[0]
    shapes = (function.type(node.outputs[0]).shape for node in (maker, product))
    return kind_of(maker) in MAPS and is_same(*shapes)
