"""Resize images: the pixels that each row or column of a resized image mixes, and their sum.

`ImageTaps`, in: an image [height, width, channels] of any size, and an axis, 0 or 1. Out: indices
and weights, [output][taps]. `ImageSum` applies them to the axis, in float32. `ImagePlace` maps
positions in the output to positions in the image. `MaskTaps` is the way back: it takes the image
and a mask [height, width, 1] that a model computed from the output. It gives the pixels of the mask
that each row or column of the image mixes. The weights are Pillow's: a filter is widened by the
factor by which the image shrinks, and never reaches outside of the image. The weights are not
normalised.

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
from math import gcd
from typing import Literal

from webmlc.core.dtypes import DType
from webmlc.core.expr import Const, Expr, as_int, call, const, maximum, minimum, select
from webmlc.graph.compute import Tensor, compute, reduce
from webmlc.graph.ops.operator import Context, NotSupportedError, Operator
from webmlc.graph.ops.resize_positions import cubic
from webmlc.graph.ops.shapes import ZERO, canonical, select_among, with_axis

FLOAT = DType.float32
Fit = Literal["stretch", "cover", "contain"]
FITS: tuple[Fit, ...] = ("stretch", "cover", "contain")
REACH = {"nearest": 0, "bilinear": 1, "bicubic": 2}
"""The whole pixels that a filter reaches on either side, in an image that is not shrunk."""
LONGEST_REACH = 511
"""The most pixels that a filter reaches on either side. An image may shrink by this factor
(bicubic: by half of it). Chosen so that one thread of a GPU sums all taps
(`target/factor_reductions.py`).
"""
CUBIC = -0.5
"""The coefficient of the bicubic filter, as in Pillow."""


@dataclass(frozen=True, slots=True)
class Side:
    """One side of an image: its size, its size when resized, the size of the output, and the
    position in the resized image where the output begins. This position may be negative.
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


