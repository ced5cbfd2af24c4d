"""Sampling a feature map: Col2Im, deformable convolution, and pooling of regions of interest.

Every output element gathers what belongs to it, so all are independent.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import reduce as fold
from itertools import product as combinations

import numpy as np

from webmlc.core.dtypes import INDEX, DType
from webmlc.core.expr import Const, Expr, as_int, call, const, maximum, minimum, select
from webmlc.graph.builder import Builder
from webmlc.graph.compute import Tensor, compute, reduce
from webmlc.graph.ir import Node, TensorType
from webmlc.graph.ops.index import clamped
from webmlc.graph.ops.operator import (
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
    operand,
    product,
    require,
    select_among,
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
    x = operand(inputs, 0)
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
    x, offset = operand(inputs, 0), operand(inputs, 1)
    mask = inputs[2] if len(inputs) > 2 else None
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
        value = _interpolate(lambda i: x[(n, channel, *i)], place, x.shape[2:])
        if mask is not None:
            value = value * mask[(n, group * taps + tap, *window_index)].astype(wide_dtype)
        return value.astype(x.dtype)

    return (compute("columns", context.outputs[0].shape, element),)


def _deform_conv(context: Context, build: Builder) -> tuple[str, ...]:
    """Columns as for im2col, then one matrix product a group of channels."""
    x, w, offset, *optional_inputs = context.node.inputs
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
    _samples(context)
    modes = {"mode": ("avg", "max"),
             "coordinate_transformation_mode": ("half_pixel", "output_half_pixel")}  # fmt: skip
    for name, values in modes.items():
        if context.attribute(name, values[0]) not in values:
            raise NotSupportedError(f"{name} {context.attribute(name)!r}")
    x, rois = context.type(0), context.type(1)
    pooled = [const(context.count(n, 1)) for n in ("output_height", "output_width")]
    return (TensorType(x.dtype, (rois.shape[0], x.shape[1], *pooled)),)


def _samples(context: Context) -> list[Expr]:
    """The samples along each axis that a kernel takes in a bin: `sampling_ratio`, or where that is
    0 what a run counts (`RoiGrid`).
    """
    ratio = int(context.attribute("sampling_ratio", 0))
    return [const(ratio)] * 2 if ratio else dimensions(context, 3, "the number of samples")


def _with_grid(context: Context, build: Builder) -> tuple[str, ...] | None:
    """The node with a count of the samples that its largest region needs."""
    if context.attribute("sampling_ratio", 0) or context.has(3):
        return None
    node = context.node
    grid = build("RoiGrid", *node.inputs[:2], domain="webmlc", **node.attributes)
    return (build("RoiAlign", *node.inputs, grid, **node.attributes),)


def _pair_type(context: Context) -> tuple[TensorType, ...]:
    return (TensorType(DType.int64, (const(2),)),)


def _roi_grid(context: Context, inputs: Inputs) -> tuple[Tensor, ...]:
    """[2]: the most samples that lie in the map of any bin of any region, along each axis."""
    x, rois = operand(inputs, 0), operand(inputs, 1)
    axes = _RoiAxis.both(context, rois, x)

    def samples(axis: Expr, r: Expr) -> Expr:
        counts = [minimum(a.samples(r), a.max_samples) for a in axes]
        return maximum(select_among(counts, axis), 1.0).astype(INDEX)

    largest = reduce("samples", (const(2),), (rois.shape[0],), "max", samples)
    return (compute("grid", (const(2),), lambda i: maximum(largest[i], 1).astype(DType.int64)),)


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

    @staticmethod
    def both(context: Context, rois: Tensor, x: Tensor) -> list[_RoiAxis]:
        """The axes of height and width."""
        pooled = [context.count(n, 1) for n in ("output_height", "output_width")]
        return [_RoiAxis(context, rois, x.shape[2 + d], pooled[d], 1 - d) for d in (0, 1)]

    @property
    def max_samples(self) -> Expr:
        """An upper limit of the samples of an adaptive grid that lie in the map. Neighbours are
        more than (n - 1)/n apart where there are n: at most `size + 2` are within -1..size. The
        first of them is found by a quotient that may be rounded: one sample more on either side.
        """
        return (self.size + 4).astype(self.dtype)

    def corner(self, roi: Expr, far: int) -> Expr:
        scale = float(self.context.attribute("spatial_scale", 1.0))
        value = self.rois[roi, const(self.column + 2 * far)].astype(self.dtype) * scale
        return value - 0.5 if self.shifted else value

    def bin(self, roi: Expr) -> Expr:
        length = self.corner(roi, 1) - self.corner(roi, 0)
        return (length if self.shifted else maximum(length, 1.0)) / float(self.pooled)

    def samples(self, roi: Expr) -> Expr:
        """How many samples a bin has, as a float: an adaptive grid may have any number."""
        return Const(self.ratio, self.dtype) if self.ratio else call("ceil", self.bin(roi))

    def first(self, roi: Expr, bin_: Expr) -> Expr:
        """The first sample that may lie in the map, where a bin has more than the map can hold."""
        if self.ratio:
            return Const(0, self.dtype)
        size, count = self.bin(roi), self.samples(roi)
        start = self.corner(roi, 0) + bin_.astype(self.dtype) * size
        before = call("floor", (-1.0 - start) * count / size - 0.5)
        return select(count > self.max_samples, minimum(maximum(before, 0.0), count), 0.0)

    def place(self, roi: Expr, bin_: Expr, sample: Expr) -> Expr:
        size, count = self.bin(roi), maximum(self.samples(roi), 1.0)
        middle = (sample + 0.5) * size / count
        return self.corner(roi, 0) + bin_.astype(self.dtype) * size + middle

    def taps(self, place: Expr) -> tuple[Expr, list[tuple[Expr, Expr]]]:
        """Whether the place is within a pixel of the map; (index, weight) of its neighbours."""
        extent = self.size.astype(place.dtype)
        inside = (place >= -1.0) & (place <= extent)
        clamped_place = minimum(maximum(place, 0.0), extent - 1.0)
        low = call("floor", clamped_place)
        share = clamped_place - low
        index = low.astype(INDEX)
        return inside, [(index, 1.0 - share), (minimum(index + 1, self.size - 1), share)]


def _mark_unshifted(node: Node, opset: int) -> Node:
    """Before opset 16 corners are not shifted by half a pixel."""
    if opset >= 16:
        return node
    mode = {"coordinate_transformation_mode": "output_half_pixel"}
    return replace(node, attributes={**node.attributes, **mode})


def _image_indices(context: Context) -> tuple[IndexInput, ...]:
    """Input 2 is the image of each region."""
    return (IndexInput(context.node.inputs[2], (context.shape(0)[0],), from_end=False),)


def _roi_align(context: Context, inputs: Inputs) -> tuple[Tensor, ...]:
    """The mean (or largest) of samples on a grid in each bin, interpolated between pixels; those
    outside the map are 0.
    """
    x, rois, batches = (operand(inputs, i) for i in range(3))
    shape = context.outputs[0].shape
    axes = _RoiAxis.both(context, rois, x)
    largest = context.attribute("mode", "avg") == "max"
    wide_dtype = axes[0].dtype

    def sample(r: Expr, c: Expr, h: Expr, w: Expr, i: Expr, j: Expr) -> Expr:
        (place_y, used_y), (place_x, used_x) = (
            (axis.place(r, bin_, number), call("lt", number, axis.samples(r)))
            for axis, bin_, number in (
                (axes[0], h, axes[0].first(r, h) + i.astype(wide_dtype)),
                (axes[1], w, axes[1].first(r, w) + j.astype(wide_dtype)),
            )
        )
        (in_y, ys), (in_x, xs) = axes[0].taps(place_y), axes[1].taps(place_x)
        image = clamped(batches[r], x.shape[0])
        terms = [x[image, c, y, z].astype(wide_dtype) * (wy * wx) for y, wy in ys for z, wx in xs]
        value = terms[0]
        for term in terms[1:]:
            value = maximum(value, term) if largest else value + term
        value = select(in_y & in_x, value, 0.0)
        return select(used_y & used_x, value, Const(-np.inf if largest else 0.0, wide_dtype))

    extents = _samples(context)
    total = reduce("samples", shape, extents, "max" if largest else "add", sample)

    def element(*index: Expr) -> Expr:
        value, counts = total[index], [axis.samples(index[0]) for axis in axes]
        if largest:  # samples that no kernel takes are outside the map
            is_cut = (
                call("gt", n, e.astype(wide_dtype)) for n, e in zip(counts, extents, strict=True)
            )
            value = select(fold(operator.or_, is_cut), maximum(value, 0.0), value)
            has_samples = call("gt", minimum(*counts), 0.0)
            return select(has_samples, value, 0.0).astype(x.dtype)
        return (value / maximum(counts[0] * counts[1], 1.0)).astype(x.dtype)

    return (compute("roi_align", shape, element),)


def _max_roi_type(context: Context) -> tuple[TensorType, ...]:
    check_shapes(context, "batch channels height width", "regions 5")
    _check_images(context)
    dimensions(context, 3, "the pixels of a bin")
    x, rois = context.type(0), context.type(1)
    pooled = [const(int(n)) for n in context.attribute("pooled_shape")]
    return (TensorType(x.dtype, (rois.shape[0], x.shape[1], *pooled)),)


def _with_bins(context: Context, build: Builder) -> tuple[str, ...] | None:
    """The node with the image of each region, and a count of the pixels of the largest bin."""
    if context.has(3):
        return None
    node = context.node
    column = build("Gather", node.inputs[1], build.constant(np.int64(0)), axis=1)
    bins = build("RoiBins", *node.inputs, domain="webmlc", **node.attributes)
    images = build("Cast", column, to=7)
    return (build("MaxRoiPool", *node.inputs, images, bins, **node.attributes),)


def _bin_limits(
    context: Context, rois: Tensor, x: Tensor, r: Expr, bin_: Expr, d: int
) -> list[Expr]:
    """Where a bin of a region starts and ends along an axis of the map."""
    scale, wide_dtype = context.attribute("spatial_scale", 1.0), accumulator(rois.dtype)
    pooled = float(context.attribute("pooled_shape")[d])

    def corner(far: int) -> Expr:
        value = rois[r, const(2 - d + 2 * far)].astype(wide_dtype) * scale
        return call("floor", value + 0.5)  # halves go up, as in C's round of positives

    size = maximum(corner(1) - corner(0) + 1.0, 1.0) / pooled
    low = call("floor", bin_.astype(wide_dtype) * size) + corner(0)
    high = call("ceil", (bin_ + 1).astype(wide_dtype) * size) + corner(0)
    return [minimum(maximum(v.astype(INDEX), 0), x.shape[2 + d]) for v in (low, high)]


def _roi_bins(context: Context, inputs: Inputs) -> tuple[Tensor, ...]:
    """[2]: the most pixels that any bin of any region has in the map, along each axis."""
    x, rois = operand(inputs, 0), operand(inputs, 1)
    pooled = [int(n) for n in context.attribute("pooled_shape")]

    def pixels(axis: Expr, r: Expr, bin_: Expr) -> Expr:
        counts = []
        for d in (0, 1):
            low, high = _bin_limits(context, rois, x, r, minimum(bin_, pooled[d] - 1), d)
            counts.append(high - low)
        return select_among(counts, axis)

    extents = (rois.shape[0], const(max(pooled)))
    largest = reduce("pixels", (const(2),), extents, "max", pixels)
    return (compute("bins", (const(2),), lambda i: maximum(largest[i], 1).astype(DType.int64)),)


def _max_roi(context: Context, inputs: Inputs) -> tuple[Tensor, ...]:
    """The largest pixel of each bin of each region, which lies in the map; 0 of an empty bin."""
    x, rois, images = (operand(inputs, i) for i in range(3))
    shape = context.outputs[0].shape

    def limits(r: Expr, at: Expr, d: int) -> list[Expr]:
        return _bin_limits(context, rois, x, r, at, d)

    def pixel(r: Expr, c: Expr, h: Expr, w: Expr, i: Expr, j: Expr) -> Expr:
        (top, bottom), (left, right) = limits(r, h, 0), limits(r, w, 1)
        y, z = top + i, left + j
        inside = (y < bottom) & (z < right)
        image = clamped(images[r], x.shape[0])
        value = x[image, c, minimum(y, x.shape[2] - 1), minimum(z, x.shape[3] - 1)]
        return select(inside, value, Const(-np.inf, x.dtype))

    extents = dimensions(context, 3, "the pixels of a bin")
    best = reduce("bin", shape, extents, "max", pixel)

    def element(*i: Expr) -> Expr:
        (top, bottom), (left, right) = limits(i[0], i[2], 0), limits(i[0], i[3], 1)
        return select((bottom > top) & (right > left), best[i], Const(0, x.dtype))

    return (compute("max_roi_pool", shape, element),)


MAP = "float32[1, 4, 5, 6]"
ROIS = np.array([[0.5, 1, 4, 3.5], [1, 0, 5.5, 4.5]], np.float32)
LARGE_ROIS = np.array([[-20, -30, 40, 30], [-30, -10, 60, 3]], np.float32)
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
    Operator("RoiGrid", _pair_type, _roi_grid, kind="reduction", domain="webmlc"),
    Operator("RoiBins", _pair_type, _roi_bins, kind="reduction", domain="webmlc"),
    Operator("RoiAlign", _roi_align_type, _roi_align, _with_grid, kind="reduction",
             normalise=_mark_unshifted, indices=_image_indices, cases=(
        case(MAP, ROIS, BATCHES, output_height=2, output_width=3, sampling_ratio=2),
        case(MAP, ROIS, BATCHES, output_height=2, output_width=2, spatial_scale=0.5,
             coordinate_transformation_mode="output_half_pixel"),
        case(MAP, ROIS, BATCHES, output_height=2, output_width=2, mode="max"),
        case(MAP, LARGE_ROIS, BATCHES, output_height=2, output_width=2),
        case(MAP, "float32[2, 4] in 0..9", BATCHES, output_height=2, output_width=2, mode="max"))),
    Operator("MaxRoiPool", _max_roi_type, _max_roi, _with_bins, kind="reduction",
             indices=_image_indices, cases=(
        case(MAP, np.array([[0, 0, 1, 4, 3], [0, 1, 0, 5, 4]], np.float32),
             pooled_shape=(2, 3)),
        case(MAP, np.array([[0, -20, -30, 40, 30], [0, -3, -4, 60, 3]], np.float32),
             pooled_shape=(2, 3)))),
)  # fmt: skip
