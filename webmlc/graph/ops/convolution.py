"""Convolutions, in ONNX's own layout (batch, channels, spatial...).

One `pad` stage where padding is not zero, one reducing stage `conv` over input channels and taps
(`depthwise` over the taps alone), one `bias` stage.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from webmlc.core.dtypes import DType
from webmlc.core.expr import Const, Expr, as_int, const, select
from webmlc.graph.compute import Tensor, compute, reduce
from webmlc.graph.ir import TensorType
from webmlc.graph.ops.contract import centred, rounded
from webmlc.graph.ops.nhwc import Layout
from webmlc.graph.ops.operator import Context, NotSupportedError, Operator, case
from webmlc.graph.ops.shapes import ONE, ZERO, accumulator, canonical, check_shapes, given
from webmlc.graph.ops.windows import Windows

Inputs = tuple[Tensor | None, ...]


def kernel_of(context: Context) -> tuple[int, ...]:
    """The kernel's spatial shape, from the weights."""
    sizes = tuple(as_int(d) for d in context.shape(1)[2:])
    known = tuple(s for s in sizes if s is not None)
    if len(known) != len(sizes):
        raise NotSupportedError("the kernel's shape is symbolic")
    if (said := tuple(context.attribute("kernel_shape", known))) != known:
        raise NotSupportedError(f"a kernel of shape {list(known)}, not {list(said)} as is said")
    return known


def conv_type(context: Context) -> tuple[TensorType, ...]:
    """The type of a Conv of the first two inputs."""
    groups = context.count("group", 1)
    check_shapes(context, "batch groups*inputs ...", "groups*outputs inputs ...", groups=groups)
    sizes = Windows.of(context, kernel_of(context)).sizes
    return (TensorType(context.dtype(0), (context.shape(0)[0], context.shape(1)[0], *sizes)),)


def _conv_bias_type(context: Context) -> tuple[TensorType, ...]:
    result = conv_type(context)
    check_shapes(context, "", "outputs inputs ...", "outputs")
    return result