def _place(context: Context, *_: Tensor) -> tuple[Tensor, ...]:
    """Three vectors for positions (x, y, x, y). Positions in the output become positions in the
    image by adding the second vector, then multiplying by the first. The third vector is the size
    of the image.
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


def _reach(context: Context, side: Side) -> Expr:
    """The whole pixels on either side of a position that may have a weight."""
    reach = REACH[context.attribute("filter")]
    if not reach or not context.attribute("antialias"):
        return const(reach)
    widened = maximum((side.before * reach + side.resized - 1) // side.resized, reach)
    return minimum(widened, LONGEST_REACH)


def _taps_of(context: Context, *_: Tensor) -> tuple[Tensor, ...]:
    side = side_of(context, context.attribute("axis"))
    shrinking: Expr = Const(1, FLOAT)
    if context.attribute("antialias"):
        shrinking = minimum(side.resized.astype(FLOAT) / side.before.astype(FLOAT), 1.0)
    positions = Positions(
        count=side.after,
        place=lambda i: ((i + side.start) * 2 + 1) * side.before,
        whole=side.resized * 2,
        size=side.before,
        reach=_reach(context, side),
        shrinking=shrinking,
        is_image=lambda i: (i + side.start >= 0) & (i + side.start < side.resized),
    )
    return _taps_at(context, positions)


@dataclass(frozen=True, slots=True)
class Positions:
    """The positions of the pixels of an output along one side of a source.

    - `count`: the pixels of the output.
    - `place`: the centre of a pixel of the output, in units of 1 / `whole` pixels of the source.
    - `size`: the pixels of the source.
    - `reach`: the whole pixels on either side of a position that may have a weight.
    - `shrinking`: the float32 factor of distances before the filter is applied to them.
    - `is_image`: True if a pixel of the output is inside the image.
    """

    count: Expr
    place: Callable[[Expr], Expr]
    whole: Expr
    size: Expr
    reach: Expr
    shrinking: Expr
    is_image: Callable[[Expr], Expr]


def _taps_at(context: Context, positions: Positions) -> tuple[Tensor, ...]:
    """The indices and weights of the pixels around positions."""
    shape = (positions.count, canonical(positions.reach * 2 + 1))
    whole, last = positions.whole, positions.size - 1

    def base(i: Expr) -> Expr:
        return positions.place(i) // whole

    def offset(tap: Expr) -> Expr:
        return tap - positions.reach

    def index(i: Expr, tap: Expr) -> Expr:
        return minimum(maximum(base(i) + offset(tap), 0), maximum(last, 0))

    def weight(i: Expr, tap: Expr) -> Expr:
        pixel = base(i) + offset(tap)
        fraction = (positions.place(i) % whole).astype(FLOAT) / whole.astype(FLOAT)
        distance = offset(tap).astype(FLOAT) + 0.5 - fraction
        is_image = positions.is_image(i)
        if context.attribute("filter") == "nearest":
            return select(is_image, Const(1, FLOAT), Const(0, FLOAT))
        value = _filter(context.attribute("filter"), call("abs", distance) * positions.shrinking)
        return select((pixel >= 0) & (pixel <= last) & is_image, value, Const(0, FLOAT))

    return (compute("indices", shape, index), compute("weights", shape, weight))


def _mask_positions(context: Context) -> Positions:
    """Where the pixels of the image are in a mask that a model made of the resized image."""
    if context.attribute("fit") == "cover" and any(context.attribute("output")):
        raise NotSupportedError("a mask of a part of the image")
    axis = int(context.attribute("axis"))
    side, size = side_of(context, axis), context.shape(1)[axis]
    if context.attribute("fit") == "contain":  # the image is a part of the output
        mask, output = _ratio(size, side.after)
        whole = side.before * 2 * output
        shrunk = side.resized * mask

        def place(i: Expr) -> Expr:
            return ((i * 2 + 1) * side.resized - side.start * 2 * side.before) * mask
    else:
        whole, shrunk = side.before * 2, size

        def place(i: Expr) -> Expr:
            return (i * 2 + 1) * size

    reach: Expr = const(REACH[context.attribute("filter")])
    shrinking: Expr = Const(1, FLOAT)
    if context.attribute("antialias"):
        before = whole // 2
        widened = maximum((shrunk * reach + before - 1) // before, reach)
        reach = canonical(minimum(widened, LONGEST_REACH))
        shrinking = minimum(before.astype(FLOAT) / shrunk.astype(FLOAT), 1.0)
    return Positions(side.before, place, whole, size, reach, shrinking, lambda i: i >= 0)


def _ratio(size: Expr, output: Expr) -> tuple[Expr, Expr]:
    """Two sizes without their common factor, so that products of the two are small."""
    size_number, output_number = as_int(size), as_int(output)
    if size_number is None or output_number is None:
        return size, output
    factor = gcd(size_number, output_number) or 1
    return const(size_number // factor), const(output_number // factor)


def _mask_taps(context: Context, *_: Tensor) -> tuple[Tensor, ...]:
    return _taps_at(context, _mask_positions(context))


def _filter(name: str, distance: Expr) -> Expr:
    """The weight of a pixel at a distance."""
    if name == "bilinear":
        return maximum(1.0 - distance, 0.0)
    near, far = cubic(distance, CUBIC)
    return select(distance < 1.0, near, select(distance < 2.0, far, Const(0, FLOAT)))


def _sum(context: Context, x: Tensor, indices: Tensor, weights: Tensor) -> Tensor:
    """Sum over the taps of an axis."""
    axis = context.attribute("axis")
    shape = with_axis(x.shape, axis, indices.shape[0])

    def element(row: Expr, column: Expr, c: Expr, tap: Expr) -> Expr:
        place = [row, column]
        weight = weights[place[axis], tap]
        place[axis] = indices[place[axis], tap]
        return x[place[0], place[1], c].astype(FLOAT) * weight

    return reduce("sum", shape, (indices.shape[1],), "add", element)


OPS: tuple[Operator, ...] = (
    Operator("ImageTaps", compute=_taps_of, kind="injective", domain="webmlc"),
    Operator("MaskTaps", compute=_mask_taps, kind="injective", domain="webmlc"),
    Operator("ImagePlace", compute=_place, kind="injective", domain="webmlc"),
    Operator("ImageSum", compute=_sum, kind="reduction", domain="webmlc"),
)
