"""Resize and Upsample.

Of known sizes, each axis is resampled on its own by two small tables made here in numpy, which
positions an output position reads and with what weights (`webmlc.Resample`), whatever the mode;
whole-number nearest upscaling reads `x[i // factor]` (`webmlc.Repeat`). Of symbolic sizes, nearest
and linear compute their positions in the kernel.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np

from webmlc.core.dtypes import INDEX, DType
from webmlc.core.expr import Const, Expr, as_expr, as_int, call, const, maximum, minimum, select
from webmlc.graph.compute import Tensor, compute, reduce
from webmlc.graph.ir import Array, Node, TensorType
from webmlc.graph.ops.operator import (
    Builder,
    Context,
    NotSupportedError,
    Operator,
    UnknownValueError,
    case,
)
from webmlc.graph.ops.shapes import accumulator, axes_within, canonical, given, same

Inputs = tuple[Tensor | None, ...]
ROI, SCALES, SIZES = 1, 2, 3


def _old_form(node: Node, opset: int) -> Node:
    """Upsample, and Resize before opset 11: scales are input 1, positions are `i / scale`."""
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


@dataclass(frozen=True, slots=True)
class Axis:
    """One resized axis. `scale` is None where only a run knows it (symbolic sizes)."""

    axis: int
    before: Expr
    after: Expr
    scale: float | None
    roi: tuple[float, float]


def resized_axes(context: Context) -> list[Axis]:
    """The axes whose size changes, or may."""
    x = context.type(0)
    axes = [int(a) for a in context.attribute("axes", range(x.rank))]
    axes_within(axes, x.rank)
    axes = [a % x.rank for a in axes]
    crops = context.attribute("coordinate_transformation_mode") == "tf_crop_and_resize"
    regions = [0.0] * len(axes) + [1.0] * len(axes)
    if crops and context.has(ROI):
        regions = context.known(ROI, "the region").tolist()
    result: list[Axis] = []
    for place, (axis, after, scale) in enumerate(_sizes(context, x.shape, axes)):
        region = (float(regions[place]), float(regions[len(axes) + place]))
        if crops or not same(after, x.shape[axis]) or scale not in (None, 1.0):
            result.append(Axis(axis, x.shape[axis], after, scale, region))
    return result


def _sizes(
    context: Context, shape: Sequence[Expr], axes: Sequence[int]
) -> list[tuple[int, Expr, float | None]]:
    """(axis, size, scale) of every listed axis."""
    if context.has(SIZES):
        sizes = [as_expr(n) for n in context.known(SIZES, "the size").reshape(-1).tolist()]
        policy = context.attribute("keep_aspect_ratio_policy", "stretch")
        crops = context.attribute("coordinate_transformation_mode") == "tf_crop_and_resize"
        tables = context.attribute("mode") == "cubic" or context.attribute("antialias", 0)
        if (policy != "stretch" or crops or tables) and None in map(as_int, sizes):
            raise UnknownValueError(context.node.inputs[SIZES], "the size")
        _check_count(axes, sizes, "sizes")
        return _of_sizes(policy, shape, axes, sizes)
    if "scales" in context.node.attributes:
        scales: list[Any] = list(context.attribute("scales"))
    else:
        scales = context.known(SCALES, "the scale").reshape(-1).tolist()
    if any(isinstance(s, Expr) for s in scales):
        raise UnknownValueError(context.node.inputs[SCALES], "the scale")
    _check_count(axes, scales, "scales")
    return [
        (axis, _scaled(shape[axis], float(scale)), float(scale))
        for axis, scale in zip(axes, scales, strict=True)
    ]


def _check_count(axes: Sequence[int], values: Sequence[Any], what: str) -> None:
    if len(values) != len(axes):
        raise NotSupportedError(f"{len(values)} {what} for {len(axes)} axes")


def _of_sizes(
    policy: str, shape: Sequence[Expr], axes: Sequence[int], sizes: Sequence[Expr]
) -> list[tuple[int, Expr, float | None]]:
    known = [(as_int(n), as_int(shape[a])) for n, a in zip(sizes, axes, strict=True)]
    scales = [n / m if n is not None and m else None for n, m in known]
    if policy == "stretch":
        return list(zip(axes, map(canonical, sizes), scales, strict=True))
    numbers = [s for s in scales if s is not None]
    if len(numbers) < len(scales):
        raise NotSupportedError(f"{policy} of symbolic sizes")
    scale = min(numbers) if policy == "not_larger" else max(numbers)
    return [
        (axis, const(math.floor(scale * (m or 0) + 0.5)), scale)
        for axis, (_, m) in zip(axes, known, strict=True)
    ]


def _scaled(size: Expr, scale: float) -> Expr:
    """floor(size · scale); of a symbolic size by the fraction that the scale stands for."""
    number = as_int(size)
    if number is not None:
        return const(math.floor(np.float32(number) * np.float32(scale)))
    ratio = Fraction(scale).limit_denominator(1000)
    return canonical(size * ratio.numerator // ratio.denominator)


def _resize_type(context: Context) -> tuple[TensorType, ...]:
    x = context.type(0)
    shape = list(x.shape)
    for axis in resized_axes(context):
        shape[axis.axis] = axis.after
    if _has_symbols(context):
        mode = context.attribute("coordinate_transformation_mode", "half_pixel")
        for kind, known in ((context.attribute("mode", "nearest"), _SYMBOLIC_MODES),
                            (mode, _SYMBOLIC_COORDINATES)):  # fmt: skip
            if kind not in known:
                raise NotSupportedError(f"{kind!r} of symbolic sizes")
    return (TensorType(x.dtype, tuple(shape)),)


_SYMBOLIC_MODES = ("nearest", "linear")
_SYMBOLIC_COORDINATES = ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric")


def _has_symbols(context: Context) -> bool:
    """True where positions are computed in the kernel: a size or a scale is known at run time."""
    return any(a.scale is None or as_int(a.before) is None for a in resized_axes(context))


# -- known sizes: tables ------------------------------------------------------------------------


def _expand(context: Context, builder: Builder) -> tuple[str, ...] | None:
    axes = resized_axes(context)
    if _has_symbols(context):
        return None
    value = context.node.inputs[0]
    factors = _whole_factors(context, axes)
    if factors is not None:
        repeats = tuple(factors.get(d, 1) for d in range(context.rank(0)))
        return (builder("Repeat", value, domain="webmlc", repeats=repeats),)
    outside = np.zeros((1,) * context.rank(0), bool)
    for axis in sorted(axes, key=lambda a: a.scale or 1.0):
        indices, weights, beyond = table(context, axis)
        outside = outside | np.expand_dims(beyond, _others(axis.axis, context.rank(0)))
        if context.attribute("mode", "nearest") == "nearest" and not beyond.any():
            value = builder("Gather", value, builder.constant(indices[:, 0]), axis=axis.axis)
            continue
        dtype = accumulator(context.dtype(0))
        value = builder(
            "Resample", value, builder.constant(indices),
            builder.constant(weights, dtype if dtype.is_float else DType.float32),
            domain="webmlc", axis=axis.axis,
        )  # fmt: skip
    fill = float(context.attribute("extrapolation_value", 0.0))
    if fill and outside.any():
        value = builder("Where", builder.constant(outside),
                        builder.constant(fill, context.dtype(0)), value)  # fmt: skip
    return (value,)


def _others(axis: int, rank: int) -> tuple[int, ...]:
    return tuple(d for d in range(rank) if d != axis)


def _whole_factors(context: Context, axes: Sequence[Axis]) -> dict[int, int] | None:
    """Factors by axis, where nearest resampling repeats each element so many times."""
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


def table(context: Context, axis: Axis) -> tuple[Array, Array, Array]:
    """Indices and weights, [output][taps], and which output positions lie outside the input."""
    before, after = as_int(axis.before) or 0, as_int(axis.after) or 0
    scale = axis.scale or 1.0
    mode = context.attribute("coordinate_transformation_mode", "half_pixel")
    place = _coordinates(mode, np.arange(after, dtype=np.float64), before, after, scale, axis.roi)
    beyond = np.zeros(after, bool)
    if mode == "tf_crop_and_resize":
        beyond = (place < 0) | (place > before - 1)
    kind = context.attribute("mode", "nearest")
    if kind == "nearest":
        indices = _nearest(context.attribute("nearest_mode", "round_prefer_floor"), place)[:, None]
        weights = np.ones(indices.shape)
    else:
        antialias = bool(context.attribute("antialias", 0)) and scale < 1
        indices, weights = _taps(
            kind, place, scale if antialias else 1.0, context.attribute("cubic_coeff_a", -0.75)
        )
        if context.attribute("exclude_outside", 0):
            weights = weights * ((indices >= 0) & (indices < before))
            weights = weights / weights.sum(axis=1, keepdims=True)
    weights = weights * ~beyond[:, None]
    return np.clip(indices, 0, max(before - 1, 0)).astype(np.int32), weights, beyond


def _coordinates(
    mode: str, x: Array, before: int, after: int, scale: float, roi: tuple[float, float]
) -> Array:
    """Positions in the input, by ONNX's definition of each mode."""
    start, end = roi
    match mode:
        case "half_pixel":
            return (x + 0.5) / scale - 0.5
        case "pytorch_half_pixel":
            return (x + 0.5) / scale - 0.5 if after > 1 else x * 0
        case "half_pixel_symmetric":
            adjustment = after / (scale * before)
            return before / 2 * (1 - adjustment) + (x + 0.5) / scale - 0.5
        case "align_corners":
            return x * (before - 1) / (after - 1) if after > 1 else x * 0
        case "asymmetric":
            return x / scale
        case "tf_crop_and_resize":
            if after == 1:
                return x * 0 + 0.5 * (start + end) * (before - 1)
            return start * (before - 1) + x * (end - start) * (before - 1) / (after - 1)
    raise NotSupportedError(f"coordinate transformation {mode!r}")


