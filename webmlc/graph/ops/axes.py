"""Expand operators whose axes only a run knows: reductions, cumulative sums, slices, padding,
Squeeze and Unsqueeze.

The type of the input that names the axes tells their number. So every rank is known at build time,
and only sizes are unknown. Such an operator becomes the same operator along the last axes.
`AxesLast` moves the axes there: it splits each axis into two, and one of the two has size 1.

    %y = ReduceMax<keepdims=1>(%x, %axes)          %x: float32[3, 4], %axes: int64[1]

    %mask: int64[2] = webmlc.ByAxis([1], %axes)                     # (0, 1) where axes are [-1]
    %sizes: int64[4] = Concat(Where(...), Where(...))               # (3, 1, 1, 4)
    %last: float32[s_0, s_1, s_2, s_3] = webmlc.AxesLast(%x, %sizes)
    %y: float32[s_0, s_1] = ReduceMax<keepdims=0>(%last, [2, 3])

Axes that a tensor of the rank does not have, or that occur twice, make sizes negative. A run
refuses negative sizes and names the node.
"""

from __future__ import annotations

from functools import reduce
from operator import add

import numpy as np

from webmlc.core.dtypes import DType
from webmlc.core.expr import Const, Expr, as_int, const, minimum, select
from webmlc.graph.builder import Builder, Value
from webmlc.graph.compute import Tensor, compute
from webmlc.graph.ir import TensorType
from webmlc.graph.ops.operator import Context, NotSupportedError, Operator, UnknownValueError
from webmlc.graph.ops.shapes import check_single, dimensions, keeps_axes, product, select_among

INVALID = -2
"""The size that marks wrong axes. It is negative, but not the -1 that a Reshape resolves."""


# -- expansions -------------------------------------------------------------------------


def axis_mask(context: Context, build: Builder, index: int, rank: int | None = None) -> Value:
    """The int64[rank] mask that is 1 for the axes that input `index` names, and 0 for other axes.
    It is `INVALID` everywhere if the axes are wrong.
    """
    count = axis_count(context, index)
    ones = build.constant(np.ones(count, np.int64))
    rank = context.rank(0) if rank is None else rank
    return by_axis(ones, build.inputs[index], count, rank, default=0, invalid=INVALID)


def by_axis(
    values: Value, axes: Value, count: int, rank: int, *, default: int, invalid: int
) -> Value:
    """The int64[rank] that holds each of `count` values at its axis, and `default` at the other
    axes. It is `invalid` everywhere if the axes are wrong. Raises `NotSupportedError` for more axes
    than dimensions: some of them would be equal.
    """
    if count > rank:
        raise NotSupportedError(f"{count} axes of a tensor of rank {rank}")
    return values.op(
        "ByAxis", axes.reshape(count), domain="webmlc", rank=rank, default=default, invalid=invalid
    )


def axis_count(context: Context, index: int) -> int:
    """The number of axes that an input names. Raises `UnknownValueError` if it is a symbol."""
    count = as_int(product(context.shape(index)))
    if count is None:
        raise UnknownValueError(context.node.inputs[index], "the number of axes")
    return count


def axes_last(context: Context, build: Builder, mask: Value) -> Value:
    """Input 0 with the axes of the mask behind the others. Each axis occurs twice, once with size
    1.
    """
    x = build.inputs[0]
    sizes = build("Shape", x)
    other_sizes = build("Equal", mask, 0).where(sizes, mask)
    named_sizes = build("Equal", mask, 1).where(sizes, 1)
    return build("AxesLast", x, build("Concat", other_sizes, named_sizes, axis=0), domain="webmlc")


def reduce_along(context: Context, build: Builder) -> Value | None:
    """Expand a reduction whose axes (input 1) only a run knows."""
    node, rank = context.node, context.rank(0)
    if not context.is_decided_by_run(1):
        return None
    mask = axis_mask(context, build, 1)
    last = build.constant(np.arange(rank, 2 * rank))
    y = build(node.op, axes_last(context, build, mask), last, keepdims=0)
    if keeps_axes(context):
        return y
    return without_axes(context, build, y, mask, axis_count(context, 1))


def cumulate_along(context: Context, build: Builder) -> Value | None:
    """Expand a cumulative operator whose axis (input 1) only a run knows."""
    node, rank = context.node, context.rank(0)
    if not context.is_decided_by_run(1):
        return None
    check_single(context, 1)
    axis_last = axes_last(context, build, axis_mask(context, build, 1))
    sizes = build("Shape", axis_last, start=0, end=rank)
    rows = build("Concat", sizes, [-1], axis=0)
    y = build("Reshape", axis_last, rows)
    y = build(node.op, y, build.constant(np.int64(rank)), **node.attributes)
    y = build("Reshape", y, build("Shape", axis_last))
    return build("AxesBack", y, domain="webmlc", shape=context.shape(0))


def without_axes(context: Context, build: Builder, y: Value, mask: Value, count: int) -> Value:
    """Reshape `y` to the shape of input 0 without the `count` axes of a mask."""
    rank = context.rank(0) - count
    if rank < 0:
        raise NotSupportedError(f"{count} axes of a tensor of rank {context.rank(0)}")
    sizes = build("Shape", build.inputs[0])
    other_sizes = build("OtherSizes", sizes, mask, domain="webmlc", rank=rank)
    return build("Reshape", y, other_sizes, allowzero=1)


