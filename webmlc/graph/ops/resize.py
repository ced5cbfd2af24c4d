"""Resize and Upsample.

If the sizes are known, each axis is resampled separately, in all modes. Two small tables hold the
input positions that an output position reads, and their weights (`webmlc.Resample`). Nearest
upscaling by a whole number reads `x[i // factor]` (`webmlc.Repeat`).

If only a run knows the sizes, nearest and linear compute their positions in the kernel. Filters
with more taps compute the tables. Scales that only a run knows decide sizes, which are read from
memory:

    %y = Resize(%x, , %scales)     →     %sizes = webmlc.ResizeSizes(%x, %scales)
                                         %y = Resize(%x, , %scales, %sizes)

Such a Resize has both: the sizes give the shape of the output, and the scales its positions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from functools import reduce as fold
from typing import Any

import numpy as np

from webmlc.core.dtypes import INDEX, DType
from webmlc.core.expr import Expr, as_expr, as_int, call, const, maximum, minimum
from webmlc.graph.builder import Builder, Value
from webmlc.graph.compute import Tensor, compute, reduce
from webmlc.graph.ir import Array, Node, TensorType
from webmlc.graph.ops.operator import (
    Context,
    Inputs,
    Layout,
    NotSupportedError,
    Operator,
    case,
    check_size,
)
from webmlc.graph.ops.resize_positions import FLOAT, Axis, Positions, table
from webmlc.graph.ops.shapes import (
    accumulator,
    axes_within,
    canonical,
    require,
    same,
    select_among,
    with_axis,
)

ROI, SCALES, SIZES = 1, 2, 3
"""The numbers of the inputs of a Resize."""
_POLICY = "keep_aspect_ratio_policy"
MODES = {
    "mode": ("nearest", "linear", "cubic"),
    "coordinate_transformation_mode": (
        "half_pixel", "pytorch_half_pixel", "half_pixel_symmetric", "align_corners", "asymmetric",
        "tf_half_pixel_for_nn", "tf_crop_and_resize",
    ),
    "nearest_mode": ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil"),
    _POLICY: ("stretch", "not_larger", "not_smaller"),
}  # fmt: skip
"""The values of each attribute that names a mode. The default comes first."""


def _old_form(node: Node, opset: int) -> Node:
    """Rewrite an Upsample, or a Resize before opset 11: scales are input 1, positions are `i /
    scale`.
    """
    if node.op == "Resize" and opset >= 11:
        return node
    mode = node.attributes.get("mode", "nearest")
    attributes = {
        **node.attributes,
        "mode": "linear" if mode == "bilinear" else mode,
        "coordinate_transformation_mode": "asymmetric",
        "nearest_mode": "floor",
    }
    return replace(node, op="Resize", inputs=(node.inputs[0], "", *node.inputs[1:]),
                   attributes=attributes)  # fmt: skip


def listed_axes(context: Context) -> list[int]:
    """The axes for which the node has sizes or scales."""
    axes = [int(a) for a in context.attribute("axes", range(context.rank(0)))]
    axes_within(axes, context.rank(0))
    return [a % context.rank(0) for a in axes]


def resized_axes(context: Context) -> list[Axis]:
    """The axes whose sizes change or may change."""
    x, axes = context.type(0), listed_axes(context)
    crops = context.attribute("coordinate_transformation_mode") == "tf_crop_and_resize"
    regions: Sequence[Any] | None = [0.0] * len(axes) + [1.0] * len(axes)
    if crops and _is_given(context, ROI):
        regions = _numbers(context, ROI)
    may_move = crops or (_is_given(context, SCALES) and _is_given(context, SIZES))
    result: list[Axis] = []
    for place, (axis, after, scale) in enumerate(_sizes(context, x.shape, axes)):
        region = regions and (float(regions[place]), float(regions[len(axes) + place]))
        if may_move or not same(after, x.shape[axis]) or scale not in (None, 1.0):
            result.append(Axis(axis, place, x.shape[axis], after, scale, region or None))
    return result


def _is_given(context: Context, index: int) -> bool:
    """True if an input is present. Until opset 12, an input without elements stands for none."""
    return context.has(index) and as_int(context.shape(index)[0]) != 0


def _numbers(context: Context, index: int) -> list[float] | None:
    """The elements of an input, or None if only a run knows them."""
    value = context.value(index)
    elements = None if value is None else value.reshape(-1).tolist()
    return None if elements is None or any(isinstance(e, Expr) for e in elements) else elements


def _sizes(
    context: Context, shape: Sequence[Expr], axes: Sequence[int]
) -> list[tuple[int, Expr, float | None]]:
    """The tuple (axis, size, scale) of each listed axis. A scale is None if only a run knows it."""
    if not _is_given(context, SIZES):
        scales = _scales(context) or []
        _check_count(axes, scales, "scales")
        return [
            (axis, _scaled(shape[axis], float(scale)), float(scale))
            for axis, scale in zip(axes, scales, strict=True)
        ]
    sizes = [as_expr(n) for n in context.known_value(SIZES, "the size").reshape(-1).tolist()]
    _check_count(axes, sizes, "sizes")
    for axis, size in zip(axes, sizes, strict=True):
        if not require(context, "at most", canonical(minimum(size, 1)), shape[axis]):
            raise NotSupportedError(f"{size} elements along axis {axis}, which has none")
    if _is_given(context, SCALES):
        return [(axis, canonical(size), None) for axis, size in zip(axes, sizes, strict=True)]
    policy = context.attribute(_POLICY, "stretch")
    return _of_sizes(policy, shape, axes, sizes)


def _scales(context: Context) -> list[float] | None:
    """The scales of a node without sizes, or None if only a run knows them."""
    if "scales" in context.node.attributes:
        return list(context.attribute("scales"))
    return _numbers(context, SCALES)


def _check_modes(context: Context) -> None:
    for attribute, modes in MODES.items():
        mode = context.attribute(attribute, modes[0])
        if mode not in modes:
            raise NotSupportedError(f"{attribute} {mode!r}")
    if (
        context.attribute("exclude_outside", 0)
        and context.attribute("mode", "nearest") == "nearest"
    ):
        raise NotSupportedError("exclude_outside of mode nearest, which reads one element")
    crops = context.attribute("coordinate_transformation_mode") == "tf_crop_and_resize"
    if crops and context.attribute(_POLICY, "stretch") != "stretch" and _is_given(context, SIZES):
        raise NotSupportedError(f"{_POLICY} of a region (tf_crop_and_resize): give its sizes")


def _check_count(axes: Sequence[int], values: Sequence[Any], noun: str) -> None:
    if len(values) != len(axes):
        raise NotSupportedError(f"{len(values)} {noun} for {len(axes)} axes")


def _of_sizes(
    policy: str, shape: Sequence[Expr], axes: Sequence[int], sizes: Sequence[Expr]
) -> list[tuple[int, Expr, float | None]]:
    size_pairs = [(as_int(n), as_int(shape[a])) for n, a in zip(sizes, axes, strict=True)]
    scales = [n / m if n is not None and m else None for n, m in size_pairs]
    if policy == "stretch":
        return list(zip(axes, map(canonical, sizes), scales, strict=True))
    numbers = [s for s in scales if s is not None]
    scale = min(numbers) if policy == "not_larger" else max(numbers)
    return [
        (axis, const(math.floor(scale * (m or 0) + 0.5)), scale)
        for axis, (_, m) in zip(axes, size_pairs, strict=True)
    ]


def _scaled(size: Expr, scale: float) -> Expr:
    """Compute floor(size · scale). A symbolic size is multiplied by the fraction nearest to the
    scale.
    """
    number = as_int(size)
    if number is not None:
        return const(math.floor(np.float32(number) * np.float32(scale)))
    ratio = Fraction(scale).limit_denominator(1000)
    return canonical(size * ratio.numerator // ratio.denominator)


def _resize_type(context: Context) -> TensorType:
    x = context.type(0)
    shape = list(x.shape)
    for axis in resized_axes(context):
        shape[axis.axis] = axis.after
    return TensorType(x.dtype, tuple(shape))


def _is_of_a_run(axis: Axis) -> bool:
    """True if only a run can compute the positions."""
    sizes = (as_int(axis.before), as_int(axis.after))
    return axis.scale is None or axis.roi is None or None in sizes


# -- sizes that a run computes ------------------------------------------------------------------


def _with_sizes(context: Context, build: Builder) -> Value | None:
    """The node with both scales and sizes, if a run must compute the sizes from the scales or the
    scales from the sizes. None for other nodes.
    """
    x, region, scales, sizes, *_ = (*context.node.inputs, "", "", "")
    policy = context.attribute(_POLICY, "stretch")
    keeps_aspect = policy != "stretch" and _is_given(context, SIZES)
    if keeps_aspect:
        numbers = _numbers(context, SIZES)
        if numbers is not None and all(as_int(context.shape(0)[a]) for a in listed_axes(context)):
            return None
    elif _is_given(context, SIZES) or _scales(context) is not None:
        return None
    attributes = {k: v for k, v in context.node.attributes.items() if k != _POLICY}
    axes = tuple(listed_axes(context))
    if keeps_aspect:
        scales = build(
            "ResizeScales", x, sizes, domain="webmlc", axes=axes, is_smaller=policy == "not_larger"
        )
    sizes = build("ResizeSizes", x, scales, domain="webmlc", axes=axes, rounds=keeps_aspect)
    return build("Resize", x, region, scales, sizes, **attributes)


def _one_by_axis(dtype: DType) -> Any:
    def infer(context: Context) -> TensorType:
        count = len(context.attribute("axes"))
        fits = context.rank(1) == 1 and require(context, "equal", context.shape(1)[0], const(count))
        if not fits:
            raise NotSupportedError(f"{context.type(1)} for {count} axes")
        return TensorType(dtype, (const(count),))

    return infer


def _resize_sizes(context: Context, _x: Tensor, scales: Tensor) -> Tensor:
    """Multiply each size by its scale, and round down or to the nearest integer."""
    before = _listed_sizes(context)
    half = 0.5 if context.attribute("rounds") else 0.0

    def element(i: Expr) -> Expr:
        size = select_among(before, i) * scales[i].astype(FLOAT)
        return call("floor", size + half if half else size).astype(DType.int64)

    return compute("sizes", context.outputs[0].shape, element)


def _resize_scales(context: Context, _x: Tensor, sizes: Tensor) -> Tensor:
    """The smallest or largest quotient of the new and the old size, for all axes."""
    before = _listed_sizes(context)
    choose = minimum if context.attribute("is_smaller") else maximum
    quotients = [sizes[const(i)].astype(FLOAT) / size for i, size in enumerate(before)]
    return compute("scales", context.outputs[0].shape, lambda _: fold(choose, quotients))


def _listed_sizes(context: Context) -> list[Expr]:
    return [context.shape(0)[a].astype(FLOAT) for a in context.attribute("axes")]


# -- tables --------------------------------------------------------------------------------------


def _expand(context: Context, build: Builder) -> Value | None:
    _check_modes(context)
    resized = _with_sizes(context, build)
    if resized is not None:
        return resized
    axes = resized_axes(context)
    if any(map(_is_of_a_run, axes)):
        return _filtered(context, build, axes) if _needs_tables(context) else None
    check_size(_resize_type(context))
    value = build.inputs[0]
    factors = _whole_factors(context, axes)
    if factors is not None:
        repeats = tuple(factors.get(d, 1) for d in range(context.rank(0)))
        return build("Repeat", value, domain="webmlc", repeats=repeats)
    fill = float(context.attribute("extrapolation_value", 0.0))
    outside = np.zeros((1,) * context.rank(0), bool)
    for axis in sorted(axes, key=lambda a: a.scale or 1.0):
        indices, weights, beyond = table(context, axis)
        if fill and beyond.any():
            outside = outside | np.expand_dims(beyond, _others(axis.axis, context.rank(0)))
        if context.attribute("mode", "nearest") == "nearest" and not beyond.any():
            value = build("Gather", value, build.constant(indices[:, 0]), axis=axis.axis)
            continue
        dtype = accumulator(context.dtype(0))
        value = build(
            "Resample", value, build.constant(indices),
            build.constant(weights, dtype if dtype.is_float else DType.float32),
            domain="webmlc", axis=axis.axis,
        )  # fmt: skip
    if outside.any():
        value = build("Where", build.constant(outside),
                        build.constant(fill, context.dtype(0)), value)  # fmt: skip
    return value


def _others(axis: int, rank: int) -> tuple[int, ...]:
    return tuple(d for d in range(rank) if d != axis)


def _whole_factors(context: Context, axes: Sequence[Axis]) -> dict[int, int] | None:
    """The factors by axis, if nearest resampling repeats each element a whole number of times."""
    if context.attribute("mode", "nearest") != "nearest":
        return None
    factors: dict[int, int] = {}
    for axis in axes:
        before, after = as_int(axis.before) or 1, as_int(axis.after) or 0
        indices, _, beyond = table(context, axis)
        factor = after // before
        if after % before or beyond.any() or not factor:
            return None
        if not np.array_equal(indices[:, 0], np.arange(after) // factor):
            return None
        factors[axis.axis] = factor
    return factors


def _needs_tables(context: Context) -> bool:
    """True if a filter needs tables: an output is neither one element nor a mixture of two."""
    mode = context.attribute("mode", "nearest")
    mixes = mode == "linear" and context.dtype(0).is_float
    options = context.attribute("antialias", 0) or context.attribute("exclude_outside", 0)
    return mode != "nearest" and bool(not mixes or options)


def _filtered(context: Context, build: Builder, axes: Sequence[Axis]) -> Value:
    """Resample each axis with a table that a run computes."""
    value, node = build.inputs[0], context.node
    options = bool(context.attribute("antialias", 0) or context.attribute("exclude_outside", 0))
    crops = context.attribute("coordinate_transformation_mode") == "tf_crop_and_resize"
    fill = build.constant(context.attribute("extrapolation_value", 0.0), context.dtype(0))
    for axis in axes:
        indices, weights, *outside = build.many(
            "ResizeTable", *node.inputs, outputs=2 + crops, domain="webmlc",
            **{**node.attributes, "of": axis.axis},
        )  # fmt: skip
        if options:
            total = build("ReduceSum", weights, [1], keepdims=1)
            weights = weights / total
        value = build("Resample", value, indices, weights, domain="webmlc", axis=axis.axis)
        for positions in outside:
            axes_around = build.constant(np.array(_others(axis.axis, context.rank(0)), np.int64))
            value = build("Unsqueeze", positions, axes_around).where(fill, value)
    return value


def _resize_table(context: Context, *inputs: Tensor | None) -> tuple[Tensor, ...]:
    return _table_positions(context, inputs[1:]).table()


def _table_positions(context: Context, inputs: Inputs) -> Positions:
    """The positions along the axis of a `ResizeTable`."""
    (axis,) = (a for a in resized_axes(context) if a.axis == context.attribute("of"))
    return _positions(context, inputs, axis)


def _resample(context: Context, x: Tensor, indices: Tensor, weights: Tensor) -> Tensor:
    """Sum over the taps of an axis. The taps are few, so that their loop is unrolled."""
    axis = context.axis(0)
    shape = with_axis(x.shape, axis, indices.shape[0])

    def element(*index: Expr) -> Expr:
        *i, tap = index
        at = indices[i[axis], tap].astype(INDEX)
        value = x[with_axis(i, axis, at)].astype(weights.dtype)
        return value * weights[i[axis], tap]

    total = reduce("resample", shape, (indices.shape[1],), "add", element)
    if total.dtype == x.dtype:
        return total
    rounding = not x.dtype.is_float
    return compute(
        "resample_out",
        shape,
        lambda *i: (call("round", total[i]) if rounding else total[i]).astype(x.dtype),
    )


def _repeat(context: Context, x: Tensor) -> Tensor:
    repeats = context.attribute("repeats")

    def element(*i: Expr) -> Expr:
        return x[tuple(v // r for v, r in zip(i, repeats, strict=True))]

    shape = tuple(canonical(n * r) for n, r in zip(x.shape, repeats, strict=True))
    return compute("repeat", shape, element)


# -- positions in the kernel ---------------------------------------------------------------------


def _positions(context: Context, inputs: Inputs, axis: Axis) -> Positions:
    region, scales, *_ = (*inputs, None, None)
    return Positions(context, axis, scales, region)


def _resize(context: Context, x: Tensor, *inputs: Tensor | None) -> Tensor:
    shape = list(x.shape)
    for number, axis in enumerate(resized_axes(context)):
        shape[axis.axis] = axis.after
        x = compute(f"resize_{number}", shape, _positions(context, inputs, axis).sample(x))
    return x


X = "float32[1, 2, 3, 4]"


def _factors(*values: float) -> Array:
    return np.array(values, np.float32)


OPS: tuple[Operator, ...] = (
    Operator("Resize", _resize_type, _resize, _expand, kind="injective", normalise=_old_form,
             layout=Layout(("map", "none", "sizes", "sizes"), unless="axes"), cases=(
        case(X, None, _factors(1, 1, 2, 2)), case(X, None, _factors(1, 1, 2, 3), mode="linear"),
        case(X, None, _factors(1, 1, 0.6, 0.6), mode="linear"),
        case(X, np.array([0, 0, 0.1, 0.2, 1, 1, 0.8, 0.9], np.float32), None,
             np.array([1, 2, 5, 9]), mode="linear", extrapolation_value=2.0,
             coordinate_transformation_mode="tf_crop_and_resize"),
        case(X, None, None, np.array([1, 2, 7, 8]), mode="cubic"),
        case(X, None, None, np.array([1, 2, 2, 3]), mode="linear", antialias=1),
        case(X, None, None, np.array([7, 8]), axes=(2, 3), mode="linear",
             coordinate_transformation_mode="align_corners"),
        case(X, None, _factors(1, 1, 0.8, 0.8), mode="cubic", exclude_outside=1),
        case(X, None, None, np.array([1, 2, 7, 8]), nearest_mode="ceil",
             coordinate_transformation_mode="asymmetric"))),
    Operator("Upsample", _resize_type, _resize, _expand, kind="injective", normalise=_old_form),
    Operator("ResizeSizes", _one_by_axis(DType.int64), _resize_sizes, kind="injective",
             domain="webmlc"),
    Operator("ResizeScales", _one_by_axis(FLOAT), _resize_scales, kind="injective",
             domain="webmlc"),
    Operator("ResizeTable", compute=_resize_table, kind="injective", domain="webmlc"),
    Operator("Repeat", compute=_repeat, kind="injective", domain="webmlc",
             layout=Layout(("map",), per_dimension="repeats")),
    Operator("Resample", compute=_resample, kind="reduction", domain="webmlc",
             layout=Layout(("map", "any", "any"), axis=1)),
)  # fmt: skip
