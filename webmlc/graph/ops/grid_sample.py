"""GridSample: read a feature map at the positions that a grid holds, and interpolate.

Positions run from -1 to 1 along each axis. The grid's last axis holds x, then y, then depth.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from webmlc.core.dtypes import INDEX
from webmlc.core.expr import Const, Expr, as_int, call, maximum, minimum, select
from webmlc.graph.compute import Tensor, compute
from webmlc.graph.ir import TensorType
from webmlc.graph.ops.operator import Context, NotSupportedError, Operator, case
from webmlc.graph.ops.shapes import ONE, check_shapes, require

MARGIN = 3.0
"""The distance from the border, in elements, to which a position is clamped. No mode has a tap
inside the feature map from there: cubic taps reach 2 elements. The clamp keeps weights finite at
infinity.
"""
CHOICES = {
    "mode": ("linear", "nearest", "cubic", "bilinear", "bicubic"),
    "padding_mode": ("zeros", "border", "reflection"),
}
CUBIC_COEFFICIENT = -0.75
"""The coefficient `a` of the cubic kernel, as ONNX defines it for GridSample."""


def _type(context: Context) -> TensorType:
    x, grid = context.type(0), context.type(1)
    check_shapes(context, "batch channels ...", "batch ... axes", axes=x.rank - 2)
    if not all(require(context, "at most", ONE, size) for size in x.shape[2:]):
        raise NotSupportedError(f"samples of {x}, which has no elements")
    if as_int(grid.shape[-1]) is None:
        raise NotSupportedError("the length of the grid's positions is symbolic")
    return TensorType(x.dtype, (*x.shape[:2], *grid.shape[1:-1]))


def _reflected(place: Expr, size: Expr, corners: bool) -> Expr:
    """Reflect a position at the borders until it lies inside."""
    extent = size.astype(place.dtype)
    low = 0.0 if corners else -0.5
    length = extent - 1.0 if corners else extent
    period = length * 2.0
    distance = call("abs", place - low)
    folded = distance - call("floor", distance / period) * period
    inside = select(folded > length, period - folded, folded) + low
    return inside if not corners else select(length > 0.0, inside, Const(0, place.dtype))


def _cubic(t: Expr) -> tuple[Expr, ...]:
    """The weights of the taps at -1, 0, 1 and 2 for a position `t` behind tap 0."""

    a = CUBIC_COEFFICIENT

    def near(d: Expr) -> Expr:
        return ((d * (a + 2) - (a + 3)) * d) * d + 1.0

    def far(d: Expr) -> Expr:
        return ((d * a - 5 * a) * d + 8 * a) * d - 4 * a

    return far(t + 1.0), near(t), near(1.0 - t), far(2.0 - t)


def _taps(mode: str, place: Expr) -> list[tuple[Expr, Expr | None]]:
    """The pair (index, weight) of every tap along one axis. The indices are whole floats."""
    if mode == "nearest":
        return [(call("round", place), None)]
    base = call("floor", place)
    t = place - base
    if mode in ("linear", "bilinear"):
        return [(base, 1.0 - t), (base + 1.0, t)]
    if mode in ("cubic", "bicubic"):
        return [(base + float(k - 1), w) for k, w in enumerate(_cubic(t))]
    raise NotSupportedError(f"grid sampling mode {mode!r}")


def _grid_sample(context: Context, x: Tensor, grid: Tensor) -> Tensor:
    mode = context.attribute("mode", "linear")
    outside = context.attribute("padding_mode", "zeros")
    align_corners = bool(context.attribute("align_corners", 0))
    rank = x.rank - 2

    def place(n: Expr, i: Sequence[Expr], d: int) -> Expr:
        position = grid[(n, *i, Const(rank - 1 - d))]
        size = x.shape[2 + d].astype(position.dtype)
        if align_corners:
            position_in_map = (position + 1.0) * 0.5 * (size - 1.0)
        else:
            position_in_map = ((position + 1.0) * size - 1.0) * 0.5
        if outside == "reflection":
            return position_in_map
        return minimum(maximum(position_in_map, -MARGIN), size + MARGIN)  # infinity has no taps

    def at_border(index: Expr, size: Expr) -> Expr:
        if outside == "reflection":
            index = call("round", _reflected(index, size, align_corners))
        return minimum(maximum(index.astype(INDEX), 0), size - 1)

    def element(n: Expr, c: Expr, *i: Expr) -> Expr:
        axes = [_taps(mode, place(n, i, d)) for d in range(rank)]
        total: Expr | None = None
        for taps in product(*axes):
            indices = [at_border(t, x.shape[2 + d]) for d, (t, _) in enumerate(taps)]
            value = x[(n, c, *indices)]
            if outside == "zeros":
                for d, (t, _) in enumerate(taps):
                    high = x.shape[2 + d].astype(t.dtype) - 1.0
                    value = select((t >= 0.0) & (t <= high), value, Const(0, x.dtype))
            for _, weight in taps:
                value = value if weight is None else value * weight.astype(x.dtype)
            total = value if total is None else total + value
        assert total is not None
        return total

    return compute("grid_sample", context.outputs[0].shape, element)


X, G = "float32[1, 2, 4, 5]", "float32[1, 3, 3, 2] in -1.5..1.5"

OPS: tuple[Operator, ...] = (
    Operator("GridSample", _type, _grid_sample, kind="injective", choices=CHOICES, cases=(
        case(X, G), case(X, G, mode="nearest"), case(X, G, mode="cubic", align_corners=1),
        case(X, G, padding_mode="border"), case(X, G, padding_mode="reflection"))),
)  # fmt: skip
