"""Convolutions in ONNX's layout (batch, channels, spatial...).

If there is padding, a `pad` stage comes first. Then a reducing stage `conv` runs over input
channels and taps, or `depthwise` over the taps alone. A `bias` stage follows.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from webmlc.core.dtypes import DType
from webmlc.core.expr import Const, Expr, as_int, const, select
from webmlc.graph.compute import Tensor, compute, reduce
from webmlc.graph.ir import TensorType
from webmlc.graph.ops.linear_algebra import centred, rounded
from webmlc.graph.ops.operator import Context, Layout, NotSupportedError, Operator, case
from webmlc.graph.ops.shapes import ONE, ZERO, accumulator, all_of, canonical, check_shapes
from webmlc.graph.ops.windows import (
    AUTO_PAD,
    CHANNELS_FIRST,
    Groups,
    Windows,
    convolution,
    steps_of,
)


def kernel_of(context: Context) -> tuple[int, ...]:
    """The spatial shape of the kernel, taken from the weights."""
    sizes = tuple(as_int(d) for d in context.shape(1)[2:])
    kernel = tuple(s for s in sizes if s is not None)
    if len(kernel) != len(sizes):
        raise NotSupportedError("the kernel's shape is symbolic")
    if (attribute := tuple(context.attribute("kernel_shape", kernel))) != kernel:
        raise NotSupportedError(
            f"a kernel of shape {list(kernel)}, not {list(attribute)} as is said"
        )
    return kernel


def conv_type(context: Context) -> TensorType:
    """The type of a Conv of the first two inputs."""
    groups = context.count("group", 1)
    check_shapes(context, "batch groups*inputs ...", "groups*outputs inputs ...", groups=groups)
    sizes = Windows.of(context, kernel_of(context)).sizes
    return TensorType(context.dtype(0), (context.shape(0)[0], context.shape(1)[0], *sizes))


def _conv_bias_type(context: Context) -> TensorType:
    result = conv_type(context)
    check_shapes(context, "", "outputs inputs ...", "outputs")
    return result


def convolve(context: Context, x: Tensor, weights: Tensor, dtype: DType) -> Tensor:
    """The convolution without its bias, summed in `dtype`."""
    windows = Windows.of(context, kernel_of(context))
    groups = context.count("group", 1)
    padded = windows.pad(x, 0)
    outputs, inputs = weights.shape[:2]

    def term(read: Expr, o: Expr, i: Expr, taps: Sequence[Expr]) -> Expr:
        return read.astype(dtype) * weights[(o, i, *taps)].astype(dtype)

    if groups > 1 and inputs == ONE and outputs == x.shape[1]:

        def element(n: Expr, o: Expr, *axes: Expr) -> Expr:
            taps = axes[windows.rank :]
            read = padded[(n, o, *windows.positions(axes[: windows.rank], taps))]
            return term(read, o, ZERO, taps)

        shape, extents = (x.shape[0], outputs, *windows.sizes), [const(k) for k in windows.kernel]
        return reduce("depthwise", shape, extents, "add", element)
    per_group = Groups(groups, inputs, canonical(outputs // groups))
    return convolution(padded, windows, CHANNELS_FIRST, per_group, term)


def _conv(context: Context, x: Tensor, weights: Tensor, bias: Tensor | None = None) -> Tensor:
    return add_bias(convolve(context, x, weights, accumulator(x.dtype)), bias, x.dtype)


def add_bias(total: Tensor, bias: Tensor | None, dtype: DType) -> Tensor:
    """Add the bias, one number for each channel, if it is present."""
    if bias is None:
        return rounded(total, dtype)
    return compute(
        "bias",
        total.shape,
        lambda n, o, *i: (total[(n, o, *i)] + bias[o].astype(total.dtype)).astype(dtype),
    )


def _conv_integer_type(context: Context) -> TensorType:
    return TensorType(DType.int32, conv_type(context).shape)


def _conv_integer(
    context: Context,
    x: Tensor,
    weights: Tensor,
    x_zero: Tensor | None = None,
    w_zero: Tensor | None = None,
) -> Tensor:
    left, right = centred("x", x, x_zero, 1), centred("w", weights, w_zero, 0)
    return convolve(context, left, right, DType.int32)


def transposed_windows(context: Context) -> tuple[Windows, tuple[Expr, ...]]:
    """The windows of the convolution that this node transposes, and the output's spatial sizes."""
    kernel, inputs = kernel_of(context), context.shape(0)[2:]
    rank = len(inputs)
    strides, dilations = steps_of(context, kernel)
    output_padding = tuple(context.attribute("output_padding", (0,) * rank))
    full_sizes = [
        (size - 1) * s + p + (k - 1) * d + 1
        for size, s, p, k, d in zip(inputs, strides, output_padding, kernel, dilations, strict=True)
    ]
    mode = context.attribute("auto_pad", "NOTSET")
    output_shape = context.attribute("output_shape")
    sizes: list[Expr] = []
    begins: list[Expr] = []
    pads = context.attribute("pads") or (0,) * (2 * rank)
    for d in range(rank):
        if output_shape is None and mode not in ("SAME_UPPER", "SAME_LOWER"):
            begin, end = (0, 0) if mode == "VALID" else (pads[d], pads[rank + d])
            begins.append(const(begin))
            sizes.append(canonical(full_sizes[d] - begin - end))
            continue
        size = inputs[d] * strides[d] if output_shape is None else const(output_shape[-rank:][d])
        total_padding = canonical(full_sizes[d] - size)
        total_padding = (
            canonical(select(total_padding < 0, 0, total_padding))
            if as_int(total_padding) is None
            else total_padding
        )
        total_padding = (
            ZERO if (number := as_int(total_padding)) is not None and number < 0 else total_padding
        )
        half = canonical(total_padding // 2)
        begins.append(half if mode == "SAME_UPPER" else canonical(total_padding - half))
        sizes.append(canonical(size))
    windows = Windows(inputs, kernel, strides, dilations, tuple(begins), (0,) * rank, False)
    return windows, tuple(sizes)


def _transpose_type(context: Context) -> TensorType:
    groups = context.count("group", 1)
    signatures = ("batch groups*inputs ...", "groups*inputs outputs ...", "groups*outputs")
    check_shapes(context, *signatures, groups=groups)
    _, sizes = transposed_windows(context)
    channels = canonical(context.shape(1)[1] * groups)
    return TensorType(context.dtype(0), (context.shape(0)[0], channels, *sizes))


def _conv_transpose(
    context: Context, x: Tensor, weights: Tensor, bias: Tensor | None = None
) -> Tensor:
    """Compute a transposed convolution as a gather: output `y` reads, for tap `k`, the input at
    `(y + begin - k·dilation) / stride`.
    """
    windows, _ = transposed_windows(context)
    groups, rank = context.count("group", 1), windows.rank
    wide_dtype = accumulator(x.dtype)
    per_group_out, per_group_in = weights.shape[1], canonical(x.shape[1] // groups)

    def element(n: Expr, o: Expr, *axes: Expr) -> Expr:
        place, i, taps = axes[:rank], axes[rank], axes[rank + 1 :]
        source: list[Expr] = []
        conditions: list[Expr] = []
        for d in range(rank):
            stride, size = windows.strides[d], x.shape[2 + d]
            shifted = place[d] + windows.begins[d] - taps[d] * windows.dilations[d]
            source_index = shifted // stride
            is_tap = (source_index >= 0) & (source_index < size)
            conditions.append(is_tap & (shifted % stride).equals(0) if stride > 1 else is_tap)
            source.append(source_index)
        group, within = (ZERO, o) if groups == 1 else (o // per_group_out, o % per_group_out)
        channel = i if groups == 1 else group * per_group_in + i
        value = x[(n, channel, *source)].astype(wide_dtype) * weights[
            (channel, within, *taps)
        ].astype(wide_dtype)
        return select(all_of(conditions), value, Const(0, wide_dtype))

    extents = [per_group_in, *(const(k) for k in windows.kernel)]
    total = reduce("conv_transpose", context.outputs[0].shape, extents, "add", element)
    return add_bias(total, bias, x.dtype)


X, W = "float32[2, 4, 7, 6]", "float32[6, 4, 3, 3]"
DEPTHWISE = "float32[4, 1, 3, 3]"

_CONVOLUTION = Layout(form="convolution")

OPS: tuple[Operator, ...] = (
    Operator("Conv", _conv_bias_type, _conv, kind="contraction", layout=_CONVOLUTION,
             choices=AUTO_PAD, cases=(
        case(X, W), case(X, W, "float32[6]", pads=(1, 1, 1, 1)),
        case(X, W, pads=(0, 1, 2, 0), strides=(2, 2)), case(X, W, dilations=(2, 2), pads=(2,) * 4),
        case(X, "float32[6, 2, 3, 3]", group=2), case(X, DEPTHWISE, group=4, pads=(1,) * 4),
        case(X, W, auto_pad="SAME_UPPER", strides=(2, 2)), case(X, W, auto_pad="SAME_LOWER"),
        case("float32[1, 3, 9]", "float32[4, 3, 3]", pads=(1, 1)),
        case("float32[1, 2, 4, 4, 4]", "float32[3, 2, 2, 2, 2]"))),
    Operator("ConvInteger", _conv_integer_type, _conv_integer, kind="contraction",
             layout=_CONVOLUTION, choices=AUTO_PAD, cases=(
        case("uint8[1, 2, 5, 5] in 0..255", "uint8[3, 2, 3, 3] in 0..255", np.uint8(7),
             pads=(1,) * 4),
        case("uint8[1, 2, 5, 5] in 0..255", "int8[3, 2, 3, 3] in -99..99", np.uint8(7),
             np.int8(5)))),
    Operator("ConvTranspose", _transpose_type, _conv_transpose, kind="contraction",
             layout=Layout(form="transposed convolution"), choices=AUTO_PAD, cases=(
        case("float32[1, 2, 4, 5]", "float32[2, 3, 3, 3]"),
        case("float32[1, 2, 4, 5]", "float32[2, 3, 3, 3]", "float32[3]", strides=(2, 2),
             pads=(1,) * 4, output_padding=(1, 1)),
        case("float32[1, 2, 4, 5]", "float32[2, 3, 3, 3]", strides=(2, 2), output_shape=(8, 10)),
        case("float32[1, 4, 3, 3]", "float32[4, 2, 2, 2]", group=2, strides=(2, 2)),
        case("float32[1, 1, 3]", "float32[1, 2, 3]"))),
)  # fmt: skip
