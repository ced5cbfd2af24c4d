"""Quantisation: y = saturate(round(x / scale) + zero point), x = (y - zero point) · scale.

Scales are one a tensor, one a slice along an axis, or one a block of an axis. Products of quantised
tensors sum in int32 and are scaled once.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from webmlc.core.dtypes import DType
from webmlc.core.expr import Expr, as_int, call, maximum, minimum
from webmlc.graph.compute import Tensor, compute
from webmlc.graph.ir import TensorType
from webmlc.graph.ops.cast import SATURATING, cast_to, named_type
from webmlc.graph.ops.contract import centred, matmul, matmul_shape
from webmlc.graph.ops.convolution import convolve, kernel_of
from webmlc.graph.ops.operator import Context, NotSupportedError, Operator, case
from webmlc.graph.ops.shapes import ONE, ZERO, accumulator, given
from webmlc.graph.ops.windows import Windows

Inputs = tuple[Tensor | None, ...]


def parameter(context: Context, x: Tensor, parameters: Tensor, index: Sequence[Expr]) -> Expr:
    """The scale or zero point that belongs to an element of `x`."""
    if all(n == ONE for n in parameters.shape):
        return parameters[(ZERO,) * parameters.rank]
    axis = context.axis(1)
    if parameters.rank == 1:
        return parameters[index[axis]]
    block = int(context.attribute("block_size", 0))
    if not block:
        count, size = as_int(parameters.shape[axis]), as_int(x.shape[axis])
        if count is None or size is None:
            raise NotSupportedError("block quantisation along a symbolic axis")
        block = -(-size // count)
    return parameters[tuple(v // block if d == axis else v for d, v in enumerate(index))]


def saturated(x: Expr, dtype: DType) -> Expr:
    """A rounded float as an integer of `dtype`, the nearest one it has."""
    low, high = dtype.limits
    return maximum(minimum(x, float(high)), float(low)).astype(dtype)


def _quantize_type(context: Context) -> tuple[TensorType, ...]:
    dtype = DType.uint8
    if context.has(2):
        dtype = context.dtype(2)
    elif context.attribute("output_dtype", 0):
        dtype = named_type(context, "output_dtype")
    if dtype.bits > 16 or dtype in (DType.bool, DType.float16, DType.bfloat16):
        raise NotSupportedError(f"quantisation to {dtype}")
    return (TensorType(dtype, context.shape(0)),)


def _precision(context: Context) -> DType:
    """The type that x is divided by its scale in: what `precision` says, else the wider one."""
    if context.attribute("precision", 0):
        return named_type(context, "precision")
    x, scale = context.dtype(0), context.dtype(1)
    return x if x == scale or (x.bits > scale.bits and x.is_float) else scale


def _quantize(context: Context, inputs: Inputs) -> tuple[Tensor, ...]:
    x, scale = given(inputs, 0), given(inputs, 1)
    zero = inputs[2] if len(inputs) > 2 else None
    dtype, precision = context.outputs[0].dtype, _precision(context)
    saturate = bool(context.attribute("saturate", 1))
    wide = accumulator(precision)

    def element(*i: Expr) -> Expr:
        by = parameter(context, x, scale, i).astype(precision)
        quotient = x[i].astype(precision).astype(wide) / by.astype(wide)
        value = quotient.astype(precision).astype(wide)
        if dtype in SATURATING:  # their zero point is 0
            return cast_to(value, dtype, saturate)
        if dtype.is_integer:
            value = call("round", value)
        if zero is not None:
            value = value + parameter(context, x, zero, i).astype(wide)
        return saturated(value, dtype) if dtype.is_integer else value.astype(dtype)

    return (compute("quantize", x.shape, element),)


def _dequantize_type(context: Context) -> tuple[TensorType, ...]:
    dtype = context.dtype(1)
    if context.attribute("output_dtype", 0):
        dtype = named_type(context, "output_dtype")
    return (TensorType(dtype, context.shape(0)),)


def _dequantize(context: Context, inputs: Inputs) -> tuple[Tensor, ...]:
    """Integers lose their zero point in int32; small floats have none."""
    x, scale = given(inputs, 0), given(inputs, 1)
    zero = inputs[2] if len(inputs) > 2 else None
    dtype = context.outputs[0].dtype
    wide = accumulator(dtype)

    def element(*i: Expr) -> Expr:
        value = x[i].astype(DType.int32 if x.dtype.is_integer else wide)
        if zero is not None and x.dtype.is_integer:
            value = value - parameter(context, x, zero, i).astype(DType.int32)
        by = parameter(context, x, scale, i)
        return (value.astype(wide) * by.astype(wide)).astype(dtype)

    return (compute("dequantize", x.shape, element),)


def _requantised(
    context: Context, total: Tensor, scales: tuple[Tensor, Tensor, Tensor], zero: Tensor, axes: int
) -> Tensor:
    """int32 sums to the output's type; the second scale may run along axis `axes`."""
    left, right, out = scales
    dtype = context.outputs[0].dtype

    def element(*i: Expr) -> Expr:
        row = left[_place(left, i, len(i) - 2)].astype(DType.float32)
        column = right[_place(right, i, axes)].astype(DType.float32)
        by = out[_place(out, i, len(i) - 2)].astype(DType.float32)
        value = call("round", total[i].astype(DType.float32) * (row * column / by))
        shift = zero[_place(zero, i, len(i) - 2)]
        return saturated(value + shift.astype(DType.float32), dtype)

    return compute("requantize", total.shape, element)


