"""Pooling of regions of interest: RoiAlign and MaxRoiPool.

Each output element gathers its inputs, so that all elements are independent.
"""

from __future__ import annotations

import operator
from dataclasses import replace
from functools import reduce as fold

import numpy as np

from webmlc.core.dtypes import INDEX, DType
from webmlc.core.expr import Const, Expr, call, const, maximum, minimum, select
from webmlc.graph.builder import Builder, Value
from webmlc.graph.compute import Tensor, compute, identity, reduce
from webmlc.graph.ir import Node, TensorType
from webmlc.graph.ops.index import clamped
from webmlc.graph.ops.operator import Context, IndexInput, NotSupportedError, Operator, case
from webmlc.graph.ops.shapes import (
    accumulator,
    canonical,
    check_shapes,
    dimensions,
    require,
    select_among,
)


def _roi_align_type(context: Context) -> TensorType:
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
    return TensorType(x.dtype, (rois.shape[0], x.shape[1], *pooled))


def _samples(context: Context) -> list[Expr]:
    """The number of samples that a kernel takes in a bin along each axis. It is `sampling_ratio`,
    or if the ratio is 0, the number that a run computes (`RoiGrid`).
    """
    ratio = int(context.attribute("sampling_ratio", 0))
    return [const(ratio)] * 2 if ratio else dimensions(context, 3, "the number of samples")


def _with_grid(context: Context, build: Builder) -> Value | None:
    """Add an input that holds the number of samples that the largest region needs."""
    if context.attribute("sampling_ratio", 0) or context.has(3):
        return None
    node = context.node
    grid = build("RoiGrid", *node.inputs[:2], domain="webmlc", **node.attributes)
    return build("RoiAlign", *node.inputs, grid, **node.attributes)


def _roi_grid(context: Context, x: Tensor, rois: Tensor) -> Tensor:
    """The greatest number of samples of a bin that lie in the feature map, along each axis: [2]."""
    axes = _RoiAxis.both(context, rois, x)

    def samples(axis: Expr, r: Expr) -> Expr:
        counts = [minimum(a.samples(r), a.max_samples) for a in axes]
        return maximum(select_among(counts, axis), 1.0).astype(INDEX)

    largest = reduce("samples", (const(2),), (rois.shape[0],), "max", samples)
    return compute("grid", (const(2),), lambda i: maximum(largest[i], 1).astype(DType.int64))


def _check_images(context: Context) -> None:
    """Check that there is an image if there are regions."""
    regions, images = context.shape(1)[0], context.shape(0)[0]
    if not require(context, "at most", canonical(minimum(regions, 1)), images):
        raise NotSupportedError(f"{regions} regions of {context.type(0)}, which has no image")


class _RoiAxis:
    """One axis of all regions: the positions of the samples in a bin."""

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
        """An upper limit for the samples of an adaptive grid that lie in the feature map.

        The distance between n samples is more than (n - 1)/n, so at most `size + 2` samples are
        within -1..size. A rounded quotient gives the first sample, so there may be one more on
        either side.
        """
        return (self.size + 4).astype(self.dtype)

    def corner(self, roi: Expr, far: int) -> Expr:
        """The start (`far` is 0) or the end (1) of a region."""
        scale = float(self.context.attribute("spatial_scale", 1.0))
        value = self.rois[roi, const(self.column + 2 * far)].astype(self.dtype) * scale
        return value - 0.5 if self.shifted else value

    def bin(self, roi: Expr) -> Expr:
        """The length of a bin."""
        length = self.corner(roi, 1) - self.corner(roi, 0)
        return (length if self.shifted else maximum(length, 1.0)) / float(self.pooled)

    def samples(self, roi: Expr) -> Expr:
        """The number of samples of a bin, as a float: an adaptive grid may have any number."""
        return Const(self.ratio, self.dtype) if self.ratio else call("ceil", self.bin(roi))

    def first(self, roi: Expr, bin_: Expr) -> Expr:
        """The first sample that a kernel takes. It is not 0 if a bin has more samples than fit in
        the feature map.
        """
        if self.ratio:
            return Const(0, self.dtype)
        size, count = self.bin(roi), self.samples(roi)
        start = self.corner(roi, 0) + bin_.astype(self.dtype) * size
        before = call("floor", (-1.0 - start) * count / size - 0.5)
        return select(count > self.max_samples, minimum(maximum(before, 0.0), count), 0.0)

    def place(self, roi: Expr, bin_: Expr, sample: Expr) -> Expr:
        """The position of a sample."""
        size, count = self.bin(roi), maximum(self.samples(roi), 1.0)
        middle = (sample + 0.5) * size / count
        return self.corner(roi, 0) + bin_.astype(self.dtype) * size + middle

    def taps(self, place: Expr) -> tuple[Expr, list[tuple[Expr, Expr]]]:
        """The condition that a position is within a pixel of the feature map, and the pairs (index,
        weight) of its neighbours.
        """
        extent = self.size.astype(place.dtype)
        inside = (place >= -1.0) & (place <= extent)
        clamped_place = minimum(maximum(place, 0.0), extent - 1.0)
        low = call("floor", clamped_place)
        share = clamped_place - low
        index = low.astype(INDEX)
        return inside, [(index, 1.0 - share), (minimum(index + 1, self.size - 1), share)]


def _mark_unshifted(node: Node, opset: int) -> Node:
    """Set the mode of a RoiAlign before opset 16: corners are not shifted by half a pixel."""
    if opset >= 16:
        return node
    mode = {"coordinate_transformation_mode": "output_half_pixel"}
    return replace(node, attributes={**node.attributes, **mode})