def _nearest(mode: str, place: Array) -> Array:
    match mode:
        case "round_prefer_floor":
            return np.ceil(place - 0.5).astype(np.int64)
        case "round_prefer_ceil":
            return np.floor(place + 0.5).astype(np.int64)
        case "floor":
            return np.floor(place).astype(np.int64)
        case "ceil":
            return np.ceil(place).astype(np.int64)
    raise NotSupportedError(f"nearest mode {mode!r}")


def _taps(kind: str, place: Array, scale: float, a: float) -> tuple[Array, Array]:
    """Taps around each place and their weights; `scale` < 1 widens the filter (antialiasing)."""
    reach = 1 if kind == "linear" else 2
    first = math.floor(-reach / scale) + 1
    offsets = np.arange(first, 2 - first)
    base = np.floor(place)
    distance = np.abs((offsets[None, :] - (place - base)[:, None]) * scale)
    if kind == "linear":
        weights = np.clip(1 - distance, 0, 1)
    elif kind == "cubic":
        near = ((a + 2) * distance - (a + 3)) * distance**2 + 1
        far = ((a * distance - 5 * a) * distance + 8 * a) * distance - 4 * a
        weights = np.where(distance <= 1, near, np.where(distance < 2, far, 0.0))
    else:
        raise NotSupportedError(f"resize mode {kind!r}")
    if scale < 1:
        weights = weights / weights.sum(axis=1, keepdims=True)
    return (base[:, None] + offsets[None, :]).astype(np.int64), weights