def _place(parameters: Tensor, index: Sequence[Expr], axis: int) -> tuple[Expr, ...]:
    """Where a product's scale lies: alone, along `axis`, or aligned with the last axes."""
    if all(n == ONE for n in parameters.shape):
        return (ZERO,) * parameters.rank
    if parameters.rank == 1:
        return (index[axis],)
    last = index[len(index) - parameters.rank :]
    return tuple(ZERO if n == ONE else v for n, v in zip(parameters.shape, last, strict=True))


def _qlinear_matmul_type(context: Context) -> tuple[TensorType, ...]:
    return (TensorType(context.dtype(7), matmul_shape(context.shape(0), context.shape(3))),)


def _qlinear_matmul(context: Context, inputs: Inputs) -> tuple[Tensor, ...]:
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = (given(inputs, i) for i in range(8))
    left = centred("a", a, a_zero, a.rank - 2)
    right = centred("b", b, b_zero, b.rank - 1)
    shape = context.outputs[0].shape
    total = matmul(left, right, shape, DType.int32)
    scales = (a_scale, b_scale, y_scale)
    return (_requantised(context, total, scales, y_zero, len(shape) - 1),)


def _as_convolution(context: Context) -> Context:
    """The same node with its data and weights as inputs 0 and 1."""
    return Context(context.node, (context.type(0), context.type(3)), outputs=context.outputs)


def _qlinear_conv_type(context: Context) -> tuple[TensorType, ...]:
    inner = _as_convolution(context)
    sizes = Windows.of(inner, kernel_of(inner)).sizes
    return (TensorType(context.dtype(7), (context.shape(0)[0], context.shape(3)[0], *sizes)),)


def _qlinear_conv(context: Context, inputs: Inputs) -> tuple[Tensor, ...]:
    x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero = (given(inputs, i) for i in range(8))
    bias = inputs[8] if len(inputs) > 8 else None
    data, weights = centred("x", x, x_zero, 1), centred("w", w, w_zero, 0)
    total = convolve(_as_convolution(context), data, weights, DType.int32)
    if bias is not None:
        plain = total
        total = compute("bias", plain.shape, lambda n, o, *i: plain[(n, o, *i)] + bias[o])
    return (_requantised(context, total, (x_scale, w_scale, y_scale), y_zero, 1),)


X = "float32[2, 3, 4] in -40..40"

OPS: tuple[Operator, ...] = (
    Operator("QuantizeLinear", _quantize_type, _quantize, kind="broadcast", cases=(
        case(X, np.float32(0.5), np.uint8(128)), case(X, np.float32(0.5), np.int8(3)),
        case(X, np.array([0.5, 1, 2], np.float32), np.array([1, 2, 3], np.uint8)),
        case(X, np.float32(2)), case(X, np.float32(2), output_dtype=17),
        case(X, np.float32(2), output_dtype=19, saturate=0),
        case(X, np.float32(8), output_dtype=22),
        case("float16[2, 3] in -4..4", np.float16(0.3), np.uint8(9)))),
    Operator("DequantizeLinear", _dequantize_type, _dequantize, kind="broadcast", cases=(
        case("uint8[2, 3, 4] in 0..255", np.float32(0.5), np.uint8(128)),
        case("int8[2, 3, 4] in -99..99", np.array([0.5, 1, 2], np.float32), np.zeros(3, np.int8)),
        case("float8_e4m3fn[2, 3] in -4..4", np.float32(0.5)),
        case("int4[2, 3, 4] in -8..7", np.float32(0.5), output_dtype=10))),
    Operator("QLinearMatMul", _qlinear_matmul_type, _qlinear_matmul, kind="contraction", cases=(
        case("uint8[2, 3] in 0..255", np.float32(0.01), np.uint8(113), "uint8[3, 4] in 0..255",
             np.float32(0.02), np.uint8(114), np.float32(0.1), np.uint8(118)),)),
    Operator("QLinearConv", _qlinear_conv_type, _qlinear_conv, kind="contraction", cases=(
        case("uint8[1, 2, 5, 5] in 0..255", np.float32(0.01), np.uint8(113),
             "uint8[3, 2, 3, 3] in 0..255", np.float32(0.02), np.uint8(114), np.float32(0.1),
             np.uint8(118), pads=(1, 1, 1, 1)),)),
)  # fmt: skip
