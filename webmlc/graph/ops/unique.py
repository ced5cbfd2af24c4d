"""Unique: the distinct slices or elements of a tensor, in order of value or of appearance.

Slices are rows of words (`ops.sorting`). They are sorted by their last element, then by each
element before it. So equal slices become neighbours. The first slice of each group is selected, and
a run binds the number of groups (`ops.selection`).

    %order = webmlc.Order(%rows, %before)            sort by a column; ties keep the order %before
    %mask, %inverse = webmlc.Groups(%rows, %order)   mask the first slice of each group; number
                                                     the groups
    %counts = webmlc.Members(%inverse, %places)      count the slices of each group
"""

from __future__ import annotations

import numpy as np

from webmlc.core.dtypes import INDEX, DType
from webmlc.core.expr import Expr, as_int, const, maximum, select
from webmlc.graph.builder import Builder, Value
from webmlc.graph.compute import Tensor, compute, reduce, scatter
from webmlc.graph.ir import Function, TensorType
from webmlc.graph.ops.operator import Context, Operator, case
from webmlc.graph.ops.scans import scan
from webmlc.graph.ops.selection import places_of
from webmlc.graph.ops.shapes import ONE, ZERO, product
from webmlc.graph.ops.sorting import comparable, inside, stable_order, word_bits, words

Index = tuple[Expr, ...]
MAX_UNROLLED_COLUMNS = 8
"""The most columns that are sorted by without a loop. Each column adds one kernel. Chosen by
hand.
"""


def _order_type(context: Context) -> TensorType:
    return TensorType(INDEX, context.shape(0)[:1])


def _order(
    context: Context, rows: Tensor, before: Tensor | None = None, number: Tensor | None = None
) -> Tensor:
    """Sort the slices by one column. Equal slices keep the order of input 1, if it is present.

    Input 2 is the number of the column, counted from the last.
    """
    last = rows.shape[1] - 1
    column = last if number is None else inside(last - number[()].astype(INDEX), rows.shape[1])
    count = len(words(rows[ZERO, ZERO]))
    keys = [
        compute(f"word{n}", rows.shape[:1], lambda i, n=n: words(rows[i, column])[n], keep=True)
        for n in range(count)
    ]
    return stable_order("order", keys, word_bits(rows.dtype), before)


def _groups_type(context: Context) -> tuple[TensorType, ...]:
    shape = context.shape(1)
    return TensorType(DType.bool, shape), TensorType(INDEX, shape)


def _groups(context: Context, rows: Tensor, order: Tensor) -> tuple[Tensor, ...]:
    """A mask of the first slice of each group, and the group of each slice.

    If `sorted`, the mask runs along the sorted order. Otherwise it runs over the slices as they
    appear, and groups are numbered in that order.
    """
    shape = order.shape

    def differs(p: Expr, column: Expr) -> Expr:
        places = (inside(order[maximum(q, 0)], shape[0]) for q in (p, p - 1))
        current, previous = (comparable(rows[place, column]) for place in places)
        return select(current.equals(previous), ZERO, ONE)

    changes = reduce("changes", shape, rows.shape[1:], "max", differs)
    starts = compute(
        "starts", shape, lambda p: select(p.equals(0) | (changes[p] > 0), ONE, ZERO), keep=True
    )
    group = scan("group", shape, 0, "add", lambda p: starts[p], exclusive=False)
    mask, number = starts, group
    if not context.attribute("sorted"):
        mask = scatter("mask", shape, (), shape, lambda _, p: ((order[p],), starts[p]), INDEX)
        number = scan("number", shape, 0, "add", lambda i: mask[i], exclusive=False)

    def leader(_: Tensor, p: Expr) -> tuple[Index, Expr]:
        """The first slice of each group."""
        return (select(starts[p] > 0, group[p] - 1, const(-1)),), order[p]

    leaders = scatter("leaders", shape, (), shape, leader, INDEX, ZERO)

    def update(_: Tensor, p: Expr) -> tuple[Index, Expr]:
        place = p if context.attribute("sorted") else leaders[inside(group[p] - 1, shape[0])]
        return (order[p],), number[inside(place, shape[0])] - 1

    inverse = scatter("inverse", shape, (), shape, update, INDEX)
    return compute("is_first", shape, lambda p: mask[p] > 0), inverse


