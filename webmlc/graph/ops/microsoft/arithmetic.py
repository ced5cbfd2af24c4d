"""Plain arithmetic of onnxruntime's own domain: complex numbers, Fourier transforms and integers.
Also the operators that ONNX dropped after its first versions, and that onnxruntime still reads.
"""

from __future__ import annotations

import numpy as np

from webmlc.core.dtypes import DType
from webmlc.graph.builder import Builder, Value
from webmlc.graph.ops.microsoft.rows import row
from webmlc.graph.ops.operator import Context, NotSupportedError, Operator, case
from webmlc.graph.ops.shapes import check_shapes


def _complex_product(context: Context, build: Builder) -> Value:
    """Multiply complex numbers, whose parts are the two elements of the last axis. ComplexMulConj
    takes the conjugate of the second operand.
    """
    for index in (0, 1):
        check_shapes(context, *[""] * index, "... 2")
    (a, b), (c, d) = (
        (x.slice(0, 1, rank - 1), x.slice(1, 2, rank - 1))
        for x, rank in zip(build.inputs, map(context.rank, (0, 1)), strict=True)
    )
    if context.node.op == "ComplexMulConj":
        d = -d
    return build("Concat", a * c - b * d, a * d + b * c, axis=-1)


def _fourier(context: Context, build: Builder) -> Value:
    """Expand Rfft and Irfft, transforms along the last axis of a real signal."""
    attribute = context.attribute
    if (
        attribute("signal_ndim", 1) != 1
        or attribute("normalized", 0)
        or not attribute("onesided", 1)
    ):
        raise NotSupportedError("a transform that is normalised, of two sides, or of several axes")
    rank, x = context.rank(0), build.inputs[0]
    if context.node.op == "Rfft":
        return build("DFT", x.unsqueeze(rank), None, np.int64(rank - 1), onesided=1)
    y = build("DFT", x, None, np.int64(rank - 2), inverse=1, onesided=1)
    return build("Squeeze", y, [rank - 1])


def _all_finite(context: Context, build: Builder) -> Value:
    """Tell if all elements of all inputs are finite, or if none is infinite, or if none is NaN."""
    only_infinite, only_nan = (context.attribute(n, 0) for n in ("isinf_only", "isnan_only"))
    counts = []
    for x in build.inputs:
        bad = x.op("IsInf") if only_infinite else x.op("IsNaN")
        if not only_infinite and not only_nan:
            bad = bad | x.op("IsInf")
        counts.append(bad.cast(DType.int32).op("ReduceSum", keepdims=0))
    return build("Sum", *(c.cast(DType.float32) for c in counts)).op("Equal", 0.0)


def _centred(build: Builder, index: int) -> Value:
    """An input as int32, less the zero point that the next input may hold."""
    value, zero = build.inputs[index].cast(DType.int32), build.optional(index + 1)
    return value if zero is None else value - zero.cast(DType.int32)


def _mul_integer(context: Context, build: Builder) -> Value:
    return _centred(build, 0) * _centred(build, 2)


def _matmul_16(context: Context, build: Builder) -> Value:
    dtype = DType.int32 if context.dtype(0).is_signed else DType.uint32
    a, b = (x.cast(dtype) for x in build.inputs)
    return a @ b


def _sum_integer(context: Context, build: Builder) -> Value:
    dtype = DType.int32 if context.dtype(0).is_signed else DType.uint32
    return build("ReduceSum", build.inputs[0].cast(dtype), **context.node.attributes)


# -- operators of ONNX's first versions ------------------------------------------------------------


def _affine(context: Context, build: Builder) -> Value:
    alpha, beta = float(context.attribute("alpha", 1.0)), float(context.attribute("beta", 0.0))
    return build.inputs[0] * alpha + beta


def _scaled_tanh(context: Context, build: Builder) -> Value:
    alpha, beta = float(context.attribute("alpha", 0.0)), float(context.attribute("beta", 0.0))
    return (build.inputs[0] * beta).op("Tanh") * alpha


def _parametric_softplus(context: Context, build: Builder) -> Value:
    alpha, beta = float(context.attribute("alpha", 0.0)), float(context.attribute("beta", 0.0))
    return (build.inputs[0] * beta).op("Softplus") * alpha


