"""Resize images: the pixels that each row or column of a resized image mixes, and their sum.

`ImageTaps`, in: an image [height, width, channels] of any size, and an axis, 0 or 1. Out: indices
and weights, [output][taps]. `ImageSum` applies them to the axis, in float32. `ImagePlace` says
where positions in the output are in the image. The weights are those
of Pillow: a filter is widened by the factor by which the image shrinks, and never reaches outside
of the image. They are not normalised.

`fit` says how the image relates to the output, whose size is `output`:

    stretch   the image becomes as large as the output
    cover     the shorter side becomes `resize`, and the output is cut from the middle
    contain   the longer side becomes `resize`, and the rest of the output has no weights

`output` 0 means as large as the resized image. Positions are computed in integers, because float32
would move the filters of large images.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from webmlc.core.dtypes import INDEX, DType
from webmlc.core.expr import Const, Expr, call, const, maximum, minimum, select
from webmlc.graph.compute import Tensor, compute, reduce
from webmlc.graph.ir import TensorType
from webmlc.graph.ops.operator import Context, NotSupportedError, Operator
from webmlc.graph.ops.shapes import ZERO, canonical, operand, select_among

Inputs = tuple[Tensor | None, ...]
FLOAT = DType.float32
Fit = Literal["stretch", "cover", "contain"]
FITS: tuple[Fit, ...] = ("stretch", "cover", "contain")
REACH = {"nearest": 0, "bilinear": 1, "bicubic": 2}
"""The whole pixels that a filter reaches on either side, in an image that is not shrunk."""
LONGEST_REACH = 511
"""The pixels that a filter reaches on either side, at most. An image may shrink by this factor
(bicubic: by half of it). Chosen so that one thread of a GPU sums all taps
(`target/factor_reductions.py`).
"""
CUBIC = -0.5
"""The coefficient of the bicubic filter, as in Pillow."""


@dataclass(frozen=True, slots=True)
class Side:
    """One side of an image: its size, its size when resized, the size of the output, and the place
    of the output's begin in the resized image, which may be negative.
    """

    before: Expr
    resized: Expr
    after: Expr
    start: Expr

    @property
    def floats(self) -> Side:
        """The same numbers as float32."""
        numbers = (self.before, self.resized, self.after, self.start)
        return Side(*(number.astype(FLOAT) for number in numbers))


def side_of(context: Context, axis: int) -> Side:
    """The side along an axis of the image, for a node with the attributes of `ImageTaps`."""
    sizes = context.shape(0)[:2]
    before = sizes[axis]
    resize = int(context.attribute("resize")[axis])
    output = int(context.attribute("output")[axis])
    match context.attribute("fit"):
        case "stretch":
            resized: Expr = const(output)
        case "cover":
            resized = canonical(maximum(resize, before * resize // maximum(minimum(*sizes), 1)))
        case "contain":
            shrunk = before * resize // maximum(maximum(*sizes), 1)
            resized = canonical(maximum(minimum(shrunk, resize), 1))
        case fit:
            raise NotSupportedError(f"fit {fit!r}")
    if not output:
        return Side(before, resized, resized, ZERO)
    start = ZERO
    if context.attribute("fit") == "contain" and context.attribute("centred"):
        start = canonical((output - resized) // 2 * -1)
    elif context.attribute("fit") == "cover":  # rounded down, as in Hugging Face's processors
        start = canonical((resized - output) // 2)
    return Side(before, resized, const(output), start)


def _place_type(context: Context) -> tuple[TensorType, ...]:
    return (TensorType(FLOAT, (const(4),)),) * 3


def _place(context: Context, _: Inputs) -> tuple[Tensor, ...]:
    """How positions (x, y, x, y) in the output become positions in the image: add the second
    vector, multiply by the first. The third one is the size of the image.
    """
    sides = [side_of(context, axis).floats for axis in (1, 0, 1, 0)]

    def vector(name: str, of: Callable[[Side], Expr]) -> Tensor:
        values = [of(side) for side in sides]
        return compute(name, (const(4),), lambda i: select_among(values, i))

    return (
        vector("ratio", lambda side: side.before / side.resized),
        vector("start", lambda side: side.start),
        vector("size", lambda side: side.before),
    )


def _type(context: Context) -> tuple[TensorType, ...]:
    side = side_of(context, context.attribute("axis"))
    shape = (side.after, _taps(context, side))
    return (TensorType(INDEX, shape), TensorType(FLOAT, shape))


def _taps(context: Context, side: Side) -> Expr:
    return canonical(_reach(context, side) * 2 + 1)


def _reach(context: Context, side: Side) -> Expr:
    """The whole pixels on either side of a position that may have a weight."""
    reach = REACH[context.attribute("filter")]
    if not reach or not context.attribute("antialias"):
        return const(reach)
    widened = maximum((side.before * reach + side.resized - 1) // side.resized, reach)
    return minimum(widened, LONGEST_REACH)


def _taps_of(context: Context, _: Inputs) -> tuple[Tensor, ...]:
    side = side_of(context, context.attribute("axis"))
    shape = context.outputs[0].shape
    last = side.before - 1
    shrinking: Expr = Const(1, FLOAT)
    if context.attribute("antialias"):
        shrinking = minimum(side.resized.astype(FLOAT) / side.before.astype(FLOAT), 1.0)

    def place(i: Expr) -> Expr:
        """The centre of a pixel of the output, in units of half a pixel of the resized image."""
        return (i + side.start) * 2 + 1

    def base(i: Expr) -> Expr:
        return place(i) * side.before // (side.resized * 2)

    def fraction(i: Expr) -> Expr:
        whole = side.resized * 2
        return (place(i) * side.before % whole).astype(FLOAT) / whole.astype(FLOAT)

    def offset(tap: Expr) -> Expr:
        return tap - _reach(context, side)

    def index(i: Expr, tap: Expr) -> Expr:
        return minimum(maximum(base(i) + offset(tap), 0), maximum(last, 0))

    def weight(i: Expr, tap: Expr) -> Expr:
        pixel = base(i) + offset(tap)
        distance = offset(tap).astype(FLOAT) + 0.5 - fraction(i)
        is_inside = (pixel >= 0) & (pixel <= last)
        if context.attribute("filter") == "nearest":
            return select(is_image(i), Const(1, FLOAT), Const(0, FLOAT))
        value = _filter(context.attribute("filter"), call("abs", distance) * shrinking)
        return select(is_inside & is_image(i), value, Const(0, FLOAT))

    def is_image(i: Expr) -> Expr:
        """True if a position of the output is not beside the image."""
        return (i + side.start >= 0) & (i + side.start < side.resized)

    return (compute("indices", shape, index), compute("weights", shape, weight))


def _filter(name: str, distance: Expr) -> Expr:
    """The weight of a pixel at a distance."""
    if name == "bilinear":
        return maximum(1.0 - distance, 0.0)
    a = CUBIC
    near = ((a + 2) * distance - (a + 3)) * distance * distance + 1.0
    far = ((a * distance - 5 * a) * distance + 8 * a) * distance - 4 * a
    return select(distance < 1.0, near, select(distance < 2.0, far, Const(0, FLOAT)))


def _sum_type(context: Context) -> tuple[TensorType, ...]:
    x, axis = context.type(0), context.attribute("axis")
    shape = list(x.shape)
    shape[axis] = context.shape(1)[0]
    return (TensorType(FLOAT, tuple(shape)),)


def _sum(context: Context, inputs: Inputs) -> tuple[Tensor, ...]:
    """Sum over the taps of an axis."""
    x, indices, weights = (operand(inputs, i) for i in range(3))
    axis = context.attribute("axis")

    def element(row: Expr, column: Expr, c: Expr, tap: Expr) -> Expr:
        place = [row, column]
        weight = weights[place[axis], tap]
        place[axis] = indices[place[axis], tap]
        return x[place[0], place[1], c].astype(FLOAT) * weight

    return (reduce("sum", context.outputs[0].shape, (indices.shape[1],), "add", element),)


OPS: tuple[Operator, ...] = (
    Operator("ImageTaps", _type, _taps_of, kind="injective", domain="webmlc"),
    Operator("ImagePlace", _place_type, _place, kind="injective", domain="webmlc"),
    Operator("ImageSum", _sum_type, _sum, kind="reduction", domain="webmlc"),
)
