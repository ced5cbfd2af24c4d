"""Indexing: gathers, scatters, and other operators that select elements by position or by indices.

A scatter copies the data and updates the copy. If several updates have the same target, the last
one wins.
"""

from __future__ import annotations

import numpy as np

from webmlc.core.dtypes import INDEX, DType
from webmlc.core.expr import Const, Expr, as_int, call, const, maximum, minimum, select
from webmlc.graph.builder import Builder, Value
from webmlc.graph.compute import Tensor, compute, reduce, scatter
from webmlc.graph.ir import TensorType
from webmlc.graph.ops.operator import (
    Context,
    IndexInput,
    Layout,
    NotSupportedError,
    Operator,
    case,
    same_type,
)
from webmlc.graph.ops.shapes import (
    ONE,
    ZERO,
    canonical,
    check_shape,
    check_shapes,
    check_single,
    combination,
    require,
    select_among,
    with_axis,
)

Index = tuple[Expr, ...]


def wrapped(index: Expr, size: Expr) -> Expr:
    """Count an index that was read from a tensor from the front."""
    position = index.astype(INDEX)
    return select(position < 0, position + size, position)


def clamped(index: Expr, size: Expr) -> Expr:
    """Count an index from the front, and clamp it to the axis. (`CountOutside` counts the indices
    that are outside.)
    """
    if as_int(size) == 0:
        return ZERO  # no run reads it, and WGSL has no constant index of -1
    return minimum(maximum(wrapped(index, size), 0), canonical(size - 1))


def _axis_indices(context: Context) -> tuple[IndexInput, ...]:
    """Input 1 holds indices into the node's axis of input 0."""
    return (IndexInput(context.node.inputs[1], (context.shape(0)[context.axis(0)],)),)


def _leading_indices(context: Context) -> tuple[IndexInput, ...]:
    """The last axis of input 1 holds indices into the first axes of input 0 behind the batch."""
    batch = int(context.attribute("batch_dims", 0))
    sizes = context.shape(0)[batch : batch + _depth(context)]
    return (IndexInput(context.node.inputs[1], sizes),)


def _count_outside(context: Context, *inputs: Tensor) -> Tensor:
    """Count, for each input, the indices that are outside the axes of these `sizes`."""
    counts = [
        _outside(indices, sizes, bool(from_end))
        for indices, sizes, from_end in zip(
            inputs, context.attribute("sizes"), context.attribute("from_end"), strict=True
        )
    ]
    shape = (const(len(inputs)),)
    return compute("outside", shape, lambda i: select_among([c[()] for c in counts], i))


def _outside(indices: Tensor, sizes: tuple[Expr, ...], from_end: bool) -> Tensor:
    def is_outside(*i: Expr) -> Expr:
        index = indices[i]
        size = select_among(sizes, i[-1] if len(sizes) > 1 else ZERO).astype(index.dtype)
        outside = (index < (-size if from_end else 0)) | (index >= size)
        return select(outside, const(1, DType.int32), const(0, DType.int32))

    if not indices.rank:
        return compute("count", (), is_outside)
    return reduce("count", (), indices.shape, "add", is_outside)


def _gather_type(context: Context) -> TensorType:
    x, axis = context.type(0), context.axis(0)
    _check_indices(context, x.shape[axis])
    shape = with_axis(x.shape, axis, *context.shape(1))
    return TensorType(x.dtype, shape)


def _check_indices(context: Context, size: Expr) -> None:
    """Check that constant indices (input 1) are inside the axis."""
    indices, limit = context.constant(1), as_int(size)
    if indices is None or limit is None or not indices.size:
        return
    low, high = int(indices.min()), int(indices.max())
    if low < -limit or high >= limit:
        raise NotSupportedError(f"indices {low} to {high} into an axis of {limit} elements")


def _gather(context: Context, x: Tensor, indices: Tensor) -> Tensor:
    axis = context.axis(0)
    constant_indices = context.constant(1)
    is_natural = constant_indices is not None and bool((constant_indices >= 0).all())

    def element(*i: Expr) -> Expr:
        index = indices[i[axis : axis + indices.rank]]
        position = index.astype(INDEX) if is_natural else clamped(index, x.shape[axis])
        return x[(*i[:axis], position, *i[axis + indices.rank :])]

    return compute("gather", context.outputs[0].shape, element)


def _gather_elements_type(context: Context) -> TensorType:
    axis = context.axis(0)
    _check_within(context, axis)
    _check_indices(context, context.shape(0)[axis])
    return TensorType(context.dtype(0), context.shape(1))


