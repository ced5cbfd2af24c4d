"""The rules of `simplify_graph` about rows that are looked up in a constant table.

A rule is a function `(rewriting, node, context) -> a better node | None`.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from webmlc.graph.builder import Builder
from webmlc.graph.ir import Node, TensorType
from webmlc.graph.ops.operator import Context
from webmlc.graph.ops.shapes import ONE
from webmlc.graph.rewrite.rewriting import Rewriting


def look_up_one_hot(rewriting: Rewriting, node: Node, context: Context) -> Node | None:
    """Replace the product of one-hot rows and a table by the rows of the table.

    An index without a row gives zeros: the table gets a row of zeros at each end.

        %h = Cast(Equal(%i, [0, 1, ..., n - 1]))
        %y = MatMul(%h, %w)               ->  %y = Gather([0; %w; 0], Clip(%i + 1, 0, n + 1))
    """
    if (node.domain, node.op) != ("", "MatMul"):
        return None
    table, hot = context.constant(1), rewriting.producer(node.inputs[0])
    if table is None or table.ndim != 2 or not bool(np.isfinite(table).all()):
        return None
    if hot is not None and (hot.domain, hot.op) == ("", "Cast"):
        hot = rewriting.producer(hot.inputs[0])
    index = None if hot is None else _hot_index(rewriting, hot, len(table))
    if index is None:
        return None
    index_type = rewriting.scope.type_of(index)
    assert index_type is not None and hot is not None
    build = Builder(node, rewriting)
    one, first, last = (
        build.constant(number, index_type.dtype, index) for number in (1, 0, len(table) + 1)
    )
    flat = build("Reshape", index, shape=context.outputs[0].shape[:-1])
    row = build("Clip", build("Add", flat, one), first, last)
    rows = build.constant(np.pad(table, ((1, 1), (0, 0))), name=node.inputs[1])
    origin = tuple(dict.fromkeys((*hot.origin, *node.origin)))
    return replace(node, op="Gather", inputs=(rows, row), attributes={"axis": 0}, origin=origin)


def _hot_index(rewriting: Rewriting, hot: Node, depth: int) -> str | None:
    """The indices at which the rows of a one-hot node, of `depth` elements, are one; `None` for
    other nodes. An index that is too large or negative has a row of zeros.
    """
    context = rewriting.scope.context(hot)
    if (hot.domain, hot.op) == ("", "Equal"):
        for here, other in ((0, 1), (1, 0)):
            steps, index = context.constant(other), context.type(here)
            if steps is None or not _is_index(index, depth):
                continue
            is_row = steps.shape[-1:] == (depth,) and steps.size == depth
            if is_row and (steps == np.arange(depth)).all():
                one = index.rank == context.outputs[0].rank and index.shape[-1] == ONE
                return hot.inputs[here] if one else None
    if (hot.domain, hot.op) == ("", "OneHot"):
        ends, index = context.constant(2), context.type(0)
        if ends is None or ends.tolist() != [0, 1] or not _is_index(index, depth):
            return None
        if context.axis(-1, index.rank + 1) == index.rank:
            return _from_front(rewriting, hot, depth)
    return None


def _is_index(index: TensorType, depth: int) -> bool:
    """True for integers that can hold the indices of `depth` rows, and one that is too large."""
    return index.dtype.is_integer and depth < index.dtype.limits[1]


def _from_front(rewriting: Rewriting, hot: Node, depth: int) -> str:
    """The indices of a `OneHot` node, with those that count from the end counted from the front."""
    index = hot.inputs[0]
    index_type = rewriting.scope.type_of(index)
    assert index_type is not None
    build = Builder(hot, rewriting)
    zero, rows = (build.constant(n, index_type.dtype, index) for n in (0, depth))
    below = build("Less", index, zero)
    return build("Where", below, build("Add", index, rows), index)