def _resample_type(context: Context) -> tuple[TensorType, ...]:
    x, axis = context.type(0), context.axis(0)
    shape = (*x.shape[:axis], context.shape(1)[0], *x.shape[axis + 1 :])
    return (TensorType(x.dtype, shape),)


def _resample(context: Context, inputs: Inputs) -> tuple[Tensor, ...]:
    """Sum over the taps of an axis; few, so that they unroll."""
    x, indices, weights = (given(inputs, i) for i in range(3))
    axis, shape = context.axis(0), context.outputs[0].shape

    def element(*index: Expr) -> Expr:
        *i, tap = index
        at = indices[i[axis], tap].astype(INDEX)
        value = x[(*i[:axis], at, *i[axis + 1 :])].astype(weights.dtype)
        return value * weights[i[axis], tap]

    total = reduce("resample", shape, (indices.shape[1],), "add", element)
    if total.dtype == x.dtype:
        return (total,)
    rounding = not x.dtype.is_float
    return (
        compute(
            "resample_out",
            shape,
            lambda *i: (call("round", total[i]) if rounding else total[i]).astype(x.dtype),
        ),
    )


def _repeat_type(context: Context) -> tuple[TensorType, ...]:
    x = context.type(0)
    sizes = zip(x.shape, context.attribute("repeats"), strict=True)
    return (TensorType(x.dtype, tuple(canonical(n * r) for n, r in sizes)),)


