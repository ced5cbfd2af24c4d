"""Write operators on the integers of quantised tensors, with the rounding of LiteRT.

In: an operator whose inputs and result are quantised. Out: the integers that LiteRT computes. In
LiteRT, XNNPACK computes ADD, SUB and MUL of bytes. TensorFlow Lite's own kernels compute int16, and
the operators that XNNPACK lacks. Real numbers would be rounded differently where a result lies in
the middle of two integers:

    ADD(x, y), int8   ->   (x · multiplier + y · multiplier + bias) >> shift

The arithmetic is that of XNNPACK's `qs8-vadd` and `qs8-vmul`, and of
`tensorflow/lite/kernels/internal/common.h` and `reference/hard_swish.h`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import floor, frexp
from typing import Any

import numpy as np

from webmlc.core.dtypes import DType
from webmlc.frontend.tflite.operation import Operation
from webmlc.frontend.tflite.operators.elementwise import clip, shift_right
from webmlc.frontend.tflite.operators.windows import (
    channels_first,
    channels_last,
    convolution_of,
    pool,
)
from webmlc.graph.builder import Value
from webmlc.graph.ir import Array

SUM_SCALES = (2.0**-10, 2.0**8)
"""The scales of an operand, relative to the result's, of XNNPACK's sums: from the first, and below
the second.
"""
PRODUCT_SCALES = (2.0**-16, 2.0**8)
"""The same for the scale of XNNPACK's products."""
CHANGE_SCALES = (2.0**-8, 2.0**7)
"""The scale of an operand, relative to the result's, that XNNPACK changes: from the first to the
second.
"""
SUM_BITS = 20
"""The bits behind the first bit of the larger multiplier of XNNPACK's sums."""
LIMITS: dict[int, tuple[float | None, float | None]] = {
    0: (None, None),
    1: (0, None),
    2: (-1, 1),
    3: (0, 6),
}
"""The least and the greatest real number of a fused activation, by its number in the schema."""

Product = Callable[[Value, np.uint8], Value]
"""Multiply bytes, less a zero point, by the weights."""


def limited(op: Operation, integers: Value) -> Value:
    """Integers within the range of the fused activation and of the result's type, as this type."""
    dtype = op.output().dtype
    assert dtype is not None
    scale, zero = op.unit(op.output())
    if op.activation not in LIMITS:
        op.refuse(f"the fused activation {op.activation} is not supported on integers")
    bounds: Any = np.iinfo(dtype.numpy)
    low, high = (
        limit if real is None else zero + _rounded(float(np.float32(real) / scale))
        for real, limit in zip(LIMITS[op.activation], (bounds.min, bounds.max), strict=True)
    )
    return clip(integers, max(low, bounds.min), min(high, bounds.max)).cast(dtype)


def _rounded(x: float) -> int:
    """The nearest integer; the integer farther from zero in the middle of two."""
    return int(np.copysign(floor(abs(x) + 0.5), x))


