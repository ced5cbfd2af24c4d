"""Quantisation: y = saturate(round(x / scale) + zero point), x = (y - zero point) · scale.

There is one scale for a tensor, for each slice along an axis, or for each block of an axis.
Products of quantised tensors are summed in int32 and scaled once. So a QLinear operator becomes an
integer product and a QuantizeLinear with scale 1.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from webmlc.core.dtypes import DType
from webmlc.core.expr import Expr, as_int, call, maximum, minimum
from webmlc.graph.builder import Builder, Value
from webmlc.graph.compute import Tensor, compute
from webmlc.graph.ir import TensorType
from webmlc.graph.ops.cast import SATURATING, cast_to, named_type
from webmlc.graph.ops.linear_algebra import matmul_shape
from webmlc.graph.ops.operator import QUANTISED, Context, NotSupportedError, Operator, case
from webmlc.graph.ops.shapes import (
    ONE,
    ZERO,
    accumulator,
    aligned,
    canonical,
    check_shape,
    require,
    with_axis,
)

_F32 = DType.float32


def parameter(context: Context, x: Tensor, parameters: Tensor, index: Sequence[Expr]) -> Expr:
    """The scale or zero point that belongs to an element of `x`."""
    if all(n == ONE for n in parameters.shape):
        return parameters[(ZERO,) * parameters.rank]
    axis, block = context.axis(1), int(context.attribute("block_size", 0))
    if parameters.rank == 1 and not block:
        return parameters[aligned((index[axis],), parameters.shape, (x.shape[axis],))]
    if parameters.rank != x.rank:
        raise NotSupportedError(f"parameters of rank {parameters.rank} for a tensor of {x.rank}")
    count, size = as_int(parameters.shape[axis]), as_int(x.shape[axis])
    if not block:
        if count is None or size is None:
            raise NotSupportedError("block quantisation along a symbolic axis")
        block = -(-size // max(count, 1))
    if count is not None and size is not None and count != -(-size // block):
        raise NotSupportedError(f"{count} blocks of {block} elements for {size}")
    within = with_axis(x.shape, axis, parameters.shape[axis])
    place = with_axis(index, axis, index[axis] // block)
    return parameters[aligned(place, parameters.shape, within)]


def check_parameters(context: Context) -> None:
    """Check the scale (input 1) and the zero point (input 2).

    The scale is a single number, or has a number for each element of the axis or for each block.
    The zero point has the same shape.
    """
    x, scale = context.shape(0), context.shape(1)
    if context.has(2) and not all(n == ONE for n in (*scale, *context.shape(2))):
        check_shape(context, 2, scale)
    if all(n == ONE for n in scale):
        return
    axis = context.axis(1)
    block = int(context.attribute("block_size", 0))
    if len(scale) == 1:
        fits = require(context, "stretch", scale[0], x[axis])
    elif block and len(scale) == len(x):
        blocks = canonical((x[axis] + (block - 1)) // block)
        parameter_shape = with_axis(x, axis, blocks)
        fits = all(
            require(context, "equal", *pair) for pair in zip(scale, parameter_shape, strict=True)
        )
    else:
        return
    if not fits:
        raise NotSupportedError(f"scales of {context.type(1)} for axis {axis} of {context.type(0)}")


def saturated(x: Expr, dtype: DType) -> Expr:
    """Convert a rounded float to the nearest integer of `dtype`."""
    low, high = dtype.limits
    return maximum(minimum(x, float(high)), float(low)).astype(dtype)


def _quantize_type(context: Context) -> TensorType:
    dtype = context.dtype(2) if context.has(2) else DType.uint8
    if context.attribute("output_dtype", 0):
        output_dtype = named_type(context, "output_dtype")
        if context.has(2) and output_dtype is not dtype:
            raise NotSupportedError(f"output_dtype {output_dtype} with a zero point of {dtype}")
        dtype = output_dtype
    if dtype.bits > 16 or dtype in (DType.bool, DType.float16, DType.bfloat16):
        raise NotSupportedError(f"quantisation to {dtype}")
    check_parameters(context)
    return TensorType(dtype, context.shape(0))


def _precision(context: Context) -> DType:
    """The type in which x is divided by its scale: `precision`, or else the wider of their two
    types, or float32 for integers.
    """
    if context.attribute("precision", 0):
        return named_type(context, "precision")
    x, scale = context.dtype(0), context.dtype(1)
    wider = x if x == scale or (x.bits > scale.bits and x.is_float) else scale
    return wider if wider.is_float else DType.float32


def _quantize(context: Context, x: Tensor, scale: Tensor, zero: Tensor | None = None) -> Tensor:
    dtype, precision = context.outputs[0].dtype, _precision(context)
    saturate = bool(context.attribute("saturate", 1))
    wide_dtype = accumulator(precision)

    def element(*i: Expr) -> Expr:
        divisor = parameter(context, x, scale, i).astype(precision)
        quotient = x[i].astype(precision).astype(wide_dtype) / divisor.astype(wide_dtype)
        value = quotient.astype(precision).astype(wide_dtype)
        if dtype in SATURATING:  # their zero point is 0
            return cast_to(value, dtype, saturate)
        if dtype.is_integer:
            value = call("round", value)
        if zero is not None:
            value = value + parameter(context, x, zero, i).astype(wide_dtype)
        return saturated(value, dtype) if dtype.is_integer else value.astype(dtype)

    return compute("quantize", x.shape, element)


def _dequantize_type(context: Context) -> TensorType:
    check_parameters(context)
    dtype = context.dtype(1)
    if context.attribute("output_dtype", 0):
        dtype = named_type(context, "output_dtype")
    return TensorType(dtype, context.shape(0))


def _dequantize(context: Context, x: Tensor, scale: Tensor, zero: Tensor | None = None) -> Tensor:
    """Dequantise. The zero point of integers is subtracted in int32; small floats have none."""
    dtype = context.outputs[0].dtype
    wide_dtype = accumulator(dtype)

    def element(*i: Expr) -> Expr:
        value = x[i].astype(DType.int32 if x.dtype.is_integer else wide_dtype)
        if zero is not None and x.dtype.is_integer:
            value = value - parameter(context, x, zero, i).astype(DType.int32)
        factor = parameter(context, x, scale, i)
        return (value.astype(wide_dtype) * factor.astype(wide_dtype)).astype(dtype)

    return compute("dequantize", x.shape, element)


def requantise(
    build: Builder, sums: Value, scales: Sequence[Value], zero: Value, axis: int = 0
) -> Value:
    """Quantise int32 `sums` of products. The first two scales belong to the operands, the third to
    the result.

    Scales broadcast with the sums. A zero point with several elements runs along `axis`.
    """
    left, right, out = (scale.cast(_F32) for scale in scales)
    factor = left * right / out
    scaled = sums.cast(_F32) * factor
    return build("QuantizeLinear", scaled, build.constant(1.0, _F32), zero, axis=axis)


def as_column(build: Builder, context: Context, index: int) -> Value:
    """A parameter of the rows as a column. A single number stays as it is."""
    value = build.inputs[index]
    is_vector = context.rank(index) == 1 and context.shape(index)[0] != ONE
    return value.unsqueeze(1) if is_vector else value


def _qlinear_matmul(context: Context, build: Builder) -> Value:
    left, _, left_zero, right, right_scale, right_zero, _, zero = build.inputs
    sums = build("MatMulInteger", left, right, left_zero, right_zero)
    scales = (as_column(build, context, 1), right_scale, as_column(build, context, 6))
    rows = len(matmul_shape(context, context.shape(0), context.shape(3))) - 2
    return requantise(build, sums, scales, zero, max(rows, 0))


def _qlinear_conv(context: Context, build: Builder) -> Value:
    x, x_scale, x_zero, w, w_scale, w_zero, y_scale, zero = build.inputs[:8]
    sums = build("ConvInteger", x, w, x_zero, w_zero, **context.node.attributes)
    per_channel = (-1,) + (1,) * (context.rank(0) - 2)
    if context.has(8):
        sums = sums + build.inputs[8].reshape(*per_channel)
    scales = (x_scale, w_scale.reshape(*per_channel), y_scale)
    return requantise(build, sums, scales, zero)


def _dynamic_quantize(context: Context, build: Builder) -> tuple[Value, ...]:
    """Divide the range of x, extended to 0, into 255 steps. If all elements are zero, a step
    is 1.
    """
    (x,) = build.inputs
    low = build("Min", build("ReduceMin", x, keepdims=0), 0)
    high = build("Max", build("ReduceMax", x, keepdims=0), 0)
    step = (high - low) / 255
    scale = build("Equal", step, 0).where(1, step)
    shift = build("Clip", -(low / scale), 0, 255)
    point = build("Round", shift).cast(DType.uint8)
    return (
        build("QuantizeLinear", x, scale, point),
        build("Identity", scale),
        build("Identity", point),
    )


X = "float32[2, 3, 4] in -40..40"

OPS: tuple[Operator, ...] = (
    Operator("QuantizeLinear", _quantize_type, _quantize, kind="broadcast",
             layout=QUANTISED, cases=(
        case(X, np.float32(0.5), np.uint8(128)), case(X, np.float32(0.5), np.int8(3)),
        case(X, np.array([0.5, 1, 2], np.float32), np.array([1, 2, 3], np.uint8)),
        case(X, np.float32(2)), case(X, np.float32(2), output_dtype=17),
        case(X, np.float32(2), output_dtype=19, saturate=0),
        case(X, np.float32(8), output_dtype=22),
        case("float16[2, 3] in -4..4", np.float16(0.3), np.uint8(9)))),
    Operator("DequantizeLinear", _dequantize_type, _dequantize, kind="broadcast",
             layout=QUANTISED, cases=(
        case("uint8[2, 3, 4] in 0..255", np.float32(0.5), np.uint8(128)),
        case("int8[2, 3, 4] in -99..99", np.array([0.5, 1, 2], np.float32), np.zeros(3, np.int8)),
        case("float8_e4m3fn[2, 3] in -4..4", np.float32(0.5)),
        case("int4[2, 3, 4] in -8..7", np.float32(0.5), output_dtype=10))),
    Operator("QLinearMatMul", expand=_qlinear_matmul, cases=(
        case("uint8[2, 3] in 0..255", np.float32(0.01), np.uint8(113), "uint8[3, 4] in 0..255",
             np.float32(0.02), np.uint8(114), np.float32(0.1), np.uint8(118)),
        case("uint8[2, 3] in 0..255", np.float16(0.01), np.uint8(113), "uint8[3, 4] in 0..255",
             np.float16(0.02), np.uint8(114), np.float16(0.1), np.uint8(118)))),
    Operator("QLinearConv", expand=_qlinear_conv, cases=(
        case("uint8[1, 2, 5, 5] in 0..255", np.float32(0.01), np.uint8(113),
             "uint8[3, 2, 3, 3] in 0..255", np.float32(0.02), np.uint8(114), np.float32(0.1),
             np.uint8(118), pads=(1, 1, 1, 1)),
        case("uint8[1, 2, 5, 5] in 0..255", np.float32(0.01), np.uint8(113),
             "uint8[3, 2, 3, 3] in 0..255", np.float32(0.02), np.uint8(114), np.float32(0.1),
             np.uint8(118), "int32[3] in -9999..9999"))),
    Operator("DynamicQuantizeLinear", expand=_dynamic_quantize, cases=(
        case("float32[3, 4]", outputs=3), case("float32[5] in 1..3", outputs=3),
        case("float32[5] in -3..-1", outputs=3))),
)  # fmt: skip
