"""Sampling of feature maps: GridSample, deformable convolution, and Col2Im.

Each output element gathers its inputs, so that all elements are independent. GridSample reads a
feature map at the positions that a grid holds, and interpolates. Positions run from -1 to 1 along
each axis. The grid's last axis holds x, then y, then depth.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product as combinations

import numpy as np

from webmlc.core.dtypes import INDEX, DType
from webmlc.core.expr import Const, Expr, as_int, call, const, maximum, minimum, select
from webmlc.graph.builder import Builder, Value
from webmlc.graph.compute import Tensor, compute, reduce
from webmlc.graph.ir import TensorType
from webmlc.graph.ops.operator import Context, NotSupportedError, Operator, case
from webmlc.graph.ops.resize_positions import cubic
from webmlc.graph.ops.shapes import (
    ONE,
    ZERO,
    accumulator,
    canonical,
    check_shape,
    check_shapes,
    dimensions,
    product,
    require,
)
from webmlc.graph.ops.windows import Windows

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


def _grid_sample_type(context: Context) -> TensorType:
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
    distances = (t + 1.0, t, 1.0 - t, 2.0 - t)
    pieces = [cubic(distance, CUBIC_COEFFICIENT) for distance in distances]
    return pieces[0][1], pieces[1][0], pieces[2][0], pieces[3][1]


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
        for taps in combinations(*axes):
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


IMAGE, GRID = "float32[1, 2, 4, 5]", "float32[1, 3, 3, 2] in -1.5..1.5"


def _per_axis(context: Context, name: str, rank: int, default: int = 1) -> tuple[int, ...]:
    values = tuple(int(v) for v in context.attribute(name) or (default,) * rank)
    if len(values) != rank:
        raise NotSupportedError(f"{name} {list(values)}: {rank} are expected")
    return values


# -- Col2Im ---------------------------------------------------------------------------------------


def _col2im_type(context: Context) -> TensorType:
    x = context.type(0)
    image, block, counts = _blocks(context)
    taps = product(block)
    signature = "batch taps*channels positions"
    check_shapes(context, signature, taps=taps, positions=product(counts))
    return TensorType(x.dtype, (x.shape[0], canonical(x.shape[1] // taps), *image))


def _blocks(context: Context) -> tuple[list[Expr], list[Expr], list[Expr]]:
    """The shapes of the image and of a block, and the number of blocks along each axis."""
    check_shapes(context, "", "axes", "axes")
    image = dimensions(context, 1, "the image's shape")
    block = dimensions(context, 2, "the block's shape")
    rank = len(block)
    strides, dilations = (_per_axis(context, n, rank) for n in ("strides", "dilations"))
    pads = _per_axis(context, "pads", 2 * rank, 0)
    counts = [
        canonical((image[d] + pads[d] + pads[rank + d] - dilations[d] * (block[d] - 1) - 1)
                  // strides[d] + 1)
        for d in range(rank)
    ]  # fmt: skip
    return image, block, counts


def _col2im(context: Context, x: Tensor, *_: Tensor) -> Tensor:
    """Sum, for each pixel, the elements of all blocks that cover it."""
    block, counts = _blocks(context)[1:]
    rank = len(block)
    strides, dilations = (_per_axis(context, n, rank) for n in ("strides", "dilations"))
    pads = _per_axis(context, "pads", 2 * rank, 0)

    def term(n: Expr, c: Expr, *index: Expr) -> Expr:
        places, taps = index[:rank], index[rank:]
        row: Expr = c
        column: Expr = ZERO
        inside: Expr = const(True, DType.bool)
        for d in range(rank):
            start = places[d] + pads[d] - taps[d] * dilations[d]
            number = start // strides[d]
            inside = inside & call("eq", start % strides[d], 0)
            inside = inside & (number >= 0) & (number < counts[d])
            row, column = row * block[d] + taps[d], column * counts[d] + number
        return select(inside, x[n, row, column], Const(0, x.dtype))

    return reduce("col2im", context.outputs[0].shape, block, "add", term)


# -- DeformConv -----------------------------------------------------------------------------------


def interpolate(
    read: Callable[[Sequence[Expr]], Expr], place: Sequence[Expr], sizes: Sequence[Expr]
) -> Expr:
    """Interpolate linearly between elements. Elements outside the feature map are zero."""
    bases = [call("floor", p) for p in place]
    total: Expr | None = None
    for corner in combinations((0, 1), repeat=len(place)):
        weight: Expr | None = None
        inside: Expr = const(True, DType.bool)
        indices: list[Expr] = []
        for p, base, size, far in zip(place, bases, sizes, corner, strict=True):
            share = p - base if far else 1.0 - (p - base)
            weight = share if weight is None else weight * share
            index = base.astype(INDEX) + far
            inside = inside & (index >= 0) & (index < size)
            indices.append(minimum(maximum(index, 0), size - 1))
        assert weight is not None
        term = select(inside, read(indices).astype(weight.dtype) * weight, 0.0)
        total = term if total is None else total + term
    assert total is not None
    return total


def _columns(context: Context, x: Tensor, offset: Tensor, mask: Tensor | None = None) -> Tensor:
    """The columns [batch][channel · tap][position]: the feature map at each shifted tap of each
    window, times the mask.
    """
    kernel = tuple(int(k) for k in context.attribute("kernel"))
    rank, taps = len(kernel), int(np.prod(kernel))
    strides, dilations = (_per_axis(context, n, rank) for n in ("strides", "dilations"))
    pads = _per_axis(context, "pads", 2 * rank, 0)
    sizes, wide_dtype = offset.shape[2:], accumulator(x.dtype)
    per_group = canonical(x.shape[1] // context.count("offset_group", 1))

    def unravel(flat: Expr, shape: Sequence[Expr | int]) -> list[Expr]:
        result: list[Expr] = []
        for d in reversed(range(len(shape))):
            result.append(flat % shape[d] if d else flat)
            flat = flat // shape[d]
        return result[::-1]

    def element(n: Expr, row: Expr, position: Expr) -> Expr:
        channel, tap = row // taps, row % taps
        group = channel // per_group
        window_index = unravel(position, sizes)
        place = []
        for d, step in enumerate(unravel(tap, kernel)):
            start = window_index[d] * strides[d] - pads[d] + step * dilations[d]
            shift = offset[(n, (group * taps + tap) * rank + d, *window_index)]
            place.append(start.astype(wide_dtype) + shift.astype(wide_dtype))
        value = interpolate(lambda i: x[(n, channel, *i)], place, x.shape[2:])
        if mask is not None:
            value = value * mask[(n, group * taps + tap, *window_index)].astype(wide_dtype)
        return value.astype(x.dtype)

    shape = (x.shape[0], canonical(x.shape[1] * taps), product(sizes))
    return compute("columns", shape, element)


def _deform_conv(context: Context, build: Builder) -> Value:
    """Expand a DeformConv: gather columns as im2col does, then multiply them by the weights, one
    matrix product for each group of channels.
    """
    x, w, offset, *optional_inputs = build.inputs
    bias, mask = (*optional_inputs, "", "")[:2]
    shape = [as_int(d) for d in context.shape(1)]
    if any(d is None for d in shape):
        raise NotSupportedError("the weights' shape is symbolic")
    groups = context.count("group", 1)
    signatures = ("batch groups*inputs ...", "groups*outputs inputs ...", "", "groups*outputs")
    check_shapes(context, *signatures, groups=groups)
    outputs, per_group, *kernel = (int(d or 0) for d in shape)
    _check_offsets(context, tuple(kernel))
    attributes = {k: v for k, v in context.node.attributes.items() if k != "kernel_shape"}
    columns = build("DeformColumns", x, offset, *([mask] if mask else []), domain="webmlc",
                    **attributes, kernel=tuple(kernel))  # fmt: skip
    depth = per_group * int(np.prod(kernel))
    split = columns.reshape(0, groups, depth, -1)
    weights = w.reshape(groups, outputs // groups, depth)
    batch = build("Shape", x, start=0, end=1)
    space = build("Shape", offset, start=2)
    whole = build("Concat", batch, [outputs], space, axis=0)
    y = build("Reshape", weights @ split, whole)
    if bias:
        column = np.array([1, outputs, *([1] * len(kernel))])
        y = y + build("Reshape", bias, build.constant(column))
    return y


def _check_offsets(context: Context, kernel: tuple[int, ...]) -> None:
    """Check the shapes of the offsets and the mask. Each tap of each window and group has an offset
    for each axis, and an element of the mask.
    """
    groups, taps = context.count("offset_group", 1), int(np.prod(kernel))
    check_shapes(context, "batch groups*size ...", groups=groups)
    batch, sizes = context.shape(0)[0], Windows.of(context, kernel).sizes
    check_shape(context, 2, (batch, const(groups * taps * len(kernel)), *sizes))
    check_shape(context, 4, (batch, const(groups * taps), *sizes))


MAP = "float32[1, 4, 5, 6]"


OPS: tuple[Operator, ...] = (
    Operator("GridSample", _grid_sample_type, _grid_sample, kind="injective", choices=CHOICES,
             cases=(
        case(IMAGE, GRID), case(IMAGE, GRID, mode="nearest"),
        case(IMAGE, GRID, mode="cubic", align_corners=1),
        case(IMAGE, GRID, padding_mode="border"), case(IMAGE, GRID, padding_mode="reflection"))),
    Operator("Col2Im", _col2im_type, _col2im, kind="reduction", cases=(
        case("float32[1, 8, 6]", [3, 4], [2, 2]),
        case("float32[1, 8, 6]", [4, 5], [2, 2], strides=(2, 2), pads=(0, 1, 1, 0)))),
    Operator("DeformColumns", compute=_columns, kind="injective", domain="webmlc"),
    Operator("DeformConv", expand=_deform_conv, cases=(
        case(MAP, "float32[2, 4, 2, 2]", "float32[1, 8, 4, 5]"),
        case(MAP, "float32[4, 2, 2, 2]", "float32[1, 16, 4, 5]", "float32[4]",
             "float32[1, 8, 4, 5]", group=2, offset_group=2))),
)  # fmt: skip
