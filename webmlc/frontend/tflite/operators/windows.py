"""Rows of convolutions, pools and resizing, over feature maps of NHWC.

ONNX's operators take NCHW, so a transpose stands before and after each of them. The compiler
removes the transposes again (`graph/layout`), because its kernels take NHWC, too. before → after:

    CONV_2D(x, w [O, H, W, I], b)   ->   Transpose · Conv(·, w [O, I, H, W], b) · Transpose
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from webmlc.core.dtypes import DType
from webmlc.frontend.tflite.operation import Operation, Row
from webmlc.frontend.tflite.operators.dynamic import rounded
from webmlc.graph.builder import Operand, Value

SAME = 0
"""The padding that keeps the size of a feature map, divided by the stride (`Padding.SAME`)."""


def channels_first(x: Value, dimensions: int = 2) -> Value:
    """A feature map of NHWC as NCHW."""
    return x.transpose(0, dimensions + 1, *range(1, dimensions + 1))


def channels_last(x: Value, dimensions: int = 2) -> Value:
    """A feature map of NCHW as NHWC."""
    return x.transpose(0, *range(2, dimensions + 2), 1)


def padding(number: int) -> str:
    """The attribute `auto_pad` for a number of the schema's `Padding`."""
    return "SAME_UPPER" if number == SAME else "VALID"


def padding_total(size: int, parts: int, stride: int, window: int) -> int:
    """The padding on both sides of a dimension of this size that has so many windows."""
    return max((parts - 1) * stride + window - size, 0)