def convolve(context: Context, x: Tensor, weights: Tensor, dtype: DType) -> Tensor:
    """The convolution itself, summed in `dtype`."""
    windows = Windows.of(context, kernel_of(context))
    groups = context.count("group", 1)
    padded = windows.pad(x, 0)
    outputs, inputs = weights.shape[:2]
    shape = (x.shape[0], outputs, *windows.sizes)
    taps = [const(k) for k in windows.kernel]
    rank = windows.rank

    def product(n: Expr, source: Expr, o: Expr, i: Expr, rest: Sequence[Expr]) -> Expr:
        place = windows.positions(rest[:rank], rest[rank:])
        value = padded[(n, source, *place)].astype(dtype)
        return value * weights[(o, i, *rest[rank:])].astype(dtype)

    if groups > 1 and inputs == ONE and outputs == x.shape[1]:
        return reduce(
            "depthwise", shape, taps, "add", lambda n, o, *rest: product(n, o, o, ZERO, rest)
        )
    per_group = canonical(outputs // groups)

    def element(n: Expr, o: Expr, *rest: Expr) -> Expr:
        place, i, window = rest[:rank], rest[rank], rest[rank + 1 :]
        source = i if groups == 1 else o // per_group * inputs + i
        return product(n, source, o, i, (*place, *window))

    return reduce("conv", shape, [inputs, *taps], "add", element)


def _conv(context: Context, inputs: Inputs) -> tuple[Tensor, ...]:
    x, weights = given(inputs, 0), given(inputs, 1)
    total = convolve(context, x, weights, accumulator(x.dtype))
    return (add_bias(total, inputs, x.dtype),)


def add_bias(total: Tensor, inputs: Inputs, dtype: DType) -> Tensor:
    """Input 2, one number a channel, where it is given."""
    bias = inputs[2] if len(inputs) > 2 else None
    if bias is None:
        return rounded(total, dtype)
    return compute(
        "bias",
        total.shape,
        lambda n, o, *i: (total[(n, o, *i)] + bias[o].astype(total.dtype)).astype(dtype),
    )


def _conv_integer_type(context: Context) -> tuple[TensorType, ...]:
    return (TensorType(DType.int32, conv_type(context)[0].shape),)


def _conv_integer(context: Context, inputs: Inputs) -> tuple[Tensor, ...]:
    x = centred("x", given(inputs, 0), inputs[2] if len(inputs) > 2 else None, 1)
    weights = centred("w", given(inputs, 1), inputs[3] if len(inputs) > 3 else None, 0)
    return (convolve(context, x, weights, DType.int32),)


def transposed_windows(context: Context) -> tuple[Windows, tuple[Expr, ...]]:
    """The windows of the convolution that this one transposes, and the output's spatial sizes."""
    kernel, inputs = kernel_of(context), context.shape(0)[2:]
    rank = len(inputs)
    strides = tuple(context.attribute("strides", (1,) * rank))
    dilations = tuple(context.attribute("dilations", (1,) * rank))
    extra = tuple(context.attribute("output_padding", (0,) * rank))
    full = [
        (size - 1) * s + p + (k - 1) * d + 1
        for size, s, p, k, d in zip(inputs, strides, extra, kernel, dilations, strict=True)
    ]
    mode = context.attribute("auto_pad", "NOTSET")
    wanted = context.attribute("output_shape")
    sizes: list[Expr] = []
    begins: list[Expr] = []
    pads = context.attribute("pads") or (0,) * (2 * rank)
    for d in range(rank):
        if wanted is None and mode not in ("SAME_UPPER", "SAME_LOWER"):
            begin, end = (0, 0) if mode == "VALID" else (pads[d], pads[rank + d])
            begins.append(const(begin))
            sizes.append(canonical(full[d] - begin - end))
            continue
        size = inputs[d] * strides[d] if wanted is None else const(wanted[-rank:][d])
        total = canonical(full[d] - size)
        total = canonical(select(total < 0, 0, total)) if as_int(total) is None else total
        total = ZERO if (number := as_int(total)) is not None and number < 0 else total
        half = canonical(total // 2)
        begins.append(half if mode == "SAME_UPPER" else canonical(total - half))
        sizes.append(canonical(size))
    windows = Windows(inputs, kernel, strides, dilations, tuple(begins), (0,) * rank, False)
    return windows, tuple(sizes)


def _transpose_type(context: Context) -> tuple[TensorType, ...]:
    groups = context.count("group", 1)
    signatures = ("batch groups*inputs ...", "groups*inputs outputs ...", "groups*outputs")
    check_shapes(context, *signatures, groups=groups)
    _, sizes = transposed_windows(context)
    channels = canonical(context.shape(1)[1] * groups)
    return (TensorType(context.dtype(0), (context.shape(0)[0], channels, *sizes)),)


def _conv_transpose(context: Context, inputs: Inputs) -> tuple[Tensor, ...]:
    """As a gather: output `y` takes tap `k` from input `(y + begin - k·dilation) / stride`."""
    x, weights = given(inputs, 0), given(inputs, 1)
    windows, _ = transposed_windows(context)
    groups, rank = context.count("group", 1), windows.rank
    wide = accumulator(x.dtype)
    per_group_out, per_group_in = weights.shape[1], canonical(x.shape[1] // groups)

    def element(n: Expr, o: Expr, *rest: Expr) -> Expr:
        place, i, taps = rest[:rank], rest[rank], rest[rank + 1 :]
        inside: Expr | None = None
        source: list[Expr] = []
        for d in range(rank):
            stride, size = windows.strides[d], x.shape[2 + d]
            shifted = place[d] + windows.begins[d] - taps[d] * windows.dilations[d]
            at = shifted // stride
            here = (at >= 0) & (at < size)
            if stride > 1:
                here = here & (shifted % stride).equals(0)
            inside = here if inside is None else inside & here
            source.append(at)
        group, within = (ZERO, o) if groups == 1 else (o // per_group_out, o % per_group_out)
        channel = i if groups == 1 else group * per_group_in + i
        value = x[(n, channel, *source)].astype(wide) * weights[(channel, within, *taps)].astype(
            wide
        )
        return value if inside is None else select(inside, value, Const(0, wide))

    extents = [per_group_in, *(const(k) for k in windows.kernel)]
    total = reduce("conv_transpose", context.outputs[0].shape, extents, "add", element)
    return (add_bias(total, inputs, x.dtype),)


X, W = "float32[2, 4, 7, 6]", "float32[6, 4, 3, 3]"
DEPTHWISE = "float32[4, 1, 3, 3]"

_CONVOLUTION = Layout(form="convolution")

OPS: tuple[Operator, ...] = (
    Operator("Conv", _conv_bias_type, _conv, kind="contraction", layout=_CONVOLUTION, cases=(
        case(X, W), case(X, W, "float32[6]", pads=(1, 1, 1, 1)),
        case(X, W, pads=(0, 1, 2, 0), strides=(2, 2)), case(X, W, dilations=(2, 2), pads=(2,) * 4),
        case(X, "float32[6, 2, 3, 3]", group=2), case(X, DEPTHWISE, group=4, pads=(1,) * 4),
        case(X, W, auto_pad="SAME_UPPER", strides=(2, 2)), case(X, W, auto_pad="SAME_LOWER"),
        case("float32[1, 3, 9]", "float32[4, 3, 3]", pads=(1, 1)),
        case("float32[1, 2, 4, 4, 4]", "float32[3, 2, 2, 2, 2]"))),
    Operator("ConvInteger", _conv_integer_type, _conv_integer, kind="contraction",
             layout=_CONVOLUTION, cases=(
        case("uint8[1, 2, 5, 5] in 0..255", "uint8[3, 2, 3, 3] in 0..255", np.uint8(7),
             pads=(1,) * 4),
        case("uint8[1, 2, 5, 5] in 0..255", "int8[3, 2, 3, 3] in -99..99", np.uint8(7),
             np.int8(5)))),
    Operator("ConvTranspose", _transpose_type, _conv_transpose, kind="contraction",
             layout=Layout(form="transposed convolution"), cases=(
        case("float32[1, 2, 4, 5]", "float32[2, 3, 3, 3]"),
        case("float32[1, 2, 4, 5]", "float32[2, 3, 3, 3]", "float32[3]", strides=(2, 2),
             pads=(1,) * 4, output_padding=(1, 1)),
        case("float32[1, 2, 4, 5]", "float32[2, 3, 3, 3]", strides=(2, 2), output_shape=(8, 10)),
        case("float32[1, 4, 3, 3]", "float32[4, 2, 2, 2]", group=2, strides=(2, 2)),
        case("float32[1, 1, 3]", "float32[1, 2, 3]"))),
)  # fmt: skip