def fixed_point(real: float) -> tuple[int, int]:
    """A positive number as `multiplier · 2 ** (exponent - 31)`, with a multiplier of 31 bits."""
    fraction, exponent = frexp(real)
    multiplier = _rounded(fraction * 2**31)
    return (multiplier // 2, exponent + 1) if multiplier == 2**31 else (multiplier, exponent)


def rescaled(x: Value, real: float) -> Value:
    """Multiply int64 by a real number in fixed point: the product is rounded to whole numbers, and
    again after the shift by the exponent.
    """
    multiplier, exponent = fixed_point(real)
    product = shift_right(x * (multiplier << max(exponent, 0)) + 2**30, 31)
    if exponent >= 0:
        return product
    is_negative = product.op("Less", 0).cast(DType.int64)
    return shift_right(product + (1 << (-exponent - 1)) - is_negative, -exponent)


def add(op: Operation, sign: int = 1) -> Value:
    """Add the operands, or subtract the second. Middles are rounded up."""
    units = [op.unit(op.tensor(index)) for index in (0, 1)]
    unit, zero = op.unit(op.output())
    ratios = [scale / unit for scale, _ in units]
    if op.is_wide or not all(SUM_SCALES[0] <= ratio < SUM_SCALES[1] for ratio in ratios):
        return _add_in_fixed_point(op, sign)
    shift = SUM_BITS + 1 - frexp(max(ratios))[1]
    multipliers = [int(np.rint(np.ldexp(np.float64(ratio), shift))) for ratio in ratios]
    multipliers[1] *= sign
    bias = (1 << (shift - 1)) - sum(m * z for m, (_, z) in zip(multipliers, units, strict=True))
    x, y = (op.stored(index).cast(DType.int32) * multipliers[index] for index in (0, 1))
    return limited(op, shift_right(x + y + bias, shift) + zero)


def _add_in_fixed_point(op: Operation, sign: int) -> Value:
    """Add by TensorFlow Lite's kernel: in fixed point, after a shift to the left."""
    units = [op.unit(op.tensor(index)) for index in (0, 1)]
    unit, zero = op.unit(op.output())
    digits = 15 if op.is_wide else 20
    largest = 2 * float(max(scale for scale, _ in units))
    x, y = (
        rescaled((op.stored(index).cast(DType.int64) - z) * (1 << digits), float(scale) / largest)
        for index, (scale, z) in enumerate(units)
    )
    total = x + y if sign > 0 else x - y
    return limited(op, rescaled(total, largest / float((1 << digits) * unit)) + zero)


def subtract(op: Operation) -> Value:
    """Subtract the second operand."""
    return add(op, -1)


def multiply(op: Operation) -> Value:
    """Multiply the operands. XNNPACK rounds middles to even numbers."""
    units = [op.unit(op.tensor(index)) for index in (0, 1)]
    unit, zero = op.unit(op.output())
    scale = units[0][0] * units[1][0] / unit
    is_fixed = op.is_wide or not PRODUCT_SCALES[0] <= scale < PRODUCT_SCALES[1]
    dtype = DType.int64 if is_fixed else DType.int32
    x, y = (op.stored(index).cast(dtype) - z for index, (_, z) in enumerate(units))
    if is_fixed:
        return limited(op, rescaled(x * y, float(scale)) + zero)
    product = ((x * y).cast(DType.float32) * scale).op("Round")
    return limited(op, product.cast(DType.int32) + zero)


def requantise(op: Operation) -> Value:
    """Change the scale. XNNPACK's multiplier has 8 bits behind the point, and rounds middles up."""
    (unit, zero), (result_unit, result_zero) = op.unit(op.tensor(0)), op.unit(op.output())
    is_same = op.tensor(0).element == op.output().element and not op.is_wide
    if is_same and CHANGE_SCALES[0] <= unit / result_unit <= CHANGE_SCALES[1]:
        factor = int(np.rint(np.float32(256) * (unit / result_unit)))
        bias = (result_zero << 8) - factor * zero + (1 << 7)
        return limited(op, shift_right(op.stored(0).cast(DType.int32) * factor + bias, 8))
    x = op.stored(0).cast(DType.int64) - zero
    return limited(op, rescaled(x, float(unit) / float(result_unit)) + result_zero)


def average_pool(op: Operation) -> Value:
    """The means of windows of integers. Middles are rounded away from zero. The quarter of a step
    of the means exceeds the error of a float.
    """
    mean = pool(op, op.stored(0).cast(DType.float32), "AveragePool")
    margin = 0.25 / (op.options.FilterHeight * op.options.FilterWidth)
    magnitude = (mean.op("Abs") + np.float32(0.5 + margin)).op("Floor")
    return limited(op, (magnitude * mean.op("Sign")).cast(DType.int32))


def hard_swish(op: Operation) -> Value:
    """Look each byte up in a table of all results."""
    dtype = op.output().dtype
    assert dtype is not None
    bounds: Any = np.iinfo(dtype.numpy)
    if op.is_wide:
        op.refuse("it has no kernel for int16; convert with bytes, or with floats")
    table = _hard_swish_of(op, np.arange(bounds.min, bounds.max + 1, dtype=np.int64))
    results = op.build.constant(np.clip(table, bounds.min, bounds.max).astype(dtype.numpy))
    places = clip(op.stored(0).cast(DType.int32) - bounds.min, 0, 255)  # the range bounds the index
    return results.op("Gather", places, axis=0)


def _hard_swish_of(op: Operation, x: Array) -> Array:
    """The integers x · relu6(x + 3) / 6, in arithmetic of 16 bits. `gate` is relu6(x + 3) / 6."""
    (unit, zero), (result_unit, result_zero) = op.unit(op.tensor(0)), op.unit(op.output())
    fine_unit, fine = unit / np.float32(128), (x - zero) << 7
    scale, exponent = _in_16_bits(float(fine_unit / result_unit))
    slope, digits = _in_16_bits(float(fine_unit / (np.float32(3) / np.float32(32768))))
    gate = _saturated(fine << (digits - 1)) if digits > 0 else fine
    gate = _high_product(gate, slope)
    gate = _saturated(gate << 1) if digits > 0 else _divided(gate, -digits)
    gate = (gate + (1 << 15)) >> 1
    product = gate * _high_product(fine, scale)
    truncated = np.sign(product) * (np.abs(product) >> 15)
    return _divided(truncated, -exponent) + result_zero


def _in_16_bits(real: float) -> tuple[int, int]:
    """A positive number in fixed point whose multiplier has 15 bits."""
    multiplier, exponent = fixed_point(real)
    return min((multiplier + (1 << 15)) >> 16, 32767), exponent


def _high_product(x: Array, multiplier: int) -> Array:
    """The product of numbers of 16 bits, divided by 2 ** 15 and rounded."""
    return (x * multiplier + (1 << 14)) >> 15


def _saturated(x: Array) -> Array:
    """Numbers within the range of int16."""
    return np.clip(x, -32768, 32767)


def _divided(x: Array, digits: int) -> Array:
    """Divide by 2 ** digits. Middles are rounded away from zero."""
    rounded: Array = np.sign(x) * ((np.abs(x) + ((1 << digits) >> 1)) >> digits)
    return rounded


def _product_of_bytes(op: Operation, x: Value, multiply_bytes: Product) -> Value:
    """The int64 product of int16 and weights of bytes, as two products of bytes:
    x = 256 · (high - 128) + low.
    """
    wide = x.cast(DType.int32)
    low = wide.op("Mod", 256)
    high = (wide - low) / 256 + 128
    products = [
        multiply_bytes(part.cast(DType.uint8), np.uint8(zero)).cast(DType.int64)
        for part, zero in ((high, 128), (low, 0))
    ]
    return products[0] * 256 + products[1]


def _wide_result(op: Operation, sums: Value, tail: Sequence[int], bits: int) -> Value:
    """Add the bias to sums of int64, and scale them by multipliers of 15 or 31 bits. `tail` is the
    shape of a channel's parameters, in which the number of channels is -1.
    """
    quantisation = op.tensor(1).quantisation
    assert quantisation is not None
    unit, result_unit = float(op.unit(op.tensor(0))[0]), float(op.unit(op.output())[0])
    parts = _in_16_bits if bits == 15 else fixed_point
    pairs = [parts(unit * float(s) / result_unit) for s in quantisation.scales]
    factors, digits = (np.array(numbers).reshape(tail) for numbers in zip(*pairs, strict=True))
    bias = op.constant(2)
    if bias is not None:
        sums = sums + bias.astype(np.int64).reshape(tail)
    products = sums * factors + (np.int64(1) << (bits - 1 - digits))
    return shift_right(products, bits - digits)


def wide_convolution(op: Operation) -> Value:
    """A convolution of int16 with filters of bytes."""
    order, attributes = convolution_of(op)
    filters = op.stored(1).transpose(*order)
    x = channels_first(op.stored(0))
    sums = _product_of_bytes(
        op, x, lambda part, zero: op.build("ConvInteger", part, filters, zero, **attributes)
    )
    return limited(op, channels_last(_wide_result(op, sums, (-1, 1, 1), 15)))


def wide_product(op: Operation) -> Value:
    """Rows of int16, multiplied by the rows of a matrix of bytes."""
    options, width = op.options, op.size(1, 1, "the number of columns of the weights")
    is_matrix = op.rank(0) == 2 and op.shape(0)[-1] == width
    x = op.stored(0) if options.KeepNumDims or is_matrix else op.stored(0).reshape(-1, width)
    weights = op.stored(1).transpose(1, 0)
    sums = _product_of_bytes(
        op, x, lambda part, zero: op.build("MatMulInteger", part, weights, zero)
    )
    return limited(op, _wide_result(op, sums, (-1,), 31))


FORMS: Mapping[str, Callable[[Operation], Value]] = {
    "ADD": add,
    "SUB": subtract,
    "MUL": multiply,
    "AVERAGE_POOL_2D": average_pool,
    "HARD_SWISH": hard_swish,
    "QUANTIZE": requantise,
}
"""The operators on integers of one type, but QUANTIZE, which changes it."""
WIDE_FORMS: Mapping[str, Callable[[Operation], Value]] = {
    "CONV_2D": wide_convolution,
    "DEPTHWISE_CONV_2D": wide_convolution,
    "FULLY_CONNECTED": wide_product,
}
"""The products of int16 with weights of bytes."""


def integer_form(op: Operation) -> Callable[[Operation], Value] | None:
    """The form of an operator on integers; None if it has no such form, or if a tensor is not
    quantised. Only weights may have several scales.
    """
    operator = op.operator
    inputs, results = (
        [op.graph.tensors[i] for i in indices if i >= 0]
        for indices in (operator.inputs, operator.outputs)
    )
    maps, forms = [*inputs, *results], FORMS
    if operator.name in WIDE_FORMS:
        maps, forms = [inputs[0], *results], WIDE_FORMS
        if (inputs[0].element, inputs[1].element) != ("INT16", "INT8"):
            return None
    scales = {0 if t.quantisation is None else t.quantisation.scales.size for t in maps}
    elements = {t.element for t in maps}
    is_quantised = scales == {1} and elements <= {"INT8", "UINT8", "INT16"}
    is_uniform = len(elements) == 1 or operator.name == "QUANTIZE"
    return forms.get(operator.name) if is_quantised and is_uniform else None