def _check_within(context: Context, axis: int) -> None:
    """Check that the indices (input 1) have the data's rank, and are not longer than the data along
    any axis but `axis`.
    """
    check_shapes(context, "...", "...")
    for d, (limit, size) in enumerate(zip(context.shape(0), context.shape(1), strict=True)):
        if d != axis and not require(context, "at most", size, limit):
            raise NotSupportedError(f"{size} indices along axis {d}, which has {limit} elements")


def _gather_elements(context: Context, x: Tensor, indices: Tensor) -> Tensor:
    axis = context.axis(0)

    def element(*i: Expr) -> Expr:
        return x[with_axis(i, axis, clamped(indices[i], x.shape[axis]))]

    return compute("gather_elements", indices.shape, element)


def _depth(context: Context) -> int:
    """The length of each index tuple of a GatherND or ScatterND."""
    batch, rank = int(context.attribute("batch_dims", 0)), context.rank(0)
    if not 0 <= batch < context.rank(1):
        raise NotSupportedError(f"indices of rank {context.rank(1)} in {batch} batch dimensions")
    depth = as_int(context.shape(1)[-1])
    if depth is None:
        raise NotSupportedError("the length of the indices is symbolic")
    if batch + depth > rank:
        raise NotSupportedError(f"indices of length {depth} into the last {rank - batch} axes")
    return depth


def _gather_nd_type(context: Context) -> TensorType:
    x, batch = context.type(0), int(context.attribute("batch_dims", 0))
    depth = _depth(context)
    check_shape(context, 1, (*x.shape[:batch], *context.shape(1)[batch:]))
    shape = (*context.shape(1)[:-1], *x.shape[batch + depth :])
    return TensorType(x.dtype, shape)


def _gather_nd(context: Context, x: Tensor, indices: Tensor) -> Tensor:
    batch, depth, outer = int(context.attribute("batch_dims", 0)), _depth(context), indices.rank - 1

    def element(*i: Expr) -> Expr:
        place = (clamped(indices[(*i[:outer], const(k))], x.shape[batch + k]) for k in range(depth))
        return x[(*i[:batch], *place, *i[outer:])]

    return compute("gather_nd", context.outputs[0].shape, element)


REDUCTION = {"reduction": ("none", "add", "mul", "min", "max")}
"""The ways to combine an update with the element at its target."""


def _combine(context: Context) -> str | None:
    """The scalar operator that combines an element with its update. None means that the update
    replaces the element.
    """
    reduction = str(context.attribute("reduction", "none"))
    return None if reduction == "none" else combination(reduction, context.dtype(0))


def _scatter_elements_type(context: Context) -> TensorType:
    _check_within(context, context.axis(0))
    check_shape(context, 2, context.shape(1))
    return context.type(0)