def _members_type(context: Context) -> TensorType:
    return TensorType(DType.int64, context.shape(1))


def _members(context: Context, inverse: Tensor, places: Tensor) -> Tensor:
    """Count the slices of each group."""
    counts = scatter(
        "counts", places.shape, (), inverse.shape, lambda _, i: ((inverse[i],), ONE), INDEX, ZERO,
        "add",
    )  # fmt: skip
    return compute("counts_out", places.shape, lambda r: counts[r].astype(DType.int64))


def _sorted_rows(build: Builder, rows: Value, columns: Expr) -> Value:
    """Sort the rows, by the last column first. So the first column decides."""
    order = build("Order", rows, domain="webmlc")
    count = as_int(columns)
    if count is not None and count <= MAX_UNROLLED_COLUMNS:
        for number in range(1, count):
            order = build("Order", rows, order, np.int64(number), domain="webmlc")
        return order
    trips = build("Sizes", build("Squeeze", build("Shape", rows, start=1)), domain="webmlc")
    inner, expansion = build.inner("sort")
    column, condition, before = (inner.fresh(name) for name in ("column", "going", "order"))
    outputs = (condition, inner("Order", rows, before, column, domain="webmlc"))
    inputs = (column, condition, before)
    body = Function("sort_by_column", inputs, outputs, tuple(expansion.nodes), {}, {})
    return build("Loop", trips, "", order, body=body)


def _unique(context: Context, build: Builder) -> tuple[Value, ...]:
    x, axis = build.inputs[0], 0
    columns: Expr = ONE
    if "axis" in context.node.attributes:
        axis = context.axis(0)
        other_axes = [d for d in range(context.rank(0)) if d != axis]
        rows = build("Flatten", x.transpose(axis, *other_axes), axis=1)
        columns = product(context.shape(0)[d] for d in other_axes)
    else:
        x = x.reshape(-1)
        rows = x.unsqueeze(1)
    order = _sorted_rows(build, rows, columns)
    is_sorted = int(context.attribute("sorted", 1))
    mask, inverse = build.many("Groups", rows, order, outputs=2, domain="webmlc", sorted=is_sorted)
    places = places_of(build, mask)
    counts = build("Members", inverse, places, domain="webmlc")
    if is_sorted:
        places = build("Gather", order, places)
    values = build("Gather", x, places, axis=axis)
    index_outputs = (index.cast(DType.int64) for index in (places, inverse))
    return (values, *index_outputs, counts)


X = np.array([2, 1, 1, 3, 4, 3], np.float32)
ROWS = np.array([[1, 0, 0], [1, 0, 0], [2, 3, 4]], np.float32)
NUMBERS = "int16[4, 3] in 0..1"
NANS = np.array([2, np.nan, -0.0, 2, np.nan, 0.0], np.float32)

OPS: tuple[Operator, ...] = (
    Operator("Order", _order_type, _order, domain="webmlc"),
    Operator("Groups", _groups_type, _groups, domain="webmlc"),
    Operator("Members", _members_type, _members, domain="webmlc"),
    Operator("Unique", expand=_unique, cases=(
        case(X, outputs=4), case(X, outputs=4, sorted=0), case(ROWS, outputs=4, axis=0),
        case("int64[40] in -9..9", outputs=4), case(NUMBERS, outputs=4, axis=1),
        case("float32[3, 1, 2]", axis=-1), case(NUMBERS, outputs=4, axis=0, sorted=0),
        case("uint8[3, 20] in 0..1", outputs=4, axis=0), case("int8[300] in -9..9", outputs=4),
        case(NANS, outputs=4))),
)  # fmt: skip
