"""Compute the tables of a Resize in numpy: the input positions that an output position reads, and
their weights.

In: an axis with known sizes. Out: indices and weights, [output][taps], as ONNX defines each mode.
`resize_positions` computes the same as expressions, for sizes known only at run time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from webmlc.core.expr import Expr, as_int
from webmlc.graph.ir import Array
from webmlc.graph.ops.operator import Context, NotSupportedError


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


def _taps(kind: str, place: Array, scale: float, a: float) -> tuple[Array, Array]:
    """The taps around each position, and their weights. A `scale` below 1 widens the filter
    (antialiasing).
    """
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