def _image_indices(context: Context) -> tuple[IndexInput, ...]:
    """Input 2 holds the image of each region."""
    return (IndexInput(context.node.inputs[2], (context.shape(0)[0],), from_end=False),)


def _roi_align(context: Context, x: Tensor, rois: Tensor, batches: Tensor, *_: Tensor) -> Tensor:
    """The mean or the maximum of samples on a grid in each bin. Samples are interpolated between
    pixels; outside the feature map they are 0.
    """
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
        if largest:  # samples that the kernel does not take are outside, so they are 0
            is_cut = (
                call("gt", n, e.astype(wide_dtype)) for n, e in zip(counts, extents, strict=True)
            )
            value = select(fold(operator.or_, is_cut), maximum(value, 0.0), value)
            has_samples = call("gt", minimum(*counts), 0.0)
            return select(has_samples, value, 0.0).astype(x.dtype)
        return (value / maximum(counts[0] * counts[1], 1.0)).astype(x.dtype)

    return compute("roi_align", shape, element)


# -- MaxRoiPool -----------------------------------------------------------------------------------


def _max_roi_type(context: Context) -> TensorType:
    check_shapes(context, "batch channels height width", "regions 5")
    _check_images(context)
    dimensions(context, 3, "the pixels of a bin")
    x, rois = context.type(0), context.type(1)
    pooled = [const(int(n)) for n in context.attribute("pooled_shape")]
    return TensorType(x.dtype, (rois.shape[0], x.shape[1], *pooled))


def _with_bins(context: Context, build: Builder) -> Value | None:
    """Add inputs that hold the image of each region, and the pixels of the largest bin."""
    if context.has(3):
        return None
    node = context.node
    column = build.inputs[1].element(0, 1)
    bins = build("RoiBins", *node.inputs, domain="webmlc", **node.attributes)
    is_nowhere = build("IsNaN", column)  # a NaN would become image 0
    images = is_nowhere.where(-1, column.cast(DType.int64))
    return build("MaxRoiPool", *node.inputs, images, bins, **node.attributes)


def _bin_limits(
    context: Context, rois: Tensor, x: Tensor, r: Expr, bin_: Expr, d: int
) -> list[Expr]:
    """The start and the end of a bin of a region along an axis of the feature map."""
    scale, wide_dtype = context.attribute("spatial_scale", 1.0), accumulator(rois.dtype)
    pooled = float(context.attribute("pooled_shape")[d])

    def corner(far: int) -> Expr:
        value = rois[r, const(2 - d + 2 * far)].astype(wide_dtype) * scale
        return call("floor", value + 0.5)  # halves round up, as C's round does for positives

    size = maximum(corner(1) - corner(0) + 1.0, 1.0) / pooled
    low = call("floor", bin_.astype(wide_dtype) * size) + corner(0)
    high = call("ceil", (bin_ + 1).astype(wide_dtype) * size) + corner(0)
    return [minimum(maximum(v.astype(INDEX), 0), x.shape[2 + d]) for v in (low, high)]


def _roi_bins(context: Context, x: Tensor, rois: Tensor) -> Tensor:
    """The greatest number of pixels of a bin in the feature map, along each axis: [2]."""
    pooled = [int(n) for n in context.attribute("pooled_shape")]

    def pixels(axis: Expr, r: Expr, bin_: Expr) -> Expr:
        counts = []
        for d in (0, 1):
            low, high = _bin_limits(context, rois, x, r, minimum(bin_, pooled[d] - 1), d)
            counts.append(high - low)
        return select_among(counts, axis)

    extents = (rois.shape[0], const(max(pooled)))
    largest = reduce("pixels", (const(2),), extents, "max", pixels)
    return compute("bins", (const(2),), lambda i: maximum(largest[i], 1).astype(DType.int64))


def _max_roi(context: Context, x: Tensor, rois: Tensor, images: Tensor, *_: Tensor) -> Tensor:
    """The largest pixel of each bin in the feature map. An empty bin gives 0."""
    shape = context.outputs[0].shape

    def limits(r: Expr, at: Expr, d: int) -> list[Expr]:
        return _bin_limits(context, rois, x, r, at, d)

    def pixel(r: Expr, c: Expr, h: Expr, w: Expr, i: Expr, j: Expr) -> Expr:
        (top, bottom), (left, right) = limits(r, h, 0), limits(r, w, 1)
        y, z = top + i, left + j
        inside = (y < bottom) & (z < right)
        image = clamped(images[r], x.shape[0])
        value = x[image, c, minimum(y, x.shape[2] - 1), minimum(z, x.shape[3] - 1)]
        return select(inside, value, identity("max", x.dtype))

    extents = dimensions(context, 3, "the pixels of a bin")
    best = reduce("bin", shape, extents, "max", pixel)

    def element(*i: Expr) -> Expr:
        (top, bottom), (left, right) = limits(i[0], i[2], 0), limits(i[0], i[3], 1)
        return select((bottom > top) & (right > left), best[i], Const(0, x.dtype))

    return compute("max_roi_pool", shape, element)


MAP = "float32[1, 4, 5, 6]"
ROIS = np.array([[0.5, 1, 4, 3.5], [1, 0, 5.5, 4.5]], np.float32)
LARGE_ROIS = np.array([[-20, -30, 40, 30], [-30, -10, 60, 3]], np.float32)
BATCHES = np.zeros(2, np.int64)

OPS: tuple[Operator, ...] = (
    Operator("RoiGrid", compute=_roi_grid, kind="reduction", domain="webmlc"),
    Operator("RoiBins", compute=_roi_bins, kind="reduction", domain="webmlc"),
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
