"""Sampling a feature map: Col2Im, deformable convolution, and pooling of regions of interest.

Every output element gathers what belongs to it, so all are independent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product as combinations

import numpy as np

from webmlc.core.dtypes import INDEX, DType
from webmlc.core.expr import Const, Expr, as_int, call, const, maximum, minimum, select
from webmlc.graph.compute import Tensor, compute, reduce
from webmlc.graph.ir import Node, TensorType
from webmlc.graph.ops.operator import (
    Builder,
    Context,
    IndexInput,
    NotSupportedError,
    Operator,
    case,
)
from webmlc.graph.ops.shapes import (
    ZERO,
    accumulator,
    canonical,
    check_shape,
    check_shapes,
    dimensions,
    given,
    product,
    require,
)
from webmlc.graph.ops.windows import Windows

Inputs = tuple[Tensor | None, ...]


def _per_axis(context: Context, name: str, rank: int, default: int = 1) -> tuple[int, ...]:
    values = tuple(int(v) for v in context.attribute(name) or (default,) * rank)
    if len(values) != rank:
        raise NotSupportedError(f"{name} {list(values)}: {rank} are expected")
    return values


# -- Col2Im -------------------------------------------------------------------------------------


def _col2im_type(context: Context) -> tuple[TensorType, ...]:
    x = context.type(0)
    image, block, counts = _blocks(context)
    taps = product(block)
    signature = "batch taps*channels positions"
    check_shapes(context, signature, taps=taps, positions=product(counts))
    return (TensorType(x.dtype, (x.shape[0], canonical(x.shape[1] // taps), *image)),)


def _blocks(context: Context) -> tuple[list[Expr], list[Expr], list[Expr]]:
    """The shapes of the image and of a block, and how many blocks there are along each axis."""
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


def _col2im(context: Context, inputs: Inputs) -> tuple[Tensor, ...]:
    """Each pixel sums the elements of all blocks that cover it."""
    x = given(inputs, 0)
    _, block, counts = _blocks(context)
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

    return (reduce("col2im", context.outputs[0].shape, block, "add", term),)


# -- DeformConv ---------------------------------------------------------------------------------


def _interpolate(
    read: Callable[[Sequence[Expr]], Expr], place: Sequence[Expr], sizes: Sequence[Expr]
) -> Expr:
    """Linear interpolation at a place between elements; those outside the map are zero."""
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


def _columns_type(context: Context) -> tuple[TensorType, ...]:
    x, offset = context.type(0), context.type(1)
    taps = int(np.prod(context.attribute("kernel")))
    shape = (x.shape[0], canonical(x.shape[1] * taps), product(offset.shape[2:]))
    return (TensorType(x.dtype, shape),)


def _columns(context: Context, inputs: Inputs) -> tuple[Tensor, ...]:
    """[batch][channel · tap][position]: the map at every moved tap of every window, by mask."""
    x, offset = given(inputs, 0), given(inputs, 1)
    mask = inputs[2] if len(inputs) > 2 else None
    kernel = tuple(int(k) for k in context.attribute("kernel"))
    rank, taps = len(kernel), int(np.prod(kernel))
    strides, dilations = (_per_axis(context, n, rank) for n in ("strides", "dilations"))
    pads = _per_axis(context, "pads", 2 * rank, 0)
    sizes, wide = offset.shape[2:], accumulator(x.dtype)
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
        at = unravel(position, sizes)
        place = []
        for d, step in enumerate(unravel(tap, kernel)):
            start = at[d] * strides[d] - pads[d] + step * dilations[d]
            moved = offset[(n, (group * taps + tap) * rank + d, *at)]
            place.append(start.astype(wide) + moved.astype(wide))
        value = _interpolate(lambda i: x[(n, channel, *i)], place, x.shape[2:])
        if mask is not None:
            value = value * mask[(n, group * taps + tap, *at)].astype(wide)
        return value.astype(x.dtype)

    return (compute("columns", context.outputs[0].shape, element),)


def _deform_conv(context: Context, build: Builder) -> tuple[str, ...]:
    """Columns as for im2col, then one matrix product a group of channels."""
    x, w, offset, *rest = context.node.inputs
    bias, mask = (*rest, "", "")[:2]
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
    split = build("Reshape", columns, build.constant(np.array([0, groups, depth, -1])))
    weights = build("Reshape", w, build.constant(np.array([groups, outputs // groups, depth])))
    batch = build("Shape", x, start=0, end=1)
    space = build("Shape", offset, start=2)
    whole = build("Concat", batch, build.constant(np.array([outputs])), space, axis=0)
    y = build("Reshape", build("MatMul", weights, split), whole)
    if bias:
        column = np.array([1, outputs, *([1] * len(kernel))])
        y = build("Add", y, build("Reshape", bias, build.constant(column)))
    return (y,)


def _check_offsets(context: Context, kernel: tuple[int, ...]) -> None:
    """An offset an axis, and a share of the mask, of every tap of every window and group."""
    groups, taps = context.count("offset_group", 1), int(np.prod(kernel))
    check_shapes(context, "batch groups*size ...", groups=groups)
    batch, sizes = context.shape(0)[0], Windows.of(context, kernel).sizes
    check_shape(context, 2, (batch, const(groups * taps * len(kernel)), *sizes))
    check_shape(context, 4, (batch, const(groups * taps), *sizes))


def _deform_type(context: Context) -> tuple[TensorType, ...]:
    raise NotSupportedError("a deformable convolution is always written out")


# -- regions of interest ------------------------------------------------------------------------


def _roi_align_type(context: Context) -> tuple[TensorType, ...]:
    check_shapes(context, "batch channels height width", "regions 4", "regions")
    _check_images(context)
    x, rois = context.type(0), context.type(1)
    pooled = [const(context.count(n, 1)) for n in ("output_height", "output_width")]
    return (TensorType(x.dtype, (rois.shape[0], x.shape[1], *pooled)),)


def _images(context: Context) -> tuple[IndexInput, ...]:
    """Input 2 says in which image of the batch each region lies."""
    return (IndexInput(context.node.inputs[2], (context.shape(0)[0],), from_end=False),)


def _check_images(context: Context) -> None:
    """Where there are regions, there is an image."""
    regions, images = context.shape(1)[0], context.shape(0)[0]
    if not require(context, "at most", canonical(minimum(regions, 1)), images):
        raise NotSupportedError(f"{regions} regions of {context.type(0)}, which has no image")


class _RoiAxis:
    """One axis of all regions: where the samples of a bin lie."""

    def __init__(self, context: Context, rois: Tensor, size: Expr, pooled: int, column: int):
        self.context, self.rois, self.size = context, rois, size
        self.pooled, self.column = pooled, column
        self.ratio = int(context.attribute("sampling_ratio", 0))
        mode = context.attribute("coordinate_transformation_mode", "half_pixel")
        self.shifted = mode == "half_pixel"
        self.dtype = accumulator(rois.dtype)

    @property
    def most(self) -> Expr:
        """Samples a bin at most: an adaptive grid is that of a region as large as the map."""
        return const(self.ratio) if self.ratio else canonical((self.size - 1) // self.pooled + 1)

    def corner(self, roi: Expr, far: int) -> Expr:
        scale = float(self.context.attribute("spatial_scale", 1.0))
        value = self.rois[roi, const(self.column + 2 * far)].astype(self.dtype) * scale
        return value - 0.5 if self.shifted else value

    def bin(self, roi: Expr) -> Expr:
        length = self.corner(roi, 1) - self.corner(roi, 0)
        return (length if self.shifted else maximum(length, 1.0)) / float(self.pooled)

    def samples(self, roi: Expr) -> Expr:
        if self.ratio:
            return const(self.ratio)
        return minimum(call("ceil", self.bin(roi)).astype(INDEX), self.most)

    def place(self, roi: Expr, bin_: Expr, sample: Expr) -> Expr:
        size, count = self.bin(roi), maximum(self.samples(roi), 1).astype(self.dtype)
        middle = (sample.astype(self.dtype) + 0.5) * size / count
        return self.corner(roi, 0) + bin_.astype(self.dtype) * size + middle

    def taps(self, place: Expr) -> tuple[Expr, list[tuple[Expr, Expr]]]:
        """Whether the place is within a pixel of the map; (index, weight) of its neighbours."""
        extent = self.size.astype(place.dtype)
        inside = (place >= -1.0) & (place <= extent)
        held = minimum(maximum(place, 0.0), extent - 1.0)
        low = call("floor", held)
        share = held - low
        index = low.astype(INDEX)
        return inside, [(index, 1.0 - share), (minimum(index + 1, self.size - 1), share)]


def _mark_unshifted(node: Node, opset: int) -> Node:
    """Before opset 16 corners are not shifted by half a pixel."""
    if opset >= 16:
        return node
    mode = {"coordinate_transformation_mode": "output_half_pixel"}
    return replace(node, attributes={**node.attributes, **mode})


def _roi_align(context: Context, inputs: Inputs) -> tuple[Tensor, ...]:
    """The mean (or largest) of samples on a grid in each bin, interpolated between pixels.

    Regions larger than the map have as many samples as one that is as large.
    """
    x, rois, batches = (given(inputs, i) for i in range(3))
    shape = context.outputs[0].shape
    axes = [
        _RoiAxis(context, rois, x.shape[2 + d], as_int(shape[2 + d]) or 1, 1 - d) for d in (0, 1)
    ]
    largest = context.attribute("mode", "avg") == "max"
    wide = axes[0].dtype

    def sample(r: Expr, c: Expr, h: Expr, w: Expr, i: Expr, j: Expr) -> Expr:
        (in_y, ys), (in_x, xs) = (
            axis.taps(axis.place(r, *at)) for axis, at in zip(axes, ((h, i), (w, j)), strict=True)
        )
        image = minimum(maximum(batches[r].astype(INDEX), 0), x.shape[0] - 1)
        terms = [x[image, c, y, z].astype(wide) * (wy * wx) for y, wy in ys for z, wx in xs]
        value = terms[0]
        for term in terms[1:]:
            value = maximum(value, term) if largest else value + term
        value = select(in_y & in_x, value, 0.0)
        used = (i < axes[0].samples(r)) & (j < axes[1].samples(r))
        return select(used, value, Const(-np.inf if largest else 0.0, wide))

    extents = [axis.most for axis in axes]
    total = reduce("samples", shape, extents, "max" if largest else "add", sample)

    def element(*index: Expr) -> Expr:
        value, r = total[index], index[0]
        count = axes[0].samples(r) * axes[1].samples(r)
        if largest:
            return select(count > 0, value, 0.0).astype(x.dtype)
        return (value / maximum(count, 1).astype(wide)).astype(x.dtype)

    return (compute("roi_align", shape, element),)


def _max_roi_type(context: Context) -> tuple[TensorType, ...]:
    check_shapes(context, "batch channels height width", "regions 5")
    _check_images(context)
    x, rois = context.type(0), context.type(1)
    pooled = [const(int(n)) for n in context.attribute("pooled_shape")]
    return (TensorType(x.dtype, (rois.shape[0], x.shape[1], *pooled)),)


def _max_roi(context: Context, inputs: Inputs) -> tuple[Tensor, ...]:
    """The largest pixel of each bin of each region, which lies in the map; 0 of an empty bin."""
    x, rois = given(inputs, 0), given(inputs, 1)
    shape, scale = context.outputs[0].shape, context.attribute("spatial_scale", 1.0)
    wide = accumulator(rois.dtype)

    def limits(r: Expr, at: Expr, d: int) -> tuple[Expr, Expr]:
        def corner(far: int) -> Expr:
            value = rois[r, const(2 - d + 2 * far)].astype(wide) * scale
            return call("floor", value + 0.5)  # halves go up, as in C's round of positives

        length = maximum(corner(1) - corner(0) + 1.0, 1.0)
        size = length / shape[2 + d].astype(wide)
        low = call("floor", at.astype(wide) * size) + corner(0)
        high = call("ceil", (at + 1).astype(wide) * size) + corner(0)
        return tuple(minimum(maximum(v.astype(INDEX), 0), x.shape[2 + d]) for v in (low, high))  # type: ignore[return-value]

    def pixel(r: Expr, c: Expr, h: Expr, w: Expr, i: Expr, j: Expr) -> Expr:
        (top, bottom), (left, right) = limits(r, h, 0), limits(r, w, 1)
        y, z = top + i, left + j
        inside = (y < bottom) & (z < right)
        image = minimum(maximum(rois[r, ZERO].astype(INDEX), 0), x.shape[0] - 1)
        value = x[image, c, minimum(y, x.shape[2] - 1), minimum(z, x.shape[3] - 1)]
        return select(inside, value, Const(-np.inf, x.dtype))

    extents = [minimum(x.shape[2 + d], x.shape[2 + d] // shape[2 + d] + 2) for d in (0, 1)]
    best = reduce("bin", shape, [canonical(e) for e in extents], "max", pixel)

    def element(*i: Expr) -> Expr:
        (top, bottom), (left, right) = limits(i[0], i[2], 0), limits(i[0], i[3], 1)
        return select((bottom > top) & (right > left), best[i], Const(0, x.dtype))

    return (compute("max_roi_pool", shape, element),)


MAP = "float32[1, 4, 5, 6]"
ROIS = np.array([[0.5, 1, 4, 3.5], [1, 0, 5.5, 4.5]], np.float32)
BATCHES = np.zeros(2, np.int64)

OPS: tuple[Operator, ...] = (
    Operator("Col2Im", _col2im_type, _col2im, kind="reduction", cases=(
        case("float32[1, 8, 6]", [3, 4], [2, 2]),
        case("float32[1, 8, 6]", [4, 5], [2, 2], strides=(2, 2), pads=(0, 1, 1, 0)))),
    Operator("DeformColumns", _columns_type, _columns, kind="injective", domain="webmlc"),
    Operator("DeformConv", _deform_type, expand=_deform_conv, cases=(
        case(MAP, "float32[2, 4, 2, 2]", "float32[1, 8, 4, 5]"),
        case(MAP, "float32[4, 2, 2, 2]", "float32[1, 16, 4, 5]", "float32[4]",
             "float32[1, 8, 4, 5]", group=2, offset_group=2))),
    Operator("RoiAlign", _roi_align_type, _roi_align, kind="reduction",
             normalise=_mark_unshifted, indices=_images, cases=(
        case(MAP, ROIS, BATCHES, output_height=2, output_width=3, sampling_ratio=2),
        case(MAP, ROIS, BATCHES, output_height=2, output_width=2, spatial_scale=0.5,
             coordinate_transformation_mode="output_half_pixel"),
        case(MAP, ROIS, BATCHES, output_height=2, output_width=2, mode="max"))),
    Operator("MaxRoiPool", _max_roi_type, _max_roi, kind="reduction", cases=(
        case(MAP, np.array([[0, 0, 1, 4, 3], [0, 1, 0, 5, 4]], np.float32),
             pooled_shape=(2, 3)),)),
)  # fmt: skip