def _padding(
    op: Operation, window: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
) -> dict[str, Any]:
    """The padding of a convolution as an attribute: numbers if the sizes of the input are known.
    onnxruntime does not take dilations with `auto_pad`.
    """
    number, sizes = op.options.Padding, op.shape(0)[1:-1]
    if number != SAME or min((*sizes, *window)) < 0:
        return {"auto_pad": padding(number)}
    totals = [
        padding_total(n, -(-n // s), s, (k - 1) * d + 1)
        for n, k, s, d in zip(sizes, window, strides, dilations, strict=True)
    ]
    before = [total // 2 for total in totals]
    after = [total - first for total, first in zip(totals, before, strict=True)]
    return {"pads": (*before, *after)}


def _strides(options: Any) -> tuple[int, int]:
    strides = (options.StrideH, options.StrideW)
    if min(strides) < 1:
        raise ValueError(f"the strides are {strides}")
    return strides


def _dilations(options: Any) -> tuple[int, int]:
    return (options.DilationHFactor, options.DilationWFactor)


def _convolved(
    op: Operation, x: Value, order: Sequence[int], dimensions: int, attributes: Mapping[str, Any]
) -> Value:
    """A convolution of a feature map. `order` brings the filters, input 1, to [O, I, ...]."""
    x = channels_first(x, dimensions)
    y = op.build("Conv", x, op.read(1, order), op.bias(2, 0, 1), **attributes)
    return channels_last(y, dimensions)


def _attributes(
    op: Operation, order: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
) -> dict[str, Any]:
    """The attributes of ONNX's convolution, without groups."""
    window = [op.shape(1)[axis] for axis in order[2:]]
    padding = _padding(op, window, strides, dilations)
    return {"strides": strides, "dilations": dilations, **padding}


def convolution_of(op: Operation) -> tuple[Sequence[int], dict[str, Any]]:
    """The order of dimensions that brings the filters of a convolution over two dimensions to
    ONNX's, and its attributes.

    Filters of fewer channels than the input are for groups of channels. A depthwise convolution has
    filters [1, H, W, channels · multiplier], and a group for each channel.
    """
    strides, dilations = _strides(op.options), _dilations(op.options)
    channels, filter_channels = (op.size(i, 3, "the number of channels") for i in (0, 1))
    if op.operator.name == "DEPTHWISE_CONV_2D":
        order, group = (3, 0, 1, 2), channels
    elif filter_channels and channels % filter_channels == 0:
        order, group = (0, 3, 1, 2), channels // filter_channels
    else:
        op.refuse(f"filters of {filter_channels} channels do not fit {channels} channels")
    return order, {**_attributes(op, order, strides, dilations), "group": group}


def _convolution(op: Operation) -> Value:
    """A convolution over two dimensions. One of bytes rounds float images as a whole."""
    order, attributes = convolution_of(op)
    is_dense = op.operator.name == "CONV_2D" and attributes["group"] == 1
    x = rounded(op, op.input(0), (1, 2, 3)) if is_dense else op.input(0)
    return _convolved(op, x, order, 2, attributes)


def _steps_3d(options: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The strides and the dilations of three dimensions."""
    strides = (options.StrideD, *_strides(options))
    return strides, (options.DilationDFactor, *_dilations(options))


def _convolution_3d(op: Operation) -> Value:
    """A convolution over three dimensions, with filters [D, H, W, I, O]."""
    order = (4, 3, 0, 1, 2)
    return _convolved(op, op.input(0), order, 3, _attributes(op, order, *_steps_3d(op.options)))


def transposed_convolution(
    op: Operation,
    x: Value,
    filters: Value,
    bias: Value | None,
    *,
    sizes: Sequence[tuple[int, int, int, int]],
    pads: Sequence[int],
    dilations: Sequence[int] | None = None,
) -> Value:
    """A transposed convolution of NHWC. `sizes` has the size of the input, the output, the filters
    (with dilation) and the stride of each dimension, and `pads` the elements that are cut off
    before the output.
    """
    ends = [
        (before - 1) * stride + window - first - after
        for (before, after, window, stride), first in zip(sizes, pads, strict=True)
    ]
    dimensions = len(sizes)
    y = op.build(
        "ConvTranspose",
        channels_first(x, dimensions),
        filters,
        bias,
        strides=tuple(size[3] for size in sizes),
        dilations=tuple(dilations or [1] * dimensions),
        pads=(*pads, *(max(end, 0) for end in ends)),
        output_padding=tuple(max(-end, 0) for end in ends),
    )
    return channels_last(y, dimensions)


def _output_sizes(op: Operation) -> Sequence[int]:
    """The shape of the output, which is input 0. Only a run may know the batch, which is not used:
    Keras packs the batch of the input with constants.
    """
    index = op.operator.inputs[0]
    if op.constant(0) is None and index not in op.graph.inputs:
        packs = [o for o in op.graph.operators if o.name == "PACK" and index in o.outputs]
        packed = [[op.values.get(i) for i in pack.inputs] for pack in packs]
        shapes = [[int(v) if isinstance(v, np.ndarray) else -1 for v in vs] for vs in packed]
        for shape in (*shapes, op.output().shape):
            if len(shape) > 2 and min(shape[1:-1]) >= 0:
                return shape
    return op.integers(0, "the shape of the output")


def _cut_off(sizes: Sequence[tuple[int, int, int, int]], number: int) -> list[int]:
    """The elements that are cut off before the output: the padding of the convolution from the
    output to the input.
    """
    if number != SAME:
        return [0] * len(sizes)
    return [
        padding_total(size, -(-size // stride), stride, window) // 2
        for _, size, window, stride in sizes
    ]


def _gradient(
    op: Operation, order: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
) -> Value:
    """The gradient of a convolution for its input. The operator's inputs are the shape of the
    result, the filters and the gradient of the output. `order` brings the filters to [I, O, ...].
    """
    windows = [
        (op.size(1, axis, "the size of the filters") - 1) * dilation + 1
        for axis, dilation in zip(order[2:], dilations, strict=True)
    ]
    outputs = _output_sizes(op)
    sizes = [
        (op.size(2, d + 1, "the size of the input"), outputs[d + 1], windows[d], strides[d])
        for d in range(len(strides))
    ]
    return transposed_convolution(
        op,
        op.input(2),
        op.read(1, order),
        op.bias(3, 2, 1),
        sizes=sizes,
        pads=_cut_off(sizes, op.options.Padding),
        dilations=dilations,
    )


def _transposed_convolution_2d(op: Operation) -> Value:
    """A transposed convolution with filters [O, H, W, I]."""
    return _gradient(op, (3, 0, 1, 2), _strides(op.options), (1, 1))


def _transposed_convolution_3d(op: Operation) -> Value:
    """A transposed convolution over three dimensions, with filters [D, H, W, O, I]."""
    return _gradient(op, (4, 3, 0, 1, 2), *_steps_3d(op.options))


def pool(op: Operation, x: Value, name: str) -> Value:
    """A pool over windows of NHWC, as the options say."""
    options = op.options
    y = channels_first(x).op(
        name,
        kernel_shape=(options.FilterHeight, options.FilterWidth),
        strides=_strides(options),
        auto_pad=padding(options.Padding),
    )
    return channels_last(y)


def _average_pool(op: Operation) -> Value:
    """The mean of the elements of a window that are inside of the input."""
    return pool(op, op.input(0), "AveragePool")


def _l2_pool(op: Operation) -> Value:
    """The root of the mean of squares."""
    x = op.input(0)
    return pool(op, x * x, "AveragePool").op("Sqrt")


RESIZE_MODES = {
    (False, False): "asymmetric",
    (True, False): "align_corners",
    (False, True): "half_pixel",
}
"""ONNX's transformation of coordinates, by the options `AlignCorners` and `HalfPixelCenters`."""


def _resize(op: Operation, mode: str, **attributes: Any) -> Value:
    """Resize height and width to constant sizes, or to sizes of a run."""
    options = op.options
    transformation = RESIZE_MODES.get((bool(options.AlignCorners), bool(options.HalfPixelCenters)))
    if transformation is None:
        op.refuse("AlignCorners and HalfPixelCenters exclude each other")
    x, sizes = op.input(0), op.indices(1)
    batch, channels = op.shape(0)[0], op.shape(0)[3]
    if isinstance(sizes, tuple) and min(batch, channels) >= 0:
        shape: Operand = (batch, *sizes, channels)
    else:
        whole, middle = x.op("Shape"), op.input(1).cast(DType.int64)
        shape = op.build("Concat", whole.slice(0, 1, 0), middle, whole.slice(3, 4, 0), axis=0)
    return op.build(
        "Resize",
        x,
        None,
        None,
        shape,
        mode=mode,
        coordinate_transformation_mode=transformation,
        **attributes,
    )


def _resize_bilinear(op: Operation) -> Value:
    return _resize(op, "linear")


def _resize_nearest(op: Operation) -> Value:
    """Take the nearest element. TensorFlow rounds a position down, but half up if corners are
    aligned. The half of `HalfPixelCenters` is in the position that is rounded down.
    """
    options = op.options
    if options.HalfPixelCenters:
        return _nearest_to_centres(op)
    rounding = "round_prefer_ceil" if options.AlignCorners else "floor"
    return _resize(op, "nearest", nearest_mode=rounding)


def _nearest_to_centres(op: Operation) -> Value:
    """Resize to the element at floor((i + 0.5) · size / new size) along height and width."""
    sizes = op.integers(1, "the new size")
    x = op.input(0)
    for axis, new in enumerate(sizes, start=1):
        old = op.size(0, axis, "the size of the input")
        scale = np.float32(old) / np.float32(new)
        indices = np.floor((np.arange(new, dtype=np.float32) + np.float32(0.5)) * scale)
        x = x.op("Gather", np.minimum(indices, old - 1).astype(np.int64), axis=axis)
    return x


def _depth_to_space(op: Operation) -> Value:
    """Move channels into blocks of height and width."""
    block = op.options.BlockSize
    height, width, channels = (op.size(0, axis, "the size of the input") for axis in (1, 2, 3))
    inner = channels // block**2
    x = op.input(0).reshape(-1, height, width, block, block, inner).transpose(0, 1, 3, 2, 4, 5)
    return x.reshape(-1, height * block, width * block, inner)


def _space_to_depth(op: Operation) -> Value:
    """Move blocks of height and width into channels."""
    block = op.options.BlockSize
    height, width, channels = (op.size(0, axis, "the size of the input") for axis in (1, 2, 3))
    rows, columns = height // block, width // block
    x = op.input(0).reshape(-1, rows, block, columns, block, channels).transpose(0, 1, 3, 2, 4, 5)
    return x.reshape(-1, rows, columns, channels * block**2)


def _local_response(op: Operation) -> Value:
    """Normalise by the sum of squares of neighbouring channels."""
    options = op.options
    size = 2 * options.Radius + 1
    x = channels_first(op.input(0)).op(
        "LRN", size=size, alpha=options.Alpha * size, beta=options.Beta, bias=options.Bias
    )
    return channels_last(x)


ROWS = (
    Row("CONV_2D", _convolution),
    Row("DEPTHWISE_CONV_2D", _convolution),
    Row("CONV_3D", _convolution_3d),
    Row("TRANSPOSE_CONV", _transposed_convolution_2d),
    Row("CONV_3D_TRANSPOSE", _transposed_convolution_3d),
    Row("AVERAGE_POOL_2D", _average_pool),
    Row("MAX_POOL_2D", lambda op: pool(op, op.input(0), "MaxPool")),
    Row("L2_POOL_2D", _l2_pool),
    Row("RESIZE_BILINEAR", _resize_bilinear),
    Row("RESIZE_NEAREST_NEIGHBOR", _resize_nearest, moves=True),
    Row("DEPTH_TO_SPACE", _depth_to_space, moves=True),
    Row("SPACE_TO_DEPTH", _space_to_depth, moves=True),
    Row("LOCAL_RESPONSE_NORMALIZATION", _local_response),
)
"""The rows."""