def _scatter_elements(context: Context, data: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
    """Update the data. Lines along the axis are independent; within a line, updates run in
    order.
    """
    axis = context.axis(0)
    lines = tuple(ONE if d == axis else size for d, size in enumerate(indices.shape))

    def update(_: Tensor, *index: Expr) -> tuple[Index, Expr]:
        *line, u = index
        source = with_axis(line, axis, u)
        place = wrapped(indices[source], data.shape[axis])
        return with_axis(line, axis, place), updates[source]

    extents = (indices.shape[axis],)
    combine = _combine(context)
    return scatter("scatter", data.shape, lines, extents, update, data.dtype, data, combine)


def _scatter_nd_type(context: Context) -> TensorType:
    depth = _depth(context)
    check_shape(context, 2, (*context.shape(1)[:-1], *context.shape(0)[depth:]))
    return context.type(0)


def _scatter_nd(context: Context, data: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
    """Update the data. Axes that are not indexed are independent. Along the indexed axes, updates
    run in order.
    """
    depth = _depth(context)
    slices, extents = data.shape[depth:], indices.shape[:-1]

    def update(_: Tensor, *index: Expr) -> tuple[Index, Expr]:
        i, u = index[: len(slices)], index[len(slices) :]
        place = (wrapped(indices[(*u, const(k))], data.shape[k]) for k in range(depth))
        return (*place, *i), updates[(*u, *i)]

    combine = _combine(context)
    return scatter("scatter_nd", data.shape, slices, extents, update, data.dtype, data, combine)


def _one_hot_expanded(context: Context, build: Builder) -> Value | None:
    """Cast a float depth that only a run knows to an integer, which a run can bind."""
    if not context.dtype(1).is_float or not context.is_decided_by_run(1):
        return None
    indices, depth, values = build.inputs
    depth = depth.cast(DType.int64)
    return build("OneHot", indices, depth, values, **context.node.attributes)


def _one_hot_type(context: Context) -> TensorType:
    check_single(context, 1)
    check_shapes(context, "", "", "2")
    depth = context.known_value(1, "the depth").reshape(-1)[0]
    shape = list(context.shape(0))
    axis = context.axis(-1, rank=len(shape) + 1)
    shape.insert(axis, depth if isinstance(depth, Expr) else const(int(depth)))
    return TensorType(context.dtype(2), tuple(shape))


def _one_hot(context: Context, indices: Tensor, _depth: Tensor, values: Tensor) -> Tensor:
    shape = context.outputs[0].shape
    axis = context.axis(-1, rank=len(shape))

    def element(*i: Expr) -> Expr:
        index = indices[with_axis(i, axis)]
        is_hot = call("eq", wrapped(index, shape[axis]), i[axis])
        if index.dtype.bits > INDEX.bits:  # a truncated index may equal another one
            size = shape[axis].astype(index.dtype)
            is_hot = is_hot & (index < size)
            if index.dtype.is_signed:
                is_hot = is_hot & (index >= -size)
        return select(is_hot, values[1], values[0])

    return compute("one_hot", shape, element)


def _trilu_type(context: Context) -> TensorType:
    check_shapes(context, "... rows columns")
    check_single(context, 1)
    return context.type(0)


def _trilu(context: Context, x: Tensor, k: Tensor | None = None) -> Tensor:
    upper = bool(context.attribute("upper", 1))
    diagonal = context.value(1)

    def element(*i: Expr) -> Expr:
        offset: Expr = ZERO
        if diagonal is not None:
            offset = const(0) + diagonal.reshape(-1)[0]
        elif k is not None:
            rows, columns = (x.shape[d].astype(k.dtype) for d in (-2, -1))
            offset = minimum(maximum(k[(ZERO,) * k.rank], -rows), columns).astype(INDEX)
        is_kept = i[-1] >= i[-2] + offset if upper else i[-1] <= i[-2] + offset
        return select(is_kept, x[i], Const(0, x.dtype))

    return compute("trilu", x.shape, element)


def _reverse_sequence_type(context: Context) -> TensorType:
    axes = [int(context.attribute(f"{name}_axis", n)) for n, name in enumerate(("time", "batch"))]
    if sorted(axes) != [0, 1]:
        raise NotSupportedError(f"time and batch axes {axes}: they are 0 and 1, or 1 and 0")
    check_shapes(context, "batch time ..." if axes[0] else "time batch ...", "batch")
    return context.type(0)


def _lengths(context: Context) -> tuple[IndexInput, ...]:
    """Input 1 holds lengths, which are at most the size of the time axis."""
    time = int(context.attribute("time_axis", 0))
    limit = canonical(context.shape(0)[time] + 1)
    return (IndexInput(context.node.inputs[1], (limit,), from_end=False),)


def require_within(build: Builder, value: Value, size: Expr) -> Value:
    """Return the same integers. A run checks that they are between 0 and size - 1."""
    return build("Within", value, domain="webmlc", size=size)


def _within_indices(context: Context) -> tuple[IndexInput, ...]:
    return (IndexInput(context.node.inputs[0], (context.attribute("size"),), from_end=False),)


def _within(context: Context, x: Tensor) -> Tensor:
    return compute("within", x.shape, lambda *i: x[i])


def _reverse_sequence(context: Context, x: Tensor, lengths: Tensor) -> Tensor:
    time, batch = int(context.attribute("time_axis", 0)), int(context.attribute("batch_axis", 1))

    def element(*i: Expr) -> Expr:
        length = minimum(maximum(lengths[i[batch]].astype(INDEX), 0), x.shape[time])
        position = select(i[time] < length, length - 1 - i[time], i[time])
        return x[tuple(position if d == time else v for d, v in enumerate(i))]

    return compute("reverse_sequence", x.shape, element)


def _tensor_scatter_type(context: Context) -> TensorType:
    axis = context.axis(-2)
    shape, update = context.shape(0), context.shape(1)
    check_shapes(context, "...", "...")
    check_shape(context, 1, with_axis(shape, axis, *update[axis : axis + 1]))
    check_shape(context, 2, shape[:1])
    return context.type(0)


def _write_indices(context: Context) -> tuple[IndexInput, ...]:
    """Input 2 holds the position of each update, which ends inside the cache."""
    if not context.has(2) or context.attribute("mode", "linear") == "circular":
        return ()
    axis = context.axis(-2)
    limit = canonical(context.shape(0)[axis] - context.shape(1)[axis] + 1)
    return (IndexInput(context.node.inputs[2], (limit,), from_end=False),)


def _tensor_scatter(
    context: Context, cache: Tensor, update: Tensor, start: Tensor | None = None
) -> Tensor:
    """Write `update` into a cache, from position `write_indices[batch]` on."""
    axis = context.axis(-2)
    size, length = cache.shape[axis], update.shape[axis]
    circular = context.attribute("mode", "linear") == "circular"

    def element(*i: Expr) -> Expr:
        place = i[axis] - (start[i[0]].astype(INDEX) if start is not None else ZERO)
        place = place % size if circular else place
        inside = (place >= 0) & (place < length)
        return select(inside, update[with_axis(i, axis, place)], cache[i])

    return compute("tensor_scatter", cache.shape, element)


X = "float32[3, 4]"
INDICES = np.array([[0, 2], [1, -1]])

OPS: tuple[Operator, ...] = (
    Operator("Gather", _gather_type, _gather, kind="injective", indices=_axis_indices,
             layout=Layout(("map", "vector"), axis=0), cases=(
        case(X, INDICES), case(X, INDICES, axis=1), case(X, np.int64(1)), case(X, [2], axis=-1))),
    Operator("GatherElements", _gather_elements_type, _gather_elements, kind="injective",
             indices=_axis_indices, cases=(
        case(X, INDICES), case(X, INDICES, axis=1))),
    Operator("GatherND", _gather_nd_type, _gather_nd, kind="injective", indices=_leading_indices,
             cases=(
        case(X, np.array([[0, 1], [2, -1]])), case(X, np.array([[1], [0]])),
        case("float32[2, 3, 4]", np.array([[1], [0]]), batch_dims=1))),
    Operator("ScatterElements", _scatter_elements_type, _scatter_elements,
             indices=_axis_indices, choices=REDUCTION, cases=(
        case(X, INDICES, "float32[2, 2]"), case(X, INDICES, "float32[2, 2]", axis=1),
        case(X, [[1, 1]], "float32[1, 2]", axis=1, reduction="add"),
        case(X, [[1, 1]], "float32[1, 2]", axis=1, reduction="max"))),
    Operator("Scatter", _scatter_elements_type, _scatter_elements, indices=_axis_indices),
    Operator("ScatterND", _scatter_nd_type, _scatter_nd, indices=_leading_indices,
             choices=REDUCTION, cases=(
        case(X, [[0], [2]], "float32[2, 4]"), case(X, [[0, 1], [2, 3]], "float32[2]"),
        case(X, [[1], [1]], "float32[2, 4]", reduction="add"))),
    Operator("CountOutside", compute=_count_outside, domain="webmlc",
             kind="reduction"),
    Operator("Within", same_type, _within, domain="webmlc", kind="injective",
             indices=_within_indices),
    Operator("OneHot", _one_hot_type, _one_hot, _one_hot_expanded, kind="injective", cases=(
        case([1, 2, -1], np.int64(4), [0.5, 2.0]), case([[1, 2]], np.int64(3), [0, 7], axis=0))),
    Operator("Trilu", _trilu_type, _trilu, kind="injective", cases=(
        case(X), case(X, upper=0), case(X, np.int64(1)), case(X, np.int64(-1), upper=0))),
    Operator("ReverseSequence", _reverse_sequence_type, _reverse_sequence, kind="injective",
             indices=_lengths, cases=(
        case("float32[4, 3]", [1, 2, 4], time_axis=0, batch_axis=1),)),
    Operator("TensorScatter", _tensor_scatter_type, _tensor_scatter, kind="injective",
             indices=_write_indices, choices={"mode": ("linear", "circular")}, cases=(
        case("float32[2, 5, 3]", "float32[2, 2, 3]", "int64[2] in 0..3"),
        case("float32[2, 5, 3]", "float32[2, 2, 3]"),
        case("float32[2, 3, 5]", "float32[2, 3, 4]", "int64[2] in 0..9", axis=2,
             mode="circular"))),
)  # fmt: skip
