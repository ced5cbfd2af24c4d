"""Find the nodes that the kernel of an attention computes, too.

In: an `Attention` (`operators.py`), the second half of attention. Out: the nodes that compute its
logits, back to the product of queries and keys, and the nodes that move elements of its operands:

    %s = MatMul(%q, Transpose(%k)); %l = Add(Mul(%s, c), %mask); %y = Attention(%l, Transpose(%v))
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from webmlc.core.simplify import prove_equal
from webmlc.graph.ir import Function, Node
from webmlc.graph.rewrite.meaning import MAPS, kind_of

PRODUCTS = (("", "MatMul"), ("webmlc", "MatMul"))
"""The products of queries and keys: plain, and of packed keys."""


def is_attention(node: Node) -> bool:
    """True for the second half of attention."""
    return (node.domain, node.op) == ("webmlc", "Attention")


def is_transpose(node: Node) -> bool:
    """True for a transposition."""
    return (node.domain, node.op) == ("", "Transpose")


def is_repetition(node: Node) -> bool:
    """True for heads that are repeated."""
    return (node.domain, node.op) == ("webmlc", "RepeatHeads")


def logits_nodes(
    function: Function, makers: Mapping[str, Node], logits: str, fits: Callable[[str], bool]
) -> list[Node]:
    """The maps from the logits back to a product, and the product last, if there is one. The values
    between all fit and have the shape of the logits.
    """
    shape = function.type(logits).shape
    maps: list[Node] = []
    products: list[Node] = []
    front = [logits]
    while front:
        value = front.pop(0)
        maker = makers.get(value)
        if maker is None or maker in (*maps, *products) or not fits(value):
            continue
        type_ = function.type(value)
        if type_.rank != len(shape) or not all(map(prove_equal, type_.shape, shape)):
            continue
        if (maker.domain, maker.op) in PRODUCTS:
            products.append(maker)
        elif kind_of(maker) in MAPS:
            maps.append(maker)
            front += maker.inputs
    return [*maps, *products[:1]]


def logits_product(
    function: Function, makers: Mapping[str, Node], logits: str, fits: Callable[[str], bool]
) -> Node | None:
    """The product of queries and keys from which the logits are computed, through values that all
    fit. `None` if there is no such product.
    """
    nodes = logits_nodes(function, makers, logits, fits)
    return nodes[-1] if nodes and (nodes[-1].domain, nodes[-1].op) in PRODUCTS else None


def operand_moves(makers: Mapping[str, Node], *operands: str) -> list[Node]:
    """The transpositions and repetitions from which the operands are computed."""
    moves: list[Node] = []
    front = [*operands]
    while front:
        maker = makers.get(front.pop())
        if maker is not None and (is_transpose(maker) or is_repetition(maker)):
            moves += [] if maker in moves else [maker]
            front += maker.inputs
    return moves