def squeeze(context: Context, build: Builder) -> Value | None:
    """Expand a Squeeze whose axes (input 1) only a run knows."""
    if not context.is_decided_by_run(1):
        return None
    mask, count = axis_mask(context, build, 1), axis_count(context, 1)
    return without_axes(context, build, build.inputs[0], mask, count)


def unsqueeze(context: Context, build: Builder) -> Value | None:
    """Expand an Unsqueeze whose axes (input 1) only a run knows."""
    if not context.is_decided_by_run(1):
        return None
    x, rank = build.inputs[0], context.rank(0) + axis_count(context, 1)
    mask = axis_mask(context, build, 1, rank)
    sizes = build("SizesWithOnes", build("Shape", x), mask, domain="webmlc")
    return build("Reshape", x, sizes, allowzero=1)


# -- rows --------------------------------------------------------------------------------


def _elements(x: Tensor) -> list[Expr]:
    return [x[i] for i in range(as_int(x.shape[0]) or 0)]


def _total(terms: list[Expr]) -> Expr:
    return reduce(add, terms, const(0, DType.int64))


def _by_axis(context: Context, values: Tensor, axis_input: Tensor) -> Tensor:
    """The values (input 0) at their axes (input 1). Axes may count from the end."""
    rank = context.attribute("rank")
    default, invalid = (Const(context.attribute(n), DType.int64) for n in ("default", "invalid"))
    places = [a.astype(DType.int64) for a in _elements(axis_input)]
    places = [select(a < 0, a + rank, a) for a in places]
    zero, one = const(0, DType.int64), const(1, DType.int64)
    counts = [_total([select(p.equals(d), one, zero) for p in places]) for d in range(rank)]
    distinct_count = _total([select(h.equals(1), one, zero) for h in counts])

    def element(d: Expr) -> Expr:
        value: Expr = default
        for position, place in enumerate(places):
            is_axis = place.equals(d.astype(DType.int64))
            value = select(is_axis, values[position].astype(DType.int64), value)
        return select(distinct_count.equals(len(places)), value, invalid)

    return compute("by_axis", (const(rank),), element)


def _other_sizes(context: Context, size_input: Tensor, mask_input: Tensor) -> Tensor:
    """The sizes (input 0) of the axes where a mask (input 1) is 0, in order."""
    sizes, mask = _elements(size_input), _elements(mask_input)
    zero = const(0, DType.int64)
    before = [_total([1 - m for m in mask[:d]]) for d in range(len(mask))]

    def element(i: Expr) -> Expr:
        place = i.astype(DType.int64)
        is_place = [m.equals(0) & n.equals(place) for m, n in zip(mask, before, strict=True)]
        total = _total([select(h, size, zero) for h, size in zip(is_place, sizes, strict=True)])
        return select(mask[0] < 0, mask[0], total)

    return compute("other_sizes", (const(context.attribute("rank")),), element)


def _sizes_with_ones(context: Context, size_input: Tensor, mask_input: Tensor) -> Tensor:
    """The sizes (input 0) in order, with ones inserted where a mask (input 1) is 1."""
    sizes, mask = _elements(size_input), _elements(mask_input)
    result = []
    for d, marker in enumerate(mask):
        before = d - _total(mask[:d])
        size = select_among(sizes, before) if sizes else marker
        result.append(select(marker.equals(0), size, marker))
    return compute("sizes_with_ones", mask_input.shape, lambda d: select_among(result, d))


def _axes_last_type(context: Context) -> TensorType:
    return TensorType(context.dtype(0), tuple(dimensions(context, 1, "the shape")))


def _axes_last(context: Context, x: Tensor, *_: Tensor) -> Tensor:
    """Element `[*i, *r]` is the input's element at `i + r`. One index of each pair is 0."""

    def element(*index: Expr) -> Expr:
        pairs = zip(index[: x.rank], index[x.rank :], strict=True)
        return x[tuple(i + r for i, r in pairs)]

    return compute("axes_last", context.outputs[0].shape, element)


def _axes_back(context: Context, x: Tensor) -> Tensor:
    """The inverse of `AxesLast`."""

    def element(*index: Expr) -> Expr:
        places = zip((*index, *index), x.shape, strict=True)
        return x[tuple(minimum(i, size - 1) for i, size in places)]

    return compute("axes_back", context.attribute("shape"), element)


OPS: tuple[Operator, ...] = (
    Operator("ByAxis", compute=_by_axis, domain="webmlc", kind="injective"),
    Operator("OtherSizes", compute=_other_sizes, domain="webmlc", kind="injective"),
    Operator("SizesWithOnes", compute=_sizes_with_ones, domain="webmlc",
             kind="injective"),
    Operator("AxesLast", _axes_last_type, _axes_last, domain="webmlc", kind="injective"),
    Operator("AxesBack", compute=_axes_back, domain="webmlc", kind="injective"),
)  # fmt: skip
