"""Slices and padding.

Starts and ends may be expressions of symbols. Starts, ends, axes and steps that only a run knows
are read from memory (`SliceRange`, `Part`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from webmlc.core.bounds import SYMBOL, bounds
from webmlc.core.dtypes import INDEX, DType
from webmlc.core.expr import Const, Expr, as_expr, as_int, const, maximum, minimum, select
from webmlc.core.rewrite import variables
from webmlc.graph.builder import Builder, Value
from webmlc.graph.compute import Tensor, compute
from webmlc.graph.ir import TensorType
from webmlc.graph.ops.axes import axis_count, by_axis
from webmlc.graph.ops.operator import Context, Layout, NotSupportedError, Operator, case
from webmlc.graph.ops.shapes import (
    ONE,
    ZERO,
    Shape,
    all_of,
    axes_within,
    canonical,
    check_shape,
    check_single,
    dimensions,
    require,
    select_among,
    with_axis,
)

FAR_END = 2**31 - 1
"""A start or an end of at least this many elements means the end of the axis, as exporters write
it. It is the largest index.
"""


def slices(context: Context) -> list[tuple[Expr, Expr, int]]:
    """The tuple (start, size, step) of each axis. Starts and ends may be symbolic, steps may
    not.
    """
    shape = context.shape(0)
    result: list[tuple[Expr, Expr, int]] = [(ZERO, size, 1) for size in shape]
    if "starts" in context.node.attributes:
        starts = [as_expr(int(v)) for v in context.attribute("starts")]
        ends = [as_expr(int(v)) for v in context.attribute("ends")]
    else:
        starts = dimensions(context, 1, "the start of the slice")
        ends = dimensions(context, 2, "the end of the slice")
    axes, steps = _axes_and_steps(context, len(starts))
    if len(ends) != len(starts):
        raise NotSupportedError(f"{len(starts)} starts and {len(ends)} ends")
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        size = shape[axis]
        low, high = (0, size) if step > 0 else (-1, size - 1)
        first, last = _clamped(start, size, low, high), _clamped(end, size, low, high, step < 0)
        distance = last - first if step > 0 else first - last
        count = (distance + (abs(step) - 1)) // abs(step)
        number = canonical(count)
        constant = as_int(number)
        positive = constant is None and is_natural(number)
        number = number if positive or (constant or 0) > 0 else canonical(maximum(number, 0))
        result[axis] = (first, number, step)
    return result


def _axes_and_steps(context: Context, count: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The axes of `count` starts, counted from the front, and their steps."""
    axes = context.integers("axes", 3) or tuple(range(count))
    steps = context.integers("steps", 4) or (1,) * count
    distinct = len(axes_within(axes, context.rank(0)))
    if not distinct == len(axes) == len(steps) == count or 0 in steps:
        raise NotSupportedError(
            f"{count} starts, axes {list(axes)} and steps {list(steps)} do not fit together"
        )
    return tuple(a % context.rank(0) for a in axes), steps


def _slice_expanded(context: Context, build: Builder) -> Value | None:
    """Expand a slice that only a run knows: the run computes its starts and sizes, too."""
    if "starts" in context.node.attributes:
        return None
    x, starts, ends, *_ = build.inputs
    count, rank = axis_count(context, 1), context.rank(0)
    for index in (2, 3, 4):
        check_shape(context, index, (const(count),))
    if context.is_decided_by_run(3) or context.is_decided_by_run(4):
        axis_input, steps = (
            build.optional(i) or build.constant(default)
            for i, default in ((3, np.arange(count)), (4, np.ones(count, np.int64)))
        )
        starts, ends, steps = (
            by_axis(values, axis_input, count, rank, default=default, invalid=0)
            for values, default in ((starts, 0), (ends, FAR_END), (steps, 1))
        )
        axes = tuple(range(rank))
    elif context.value(1) is None or context.value(2) is None:
        axes, numbers = _axes_and_steps(context, count)
        steps = build.constant(np.array(numbers))
    else:
        return None
    ranges = build.many(
        "SliceRange", build("Shape", x), starts, ends, steps,
        outputs=2, domain="webmlc", axes=axes,
    )  # fmt: skip
    return build("Part", x, *ranges, steps, domain="webmlc", axes=axes)


