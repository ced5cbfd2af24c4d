"""Unique: slices of a tensor (or elements) that differ, in order of value or of appearance.

Every slice is compared with every other: quadratic, and independent. The first of equal ones is
kept; their number is bound in a run (`ops.selection`).

    %different = webmlc.FirstDifference(%rows)     where slices i and j differ first; their length
                                                   if nowhere
    %order = webmlc.Order(%rows, %different, %places)    the kept slices, the least first
"""

from __future__ import annotations

import numpy as np

from webmlc.core.dtypes import INDEX, DType
from webmlc.core.expr import Expr, call, maximum, minimum, select
from webmlc.graph.compute import Tensor, compute, reduce
from webmlc.graph.ir import TensorType
from webmlc.graph.ops.operator import Builder, Context, Operator, case
from webmlc.graph.ops.selection import flat, places_of
from webmlc.graph.ops.shapes import ONE, ZERO, given

Inputs = tuple[Tensor | None, ...]


def _alike(a: Expr, b: Expr) -> Expr:
    """Equal, or both not a number."""
    equal = call("eq", a, b)
    return equal | (call("ne", a, a) & call("ne", b, b)) if a.dtype.is_float else equal


def _less(a: Expr, b: Expr) -> Expr:
    """What is not a number comes last."""
    less = call("lt", a, b)
    return less | (call("eq", a, a) & call("ne", b, b)) if a.dtype.is_float else less


def _first_difference_type(context: Context) -> tuple[TensorType, ...]:
    count, _ = context.shape(0)
    return (TensorType(INDEX, (count, count)),)


def _first_difference(context: Context, inputs: Inputs) -> tuple[Tensor, ...]:
    rows = given(inputs, 0)
    length = rows.shape[1]

    def place(i: Expr, j: Expr, at: Expr) -> Expr:
        return select(_alike(rows[i, at], rows[j, at]), length, at)

    shape = context.outputs[0].shape
    found = reduce("found", shape, (length,), "min", place)
    return (compute("different", shape, lambda i, j: minimum(found[i, j], length)),)


def _is_first_type(context: Context) -> tuple[TensorType, ...]:
    return (TensorType(DType.bool, context.shape(0)[:1]),)


def _is_first(context: Context, inputs: Inputs) -> tuple[Tensor, ...]:
    """True of a slice that no earlier one equals."""
    rows, different = given(inputs, 0), given(inputs, 1)
    count, length = rows.shape

    def equal_before(i: Expr, j: Expr) -> Expr:
        return select((j < i) & (different[i, j] >= length), ONE, ZERO)

    before = reduce("before", (count,), (count,), "add", equal_before)
    return (compute("is_first", (count,), lambda i: call("eq", before[i], ZERO)),)


def _order_type(context: Context) -> tuple[TensorType, ...]:
    return (context.type(2),)


def _order(context: Context, inputs: Inputs) -> tuple[Tensor, ...]:
    """The places of the kept slices, sorted by what stands there."""
    rows, different, places = (given(inputs, i) for i in range(3))
    last = maximum(rows.shape[1] - 1, 0)

    def less(u: Expr, v: Expr) -> Expr:
        a, b = places[v], places[u]
        at = minimum(different[a, b], last)
        return select(_less(rows[a, at], rows[b, at]), ONE, ZERO)

    rank = reduce("rank", places.shape, places.shape, "add", less)

    def with_rank(r: Expr, u: Expr) -> Expr:
        return select(call("eq", rank[u], r), places[u], ZERO)

    return (reduce("order", places.shape, places.shape, "max", with_rank),)


def _members_type(context: Context) -> tuple[TensorType, ...]:
    return (
        TensorType(DType.int64, context.shape(0)[:1]),
        TensorType(DType.int64, context.shape(2)),
    )


def _members(context: Context, inputs: Inputs) -> tuple[Tensor, ...]:
    """Which kept slice each slice equals, and how many equal each kept one."""
    rows, different, places = (given(inputs, i) for i in range(3))
    count, length = rows.shape

    def same(i: Expr, r: Expr) -> Expr:
        return different[i, places[r]] >= length

    inverse = reduce(
        "inverse", (count,), places.shape, "max", lambda i, r: select(same(i, r), r, ZERO)
    )
    counts = reduce(
        "counts", places.shape, (count,), "add", lambda r, i: select(same(i, r), ONE, ZERO)
    )
    return (
        compute("inverse_out", (count,), lambda i: inverse[i].astype(DType.int64)),
        compute("counts_out", places.shape, lambda r: counts[r].astype(DType.int64)),
    )


def _never(context: Context) -> tuple[TensorType, ...]:
    raise AssertionError("Unique expands")


def _unique(context: Context, builder: Builder) -> tuple[str, ...]:
    x, axis = context.node.inputs[0], 0
    if "axis" in context.node.attributes:
        axis = context.axis(0)
        others = (d for d in range(context.rank(0)) if d != axis)
        rows = builder("Flatten", builder("Transpose", x, perm=(axis, *others)), axis=1)
    else:
        x = flat(builder, x)
        rows = builder("Unsqueeze", x, builder.constant(np.array([1])))
    different = builder("FirstDifference", rows, domain="webmlc")
    places = places_of(builder, builder("IsFirst", rows, different, domain="webmlc"))
    if context.attribute("sorted", 1):
        places = builder("Order", rows, different, places, domain="webmlc")
    members = builder.many("Members", rows, different, places, outputs=2, domain="webmlc")
    values = builder("Gather", x, places, axis=axis)
    results = (values, builder("Cast", places, to=7), *members)
    named = zip(results, context.node.outputs, strict=False)
    return tuple(result for result, name in named if name)


X = np.array([2, 1, 1, 3, 4, 3], np.float32)
ROWS = np.array([[1, 0, 0], [1, 0, 0], [2, 3, 4]], np.float32)
NUMBERS = "int64[4, 3] in 0..1"

OPS: tuple[Operator, ...] = (
    Operator("FirstDifference", _first_difference_type, _first_difference, domain="webmlc",
             kind="reduction"),
    Operator("IsFirst", _is_first_type, _is_first, domain="webmlc", kind="reduction"),
    Operator("Order", _order_type, _order, domain="webmlc", kind="reduction"),
    Operator("Members", _members_type, _members, domain="webmlc", kind="reduction"),
    Operator("Unique", _never, expand=_unique, cases=(
        case(X, outputs=4), case(X, outputs=4, sorted=0), case(ROWS, outputs=4, axis=0),
        case("int64[40] in 0..9", outputs=4), case(NUMBERS, outputs=4, axis=1),
        case("float32[3, 1, 2]", axis=-1), case(NUMBERS, outputs=4, axis=0, sorted=0))),
)  # fmt: skip
