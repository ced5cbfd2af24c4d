"""The rules of `simplify_graph` about one-hot rows and constant tables: an index without a row
gives zeros, so the table gets a row of zeros at each end.

    %h = Cast(Equal(%i, [0, 1, ..., n - 1]))
    %y = MatMul(%h, %w)               ->  %y = Gather([0; %w; 0], Clip(%i + 1, 0, n + 1))
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from webmlc.graph.builder import Builder, Value
from webmlc.graph.ir import Node
from webmlc.graph.ops.shapes import ONE
from webmlc.graph.rewrite.patterns import Nodes, P, Pattern, Rule, constant, value
from webmlc.graph.rewrite.rewriting import Rewriting


def _look_up_equal(
    index: Value, steps: Value, table: Value, hot: Node, node: Node, rewriting: Rewriting
) -> Node | None:
    """Replace the product of the rows `index == steps` and a table by rows of the table."""
    depth, numbers = len(table.array), steps.array
    if numbers.shape[-1:] != (depth,) or numbers.size != depth:
        return None
    if (numbers.reshape(-1) != np.arange(depth)).any():
        return None
    if index.type.rank != rewriting.types[hot.outputs[0]].rank or index.shape[-1] != ONE:
        return None
    return _rows(index, table, hot, node, rewriting)


def _look_up_one_hot(
    index: Value, ends: Value, table: Value, hot: Node, node: Node, rewriting: Rewriting
) -> Node | None:
    """Replace the product of the rows of a OneHot and a table by rows of the table. Indices that
    count from the end are counted from the front.
    """
    rank, depth = index.type.rank, len(table.array)
    axis = rewriting.scope.context(hot).axis(-1, rank + 1)
    if ends.array.tolist() != [0, 1] or axis != rank or not _holds_rows(index, table):
        return None
    index = Builder(hot, rewriting).value(index)
    from_front = index.op("Less", 0).where(index + depth, index)
    return _rows(from_front, table, hot, node, rewriting)


def _holds_rows(index: Value, table: Value) -> bool:
    """True if `table` is a matrix of finite numbers, and `index` of integers that can hold the
    indices of its rows, and one that is too large.
    """
    dtype, array = index.type.dtype, table.array
    is_index = dtype.is_integer and len(array) < dtype.limits[1]
    return is_index and array.ndim == 2 and bool(np.isfinite(array).all())


def _rows(index: Value, table: Value, hot: Node, node: Node, rewriting: Rewriting) -> Node | None:
    """Read the rows of the table, of which the first and the last one are zeros."""
    if not _holds_rows(index, table):
        return None
    build = Builder(node, rewriting)
    flat = build("Reshape", index, shape=rewriting.types[node.outputs[0]].shape[:-1])
    row = (flat + 1).op("Clip", 0, len(table.array) + 1)
    rows = build.constant(np.pad(table.array, ((1, 1), (0, 0))), name=table)
    origin = tuple(dict.fromkeys((*hot.origin, *node.origin)))
    return replace(node, op="Gather", inputs=(rows, row), attributes={"axis": 0}, origin=origin)


def _product(hot: Pattern) -> Nodes:
    """The product of rows, which may be cast before, and a constant table."""
    return P("MatMul", hot | P("Cast", hot), constant("table"))


_EQUAL = P("Equal", value("index"), constant("steps"), name="hot")
_ONE_HOT = P("OneHot", value("index"), value("depth"), constant("ends"), name="hot")
look_up_equal = Rule(_product(_EQUAL), _look_up_equal)
look_up_one_hot = Rule(_product(_ONE_HOT), _look_up_one_hot)