def _slice_range_type(context: Context) -> tuple[TensorType, ...]:
    return (context.type(1), context.type(1))


def _slice_range(
    context: Context, shape: Tensor, starts: Tensor, ends: Tensor, steps: Tensor
) -> tuple[Tensor, ...]:
    """The first element and the number of elements of each sliced axis. The number is -1 if the
    step is 0.
    """

    def place(bound: Tensor, k: int, size: Expr, step: Expr, end: bool) -> Expr:
        value = bound[k]
        nothing = const(0, value.dtype)
        low = _by_sign(step, nothing, nothing - 1) if end else nothing
        high = _by_sign(step, size, size - 1)
        return minimum(maximum(select(value < 0, value + size, value), low), high)

    firsts, counts = [], []
    for k, step in enumerate(_steps(context, steps, starts.dtype)):
        size = shape[context.attribute("axes")[k]].astype(step.dtype)
        first, last = place(starts, k, size, step, False), place(ends, k, size, step, True)
        distance = _by_sign(step, last - first, first - last)
        stride = _by_sign(step, step, -step)
        count = minimum(maximum((distance + (stride - 1)) // stride, 0), size)
        if as_int(step) is None:
            count = select(step.equals(0), const(-1, step.dtype), count)
        firsts.append(maximum(first, 0))  # an empty axis has no last element to start from
        counts.append(count)
    return (
        compute("first", starts.shape, lambda k: select_among(firsts, k)),
        compute("count", starts.shape, lambda k: select_among(counts, k)),
    )


def _steps(context: Context, steps: Tensor, dtype: DType) -> list[Expr]:
    """The steps (input 3). They are numbers if they are known; otherwise a run reads them."""
    numbers = context.constant(3)
    if numbers is not None:
        return [const(int(n), dtype) for n in numbers]
    return [steps[k].astype(dtype) for k in range(as_int(steps.shape[0]) or 0)]


def _by_sign(step: Expr, positive: Expr, negative: Expr) -> Expr:
    """Choose one of two values by the sign of the step."""
    number = as_int(step)
    if number is not None:
        return positive if number > 0 else negative
    return select(step > 0, positive, negative)


def _part_type(context: Context) -> TensorType:
    shape = list(context.shape(0))
    counts = dimensions(context, 2, "how many there are")
    dimensions(context, 1, "the first")
    for axis, count in zip(context.attribute("axes"), counts, strict=True):
        shape[axis] = count
    return TensorType(context.dtype(0), tuple(shape))


def _part(context: Context, x: Tensor, _first: Tensor, _count: Tensor, steps: Tensor) -> Tensor:
    """Take `count` elements of each axis, from `first` on, at distance `step`."""
    ranges = zip(dimensions(context, 1, "the first"), _steps(context, steps, INDEX), strict=True)
    cuts = dict(zip(context.attribute("axes"), ranges, strict=True))

    def element(*i: Expr) -> Expr:
        along = (cuts.get(d, (ZERO, ONE)) for d in range(x.rank))
        return x[tuple(first + v * step for v, (first, step) in zip(i, along, strict=True))]

    return compute("slice", context.outputs[0].shape, element)


def is_natural(expr: Expr) -> bool:
    """True if a size is provably not negative."""
    return bounds(expr, dict.fromkeys(variables(expr), SYMBOL)).low >= 0


def _clamped(value: Expr, size: Expr, low: Expr | int, high: Expr, end: bool = False) -> Expr:
    """A start or end, counted from the front and clamped to the axis.

    Very large numbers mean the end of the axis. If `end`, numbers below -size mean the place before
    the first element.
    """
    number = as_int(value)
    if number is not None and number >= FAR_END:
        return canonical(high)
    if number is not None and number <= -FAR_END:
        return canonical(low if not end else -1)
    absolute = value + size if number is not None and number < 0 else value
    limited = minimum(maximum(absolute, low), high)
    if number is None and not is_natural(value):
        limited = minimum(maximum(select(value < 0, value + size, value), low), high)
    return canonical(limited)


def _slice_type(context: Context) -> TensorType:
    return TensorType(context.dtype(0), tuple(size for _, size, _ in slices(context)))


def _slice(context: Context, x: Tensor, *_: Tensor) -> Tensor:
    cuts = slices(context)

    def element(*i: Expr) -> Expr:
        return x[tuple(start + v * step for v, (start, _, step) in zip(i, cuts, strict=True))]

    return compute("slice", context.outputs[0].shape, element)


def pads_of(context: Context) -> list[tuple[Expr, Expr]]:
    """The padding (before, after) of each axis. Negative padding cuts."""
    rank = context.rank(0)
    if "pads" in context.node.attributes:
        flat = [as_expr(v) for v in context.attribute("pads")]
    else:
        flat = dimensions(context, 1, "the padding")
    axes = context.integers("axes", 3) or tuple(range(rank))
    axes_within(axes, rank)
    if len(flat) != 2 * len(axes):
        raise NotSupportedError(f"{len(flat)} pads for {len(axes)} axes: 2 for each are expected")
    result: list[tuple[Expr, Expr]] = [(ZERO, ZERO)] * rank
    for place, axis in enumerate(axes):
        result[axis % rank] = (flat[place], flat[len(axes) + place])
    return result


def _pad_expanded(context: Context, build: Builder) -> Value | None:
    """Expand padding that only a run knows. The numbers of added and cut elements become sizes."""
    if "pads" in context.node.attributes:
        return None
    x, pads, *optional_inputs = build.inputs
    if context.is_decided_by_run(3):
        count, rank = axis_count(context, 1) // 2, context.rank(0)
        check_shape(context, 3, (const(count),))
        halves = build.many("Split", pads, outputs=2, axis=0, num_outputs=2)
        full = (
            by_axis(half, optional_inputs[1], count, rank, default=0, invalid=-FAR_END)
            for half in halves
        )
        everywhere = build("Concat", *full, axis=0)
        return build("Pad", x, everywhere, optional_inputs[0], **context.node.attributes)
    if context.value(1) is not None:
        return None
    added, cut = (
        build("Sizes", build("Max", value, 0), domain="webmlc") for value in (pads, -pads)
    )
    axes = context.integers("axes", 3) or tuple(range(context.rank(0)))
    sizes = build("Gather", build("Shape", x), np.array(axes))
    for part in build.many("Split", pads, outputs=2, axis=0, num_outputs=2):
        sizes = sizes + part
    inputs = (x, added - cut, *optional_inputs, *[""] * (2 - len(optional_inputs)), sizes)
    return build("Pad", *inputs, **context.node.attributes)


def _pad_type(context: Context) -> TensorType:
    x = context.type(0)
    check_single(context, 2)
    pads = pads_of(context)
    shape = [canonical(n + a + b) for n, (a, b) in zip(x.shape, pads, strict=True)]
    for size, old_size, (before, after) in zip(shape, x.shape, pads, strict=True):
        is_padded = (before, after) != (ZERO, ZERO)
        mirrors = is_padded and context.attribute("mode", "constant") != "constant"
        inner_size = canonical(old_size + minimum(before, 0) + minimum(after, 0))
        if not require(context, "at most", ZERO, size) or (
            mirrors and not require(context, "at most", ONE, inner_size)
        ):
            raise NotSupportedError(f"padding of {before} and {after} for {old_size} elements")
    if context.has(4):  # sizes from a run: shorter expressions than sums of paddings
        axes = context.integers("axes", 3) or tuple(range(x.rank))
        for axis, size in zip(axes, dimensions(context, 4, "the size"), strict=True):
            shape[axis % x.rank] = size
    return TensorType(x.dtype, tuple(shape))


def _pad(
    context: Context, x: Tensor, _pads: Tensor | None = None, fill: Tensor | None = None, *_: Tensor
) -> Tensor:
    pads = pads_of(context)
    mode = context.attribute("mode", "constant")
    mirrored = mirrored_axis(x.shape, pads) if mode == "reflect" else None
    if mirrored is not None:
        return _mirrored(x, mirrored, pads[mirrored][0], context.outputs[0].shape)
    constant = context.constant(2)
    if constant is not None and constant.size:
        filling: Expr = Const(constant.reshape(-1)[0].item(), x.dtype)
    elif fill is not None and constant is None:
        filling = fill[(ZERO,) * fill.rank]
    else:
        filling = Const(context.attribute("value", 0), x.dtype)

    def element(*index: Expr) -> Expr:
        if mode != "constant":
            return x[continued(mode, index, x.shape, pads)]
        place = tuple(i - before for i, (before, _) in zip(index, pads, strict=True))
        ends = zip(place, x.shape, pads, strict=True)
        inside = [(i >= 0) & (i < size) for i, size, pad in ends if pad != (ZERO, ZERO)]
        return select(all_of(inside), x[place], filling) if inside else x[place]

    return compute("pad", context.outputs[0].shape, element)


def mirrored_axis(shape: Shape, pads: Sequence[tuple[Expr, Expr]]) -> int | None:
    """The axis of a reflection that pads only one axis, if its size is known and greater than the
    padding. Otherwise None.
    """
    padded = [axis for axis, ends in enumerate(pads) if ends != (ZERO, ZERO)]
    if len(padded) != 1:
        return None
    (axis,) = padded
    size, ends = as_int(shape[axis]), [as_int(end) for end in pads[axis]]
    return axis if size and all(end is not None and 0 <= end < size for end in ends) else None


def _mirrored(x: Tensor, axis: int, before: Expr, shape: Shape) -> Tensor:
    """Put `x` between its mirror images. The result has three parts, and a loop may run along
    each.
    """
    end = before + x.shape[axis]

    def element(*index: Expr) -> Expr:
        def read(place: Expr) -> Expr:
            return x[with_axis(index, axis, place)]

        position = index[axis]
        last = read(end + x.shape[axis] - 2 - position)
        return select(
            position < before,
            read(before - position),
            select(position < end, read(position - before), last),
        )

    return compute("pad", shape, element)


def continued(
    mode: str, index: Sequence[Expr], shape: Shape, pads: Sequence[tuple[Expr, Expr]]
) -> tuple[Expr, ...]:
    """The index of the element that a tensor of this shape has at `index` when it is padded with
    its own elements.
    """
    ends = zip(index, shape, pads, strict=True)
    return tuple(
        i if (before, after) == (ZERO, ZERO) else _continued(mode, i - before, size)
        for i, size, (before, after) in ends
    )


def _continued(mode: str, position: Expr, size: Expr) -> Expr:
    """The index of the element at `position` of a dimension that is continued at both ends."""
    match mode:
        case "edge":
            return minimum(maximum(position, 0), size - 1)
        case "wrap":
            return position % size
        case "reflect":
            period = maximum(size * 2 - 2, 1)
            folded = position % period
            return minimum(folded, period - folded)
    raise NotSupportedError(f"padding mode {mode!r}")


X = "float32[2, 3, 4]"

OPS: tuple[Operator, ...] = (
    Operator("SliceRange", _slice_range_type, _slice_range, domain="webmlc", kind="injective"),
    Operator("Part", _part_type, _part, domain="webmlc", kind="injective"),
    Operator("Slice", _slice_type, _slice, _slice_expanded, kind="injective", cases=(
        case(X, [0, 1], [2, 3]), case(X, [-2], [2**62], [1]), case(X, [3], [0], [2], [-1]),
        case(X, [-1], [-100], [2], [-2]), case(X, [0], [4], [2], [3]), case(X, [5], [9], [2]),
        case(X, starts=(1,), ends=(-1,), axes=(2,), opset=9))),
    Operator("Pad", _pad_type, _pad, _pad_expanded, kind="injective",
             choices={"mode": ("constant", "reflect", "edge", "wrap")},
             layout=Layout(("map", "pads", "any")), cases=(
        case(X, [0, 1, 2, 1, 0, 3]), case(X, [0, 0, 1, 0, 0, 1], np.float32(1.5)),
        case(X, [0, 1, 2, 0, 1, 1], mode="edge"), case(X, [0, 1, 2, 0, 1, 1], mode="reflect"),
        case(X, [0, 0, 2, 0, 0, 3], mode="reflect"), case(X, [0, 2, 0, 0, 0, 0], mode="reflect"),
        case(X, [0, 1, 2, 0, 1, 1], mode="wrap"), case(X, [0, -1, 0, 0, 0, -2]),
        case(X, [2, 1], None, [2]), case(X, pads=(0, 0, 1, 0, 0, 1), value=0.5, opset=10))),
)  # fmt: skip
