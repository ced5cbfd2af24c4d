"""Compute the positions of a Resize: the input position that an output position reads.

For known sizes, `table` gives numpy arrays: indices and weights, [output][taps], as ONNX defines
each mode. For sizes and scales known only at run time, `Positions` gives expressions in float32,
computed as in onnxruntime: for nearest and linear also the element itself, for filters with more
taps also the same tables.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from webmlc.core.dtypes import INDEX, DType
from webmlc.core.expr import Const, Expr, as_int, call, const, maximum, minimum, select
from webmlc.graph.compute import Tensor, compute
from webmlc.graph.ir import Array
from webmlc.graph.ops.operator import Context, NotSupportedError
from webmlc.graph.ops.shapes import canonical, with_axis


@dataclass(frozen=True, slots=True)
class Axis:
    """One resized axis, at position `place` of the axes that the node lists. `scale` and `roi` are
    None if only a run knows them.
    """

    axis: int
    place: int
    before: Expr
    after: Expr
    scale: float | None
    roi: tuple[float, float] | None


def table(context: Context, axis: Axis) -> tuple[Array, Array, Array]:
    """The indices and weights, [output][taps], and a mask of the outputs outside the input."""
    before, after = as_int(axis.before) or 0, as_int(axis.after) or 0
    scale = axis.scale or 1.0
    mode = context.attribute("coordinate_transformation_mode", "half_pixel")
    place = _coordinates(
        mode, np.arange(after, dtype=np.float64), before, after, scale, axis.roi or (0.0, 1.0)
    )
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
    """The positions in the input, as ONNX defines each mode."""
    start, end = roi
    match mode:
        case "half_pixel":
            return (x + 0.5) / scale - 0.5
        case "tf_half_pixel_for_nn":
            return (x + 0.5) / scale
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


def cubic(distance: Any, a: float) -> tuple[Any, Any]:
    """The pieces of the cubic filter with the coefficient `a`, for distances up to 1 and for larger
    distances. Distances are an expression or an array.
    """
    near = ((a + 2) * distance - (a + 3)) * distance * distance + 1.0
    far = ((a * distance - 5 * a) * distance + 8 * a) * distance - 4 * a
    return near, far


def _taps(kind: str, place: Array, scale: float, a: float) -> tuple[Array, Array]:
    """The taps around each position, and their weights. A `scale` below 1 widens the filter
    (antialiasing).
    """
    reach = REACH[kind]
    first = math.floor(-reach / scale) + 1
    offsets = np.arange(first, 2 - first)
    base = np.floor(place)
    distance = np.abs((offsets[None, :] - (place - base)[:, None]) * scale)
    if kind == "linear":
        weights = np.clip(1 - distance, 0, 1)
    else:
        near, far = cubic(distance, a)
        weights = np.where(distance <= 1, near, np.where(distance < 2, far, 0.0))
    if scale < 1:
        weights = weights / weights.sum(axis=1, keepdims=True)
    return (base[:, None] + offsets[None, :]).astype(np.int64), weights


FLOAT = DType.float32
REACH = {"linear": 1, "cubic": 2}
"""The number of taps of a filter on either side of a position."""

_WHOLE = {("asymmetric", "floor"), ("half_pixel", "round_prefer_floor")}
"""The pairs of modes in which nearest with a whole scale repeats each element `scale` times."""


class Positions:
    """The positions along one axis. `scales` and `regions` are read if the axis does not hold
    them.
    """

    def __init__(
        self, context: Context, axis: Axis, scales: Tensor | None, regions: Tensor | None
    ) -> None:
        self.context = context
        self.axis = axis
        self.scales = scales
        self.regions = regions
        self.mode = context.attribute("coordinate_transformation_mode", "half_pixel")
        self.before, self.after = axis.before.astype(FLOAT), axis.after.astype(FLOAT)

    @property
    def scale(self) -> Expr:
        """The number of output positions for one input position."""
        if self.axis.scale is not None:
            return Const(self.axis.scale, FLOAT)
        if self.scales is None or as_int(self.scales.shape[0]) == 0:
            return self.after / self.before
        return self.scales[const(self.axis.place)].astype(FLOAT)

    def region(self, end: int) -> Expr:
        """The begin (0) or end (1) of the cropped region, as a fraction of the input."""
        if self.axis.roi is not None:
            return Const(self.axis.roi[end], FLOAT)
        assert self.regions is not None
        half = canonical(self.regions.shape[0] // 2)
        return self.regions[half * end + self.axis.place].astype(FLOAT)

    def at(self, i: Expr) -> Expr:
        """The position in the input that output position `i` reads."""
        x, last = i.astype(FLOAT), self.before - 1.0
        match self.mode:
            case "half_pixel":
                return self.unscaled(x + 0.5) - 0.5
            case "tf_half_pixel_for_nn":
                return self.unscaled(x + 0.5)
            case "pytorch_half_pixel":
                return select(self.axis.after > 1, self.unscaled(x + 0.5) - 0.5, Const(0, FLOAT))
            case "half_pixel_symmetric":
                adjustment = self.after / (self.scale * self.before)
                offset = self.before * 0.5 * (1.0 - adjustment)
                return offset + (self.unscaled(x + 0.5) - 0.5)
            case "align_corners":
                return x * last / maximum(self.after - 1.0, 1.0)
            case "asymmetric":
                return self.unscaled(x)
            case "tf_crop_and_resize":
                start, end = self.region(0), self.region(1)
                step = (end - start) * last / maximum(self.after - 1.0, 1.0)
                middle = (start + end) * 0.5 * last
                return select(self.axis.after > 1, start * last + x * step, middle)
        raise NotSupportedError(f"coordinate transformation {self.mode!r}")

    def unscaled(self, x: Expr) -> Expr:
        """Compute `x / scale`. If the scale is a power of two, multiply, which is as exact."""
        scale = self.axis.scale
        if scale is not None and math.frexp(scale)[0] == 0.5:
            return x * Const(1 / scale, FLOAT)
        return x / self.scale

    def outside(self, place: Expr) -> Expr | None:
        """The condition that a position lies outside the input. None in modes that do not fill
        outputs there.
        """
        if self.mode != "tf_crop_and_resize":
            return None
        return (place < 0.0) | (place > self.before - 1.0)

    def inside(self, place: Expr) -> Expr:
        """The index of a whole position, clamped to the input."""
        return minimum(maximum(place.astype(INDEX), 0), canonical(self.axis.before - 1))

    def filled(self, place: Expr, value: Expr) -> Expr:
        """The value at a position. Outside the input it is the extrapolation value."""
        outside = self.outside(place)
        if outside is None:
            return value
        fill = Const(self.context.attribute("extrapolation_value", 0.0), FLOAT)
        return select(outside, fill.astype(value.dtype), value)

    def sample(self, x: Tensor) -> Callable[..., Expr]:
        """The element of `x` resized along the axis: the nearest element, or a mixture of two."""
        d, kind = self.axis.axis, self.context.attribute("mode", "nearest")
        rounding = self.context.attribute("nearest_mode", "round_prefer_floor")
        repeats = self.repeats(rounding)

        def nearest(*i: Expr) -> Expr:
            if repeats is not None:
                return x[with_axis(i, d, i[d] // repeats)]
            place = self.at(i[d])
            return self.filled(place, read(i, _rounded(rounding, place)))

        def linear(*i: Expr) -> Expr:
            place = self.at(i[d])
            base = call("floor", place)
            low, high = read(i, base), read(i, base + 1.0)
            return self.filled(place, low + (high - low) * (place - base).astype(x.dtype))

        def read(i: Sequence[Expr], place: Expr) -> Expr:
            return x[with_axis(i, d, self.inside(place))]

        return nearest if kind == "nearest" else linear

    def repeats(self, rounding: str) -> int | None:
        """The number of times that nearest repeats each element. None if it is not a whole number
        known at build time.
        """
        scale, whole = self.axis.scale, (self.mode, rounding) in _WHOLE
        if not whole or scale is None or not scale.is_integer() or scale < 1:
            return None
        return int(scale)

    # -- filters of more taps ------------------------------------------------------------

    @property
    def shrinking(self) -> Expr | None:
        """The scale by which antialiasing widens a filter. None if it does not."""
        scale = self.axis.scale
        if not self.context.attribute("antialias", 0) or (scale is not None and scale >= 1):
            return None
        return self.scale if scale is not None else minimum(self.scale, 1.0)

    @property
    def reach(self) -> Expr:
        """The number of taps on either side of a position. It includes all taps with a weight."""
        reach, scale = REACH[self.context.attribute("mode", "nearest")], self.axis.scale
        if self.shrinking is None:
            return const(reach)
        if scale is not None:
            return const(math.ceil(reach / scale))
        # `after` is a rounded product, so the scale is at least (after - 1/2) / before.
        double = self.axis.after * 2 - 1
        taps = (self.axis.before * (2 * reach) + (double - 1)) // double
        return canonical(maximum(taps, reach))

    @property
    def table_shape(self) -> tuple[Expr, Expr]:
        """The shape of a table: output positions and taps."""
        return (self.axis.after, canonical(self.reach * 2))

    def table(self) -> tuple[Tensor, ...]:
        """The indices and weights, [output][taps]. In the mode that crops, also a mask of the
        positions outside. The weights are not normalised.
        """
        shape = self.table_shape
        shrinking, last = self.shrinking, self.axis.before
        excludes = bool(self.context.attribute("exclude_outside", 0))

        def index(i: Expr, tap: Expr) -> Expr:
            return call("floor", self.at(i)).astype(INDEX) + self.offset(tap)

        def weight(i: Expr, tap: Expr) -> Expr:
            place = self.at(i)
            distance = call("abs", self.offset(tap).astype(FLOAT) - (place - call("floor", place)))
            if shrinking is not None:
                distance = distance * shrinking
            value = self.filter(distance)
            if not excludes:
                return value
            is_inside = (index(i, tap) >= 0) & (index(i, tap) < last)
            return select(is_inside, value, Const(0, FLOAT))

        def clipped(i: Expr, tap: Expr) -> Expr:
            return minimum(maximum(index(i, tap), 0), canonical(last - 1))

        tensors = (compute("indices", shape, clipped), compute("weights", shape, weight))
        if self.mode != "tf_crop_and_resize":
            return tensors

        def outside(i: Expr) -> Expr:
            condition = self.outside(self.at(i))
            assert condition is not None
            return condition

        return (*tensors, compute("outside", shape[:1], outside))

    def offset(self, tap: Expr) -> Expr:
        """The distance of a tap from the rounded-down position."""
        return tap + canonical(1 - self.reach)

    def filter(self, distance: Expr) -> Expr:
        """The weight of a tap at a distance."""
        if self.context.attribute("mode") == "linear":
            return maximum(1.0 - distance, 0.0)
        a = self.context.attribute("cubic_coeff_a", -0.75)
        near, far = cubic(distance, a)
        return select(distance <= 1.0, near, select(distance < 2.0, far, Const(0, FLOAT)))


def _rounded(mode: str, place: Expr) -> Expr:
    match mode:
        case "round_prefer_floor":
            return call("ceil", place - 0.5)
        case "round_prefer_ceil":
            return call("floor", place + 0.5)
    return call(mode, place)