def _repeat(context: Context, inputs: Inputs) -> tuple[Tensor, ...]:
    x, repeats = given(inputs, 0), context.attribute("repeats")

    def element(*i: Expr) -> Expr:
        return x[tuple(v // r for v, r in zip(i, repeats, strict=True))]

    return (compute("repeat", context.outputs[0].shape, element),)


# -- symbolic sizes: positions in the kernel ----------------------------------------------------


def _position(context: Context, axis: Axis, i: Expr) -> Expr:
    """The position in the input, in float32."""
    dtype = DType.float32
    x, before, after = i.astype(dtype), axis.before.astype(dtype), axis.after.astype(dtype)
    step = before / after if axis.scale is None else Const(1 / axis.scale, dtype)
    mode = context.attribute("coordinate_transformation_mode", "half_pixel")
    match mode:
        case "half_pixel":
            return (x + 0.5) * step - 0.5
        case "pytorch_half_pixel":
            return select(axis.after > 1, (x + 0.5) * step - 0.5, Const(0, dtype))
        case "align_corners":
            return x * (before - 1.0) / maximum(after - 1.0, 1.0)
        case "asymmetric":
            return x * step
    raise NotSupportedError(f"coordinate transformation {mode!r} of symbolic sizes")


def _rounded(mode: str, place: Expr) -> Expr:
    match mode:
        case "round_prefer_floor":
            return call("ceil", place - 0.5)
        case "round_prefer_ceil":
            return call("floor", place + 0.5)
    return call(mode, place)


def _whole_step(context: Context, axis: Axis) -> int | None:
    """The factor by which nearest repeats elements, for a symbolic size too."""
    scale = axis.scale
    if scale is None or not scale.is_integer() or scale < 1:
        return None
    mode = context.attribute("coordinate_transformation_mode", "half_pixel")
    nearest = context.attribute("nearest_mode", "round_prefer_floor")
    if (mode, nearest) == ("asymmetric", "floor") or mode == "half_pixel":
        return int(scale) if nearest in ("floor", "round_prefer_floor") else None
    return None


def _resize(context: Context, inputs: Inputs) -> tuple[Tensor, ...]:
    x, kind = given(inputs, 0), context.attribute("mode", "nearest")
    nearest = context.attribute("nearest_mode", "round_prefer_floor")
    shape = list(x.shape)
    for number, axis in enumerate(resized_axes(context)):
        shape[axis.axis] = axis.after
        name = f"resize_{number}"
        x = compute(name, shape, _along(context, x, axis, kind, nearest))
    return (x,)


def _along(context: Context, x: Tensor, axis: Axis, kind: str, nearest: str) -> Any:
    d, last = axis.axis, canonical(axis.before - 1)
    whole = _whole_step(context, axis)

    def read(i: Sequence[Expr], at: Expr) -> Expr:
        inside = minimum(maximum(at.astype(INDEX), 0), last)
        return x[(*i[:d], inside, *i[d + 1 :])]

    def at_nearest(*i: Expr) -> Expr:
        if whole is not None and (nearest != "floor" or context.attribute(
                "coordinate_transformation_mode") == "asymmetric"):  # fmt: skip
            return x[(*i[:d], i[d] // whole, *i[d + 1 :])]
        return read(i, _rounded(nearest, _position(context, axis, i[d])))

    def linear(*i: Expr) -> Expr:
        place = _position(context, axis, i[d])
        base = call("floor", place)
        ratio = (place - base).astype(x.dtype)
        low, high = read(i, base), read(i, base + 1.0)
        return low + (high - low) * ratio

    return at_nearest if kind == "nearest" else linear


X = "float32[1, 2, 3, 4]"


def _scales(*values: float) -> Array:
    return np.array(values, np.float32)


OPS: tuple[Operator, ...] = (
    Operator("Resize", _resize_type, _resize, _expand, kind="injective",
             normalise=_old_form, cases=(
        case(X, None, _scales(1, 1, 2, 2)), case(X, None, _scales(1, 1, 2, 3), mode="linear"),
        case(X, None, _scales(1, 1, 0.6, 0.6), mode="linear"),
        case(X, None, None, np.array([1, 2, 7, 8]), mode="cubic"),
        case(X, None, None, np.array([1, 2, 2, 3]), mode="linear", antialias=1),
        case(X, None, None, np.array([7, 8]), axes=(2, 3), mode="linear",
             coordinate_transformation_mode="align_corners"),
        case(X, None, _scales(1, 1, 0.8, 0.8), mode="cubic", exclude_outside=1),
        case(X, None, None, np.array([1, 2, 7, 8]), nearest_mode="ceil",
             coordinate_transformation_mode="asymmetric"))),
    Operator("Upsample", _resize_type, _resize, _expand, kind="injective", normalise=_old_form),
    Operator("Repeat", _repeat_type, _repeat, kind="injective", domain="webmlc"),
    Operator("Resample", _resample_type, _resample, kind="reduction", domain="webmlc"),
)  # fmt: skip