def _scale_image(context: Context, build: Builder) -> Value:
    """Scale an image [N, C, H, W], and add a bias to each channel."""
    bias = np.array(context.attribute("bias", ()), np.float32).reshape(-1, 1, 1)
    check_shapes(context, "batch channels height width", channels=len(bias))
    scaled = build.inputs[0] * float(context.attribute("scale", 1.0))
    return scaled + build.constant(bias, context.dtype(0))


def _crop_border(context: Context, build: Builder) -> Value:
    """Cut the borders (left, top, right, bottom) of an image, or cut a window of the size `scale`
    (height, width) at the left and top border.
    """
    check_shapes(context, "batch channels height width")
    left, top, right, bottom = (int(n) for n in context.attribute("border"))
    x, size = build.inputs[0], context.attribute("scale", None)
    if size is not None:
        height, width = (int(n) for n in size)
        return x.slice(top, top + height, 2).slice(left, left + width, 3)
    ends = x.op("Shape", start=2) - [bottom, right]
    return build("Slice", x, [top, left], ends, [2, 3])


def _dynamic_slice(context: Context, build: Builder) -> Value:
    return build("Slice", *build.inputs)


COMPLEX, X = "float32[2, 3, 2]", "float32[2, 3, 4]"
IMAGE = "float32[2, 3, 5, 6]"
FIRST = 9
"""An opset in which onnxruntime still has the operators of ONNX's first versions."""

OPS: tuple[Operator, ...] = (
    row("ComplexMul", 2, "", _complex_product, case(COMPLEX, COMPLEX),
        case(COMPLEX, "float32[3, 2]")),
    row("ComplexMulConj", 2, "", _complex_product, case(COMPLEX, COMPLEX)),
    row("Rfft", 1, "normalized onesided signal_ndim", _fourier,
        case("float32[2, 8]", signal_ndim=1, onesided=1, normalized=0)),
    row("Irfft", 1, "normalized onesided signal_ndim", _fourier,
        case("float32[3, 5, 2]", signal_ndim=1, onesided=1, normalized=0)),
    row("IsAllFinite", None, "isinf_only isnan_only", _all_finite, case(X, COMPLEX),
        case(X, np.array([1, np.nan], np.float32)),
        case(X, np.array([1, np.nan], np.float32), isinf_only=1),
        case(X, np.array([1, np.inf], np.float32), isnan_only=1)),
    row("MulInteger", 4, "", _mul_integer,
        case("uint8[2, 3] in 0..255", np.uint8(113), "uint8[3] in 0..255", np.uint8(9)),
        case("int8[2, 3] in -99..99", None, "int8[2, 1] in -99..99")),
    row("MatMulInteger16", 2, "", _matmul_16,
        case("int16[2, 3, 4] in -999..999", "int16[4, 5] in -999..999")),
    row("ReduceSumInteger", 1, "axes keepdims", _sum_integer,
        case("uint8[2, 3, 4] in 0..255", axes=(1,), keepdims=0),
        case("int8[2, 3, 4] in -99..99", axes=(0, 2), keepdims=1)),
    row("Affine", 1, "alpha beta", _affine, case(X, alpha=2.0, beta=-1.0, opset=FIRST), domain=""),
    row("Scale", 1, "scale", lambda c, build: build.inputs[0] * c.attribute("scale", 1.0),
        case(X, scale=0.3, opset=FIRST), domain=""),
    row("ScaledTanh", 1, "alpha beta", _scaled_tanh, case(X, alpha=2.0, beta=0.5, opset=FIRST),
        domain=""),
    row("ParametricSoftplus", 1, "alpha beta", _parametric_softplus,
        case(X, alpha=2.0, beta=0.5, opset=FIRST), domain=""),
    row("ImageScaler", 1, "bias scale", _scale_image,
        case(IMAGE, bias=(0.1, 0.2, 0.3), scale=2.0, opset=FIRST), domain=""),
    row("Crop", 1, "border scale", _crop_border, case(IMAGE, border=(1, 2, 0, 1), opset=FIRST),
        case(IMAGE, border=(1, 2, 0, 1), scale=(2, 3), opset=FIRST), domain=""),
    row("DynamicSlice", 4, "", _dynamic_slice,
        case(X, np.array([0, 1]), np.array([2, 1000]), np.array([1, 2]), opset=FIRST), domain=""),
)  # fmt: skip
