"""Rows of operators that compute each element by itself: arithmetic, comparisons, activations."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from webmlc.core.dtypes import DType
from webmlc.frontend.tflite.operation import Operation, Row
from webmlc.graph.builder import Value
from webmlc.graph.ir import Array


def _unary(name: str, write: Callable[[Value], Value]) -> Row:
    """The row of an operator of one input."""
    return Row(name, lambda op: write(op.input(0)))


def _binary(name: str, write: Callable[[Value, Value], Value]) -> Row:
    """The row of an operator of two inputs that are broadcast."""
    return Row(name, lambda op: write(op.input(0), op.input(1)))


def _divide(op: Operation) -> Value:
    """Divide. Integers are rounded towards zero, as in C and in ONNX."""
    return op.input(0) / op.input(1)


def floor_quotient(x: Value, y: Value) -> Value:
    """The quotient, rounded towards minus infinity."""
    if x.type.dtype.is_float:
        return (x / y).op("Floor")
    return (x - x.op("Mod", y)) / y  # the remainder has the sign of the divisor


def floor_remainder(x: Value, y: Value) -> Value:
    """The remainder with the sign of the divisor."""
    if not x.type.dtype.is_float:
        return x.op("Mod", y)
    remainder = x.op("Mod", y, fmod=1)
    is_other_sign = remainder.op("Less", 0.0).op("Xor", y.op("Less", 0.0))
    is_moved = remainder.op("Equal", 0.0).op("Not") & is_other_sign
    return is_moved.where(remainder + y, remainder)


def _gelu(op: Operation) -> Value:
    is_approximate = op.options.Approximate
    return op.input(0).op("Gelu", approximate="tanh" if is_approximate else "none")


def _leaky_relu(op: Operation) -> Value:
    return op.input(0).op("LeakyRelu", alpha=op.options.Alpha)


def _prelu(op: Operation) -> Value:
    """PReLU. The slopes are broadcast to the input, as in ONNX."""
    return op.build("PRelu", op.input(0), op.input(1))


def clip(x: Value, low: float, high: float) -> Value:
    """The value between two limits, which have its element type."""
    numpy_type = x.type.dtype.numpy
    return x.op("Clip", numpy_type.type(low), numpy_type.type(high))


def _atan2(y: Value, x: Value) -> Value:
    """The angle of a point, from the arc tangent of its slope."""
    half = np.float64(np.pi).astype(x.type.dtype.numpy)
    angle = (y / x).op("Atan")
    is_left, is_below = x.op("Less", 0.0), y.op("Less", 0.0)
    turned = is_left.where(is_below.where(angle - half, angle + half), angle)
    quarter = y.op("Sign") * (half / 2)
    return x.op("Equal", 0.0).where(quarter, turned)


def _add_n(op: Operation) -> Value:
    total, *addends = op.inputs()
    for addend in addends:
        total = total + addend
    return total


def _cast(op: Operation) -> Value:
    """Cast. LiteRT casts the integers of a quantised tensor, not its real numbers."""
    dtype = op.output().dtype
    if dtype is None:
        op.refuse(f"casts to {op.output().element} are not supported")
    return op.stored(0).cast(dtype)


def _select(op: Operation) -> Value:
    """Elements of two tensors. A vector as the condition of SELECT chooses whole rows."""
    condition = op.input(0)
    rank = op.rank(1)
    if op.operator.name == "SELECT" and op.rank(0) == 1 and rank > 1:
        condition = condition.reshape(-1, *[1] * (rank - 1))
    return op.build("Where", condition, op.input(1), op.input(2))


def _square(x: Value) -> Value:
    return x * x


def _squared_difference(x: Value, y: Value) -> Value:
    return _square(x - y)


def shift_right(x: Value, y: Value | Array | int) -> Value:
    """Shift right, and keep the sign. ONNX shifts unsigned numbers only, so the complement of a
    negative number is shifted: ~(~x >> y), where ~x is -x - 1.
    """
    dtype = x.type.dtype
    if not np.issubdtype(dtype.numpy, np.signedinteger):
        return x.op("BitShift", y, direction="RIGHT")
    unsigned = DType.of(np.dtype(f"uint{8 * dtype.numpy.itemsize}"))
    is_negative = x.op("Less", 0)
    magnitude = is_negative.where(x.op("BitwiseNot"), x).cast(unsigned)
    digits = y.cast(unsigned) if isinstance(y, Value) else np.asarray(y, unsigned.numpy)
    shifted = magnitude.op("BitShift", digits, direction="RIGHT").cast(dtype)
    return is_negative.where(shifted.op("BitwiseNot"), shifted)


def _fake_quant(op: Operation) -> Value:
    """Round to the values that integers with these limits can have, as in TensorFlow."""
    options = op.options
    low, high = np.float32(options.Min), np.float32(options.Max)
    first = np.float32(1 if options.NarrowRange else 0)
    last = np.float32(2**options.NumBits - 1)
    scale = (high - low) / (last - first)
    zero = np.float32(np.clip(np.round(first - low / scale), first, last))
    low, high = (first - zero) * scale, (last - zero) * scale
    steps = (op.input(0).op("Clip", low, high) - low) * (np.float32(1) / scale)
    return (steps + np.float32(0.5)).op("Floor") * scale + low


ACTIVATIONS: Mapping[int, Callable[[Value], Value]] = {
    1: lambda x: x.op("Relu"),
    2: lambda x: clip(x, -1, 1),
    3: lambda x: clip(x, 0, 6),
    4: lambda x: x.op("Tanh"),
}
"""The fused activations by their numbers in the schema (`ActivationFunctionType`)."""


ROWS = (
    _unary("ABS", lambda x: x.op("Abs")),
    _unary("CEIL", lambda x: x.op("Ceil")),
    _unary("COS", lambda x: x.op("Cos")),
    _unary("ELU", lambda x: x.op("Elu")),
    _unary("EXP", lambda x: x.op("Exp")),
    _unary("FLOOR", lambda x: x.op("Floor")),
    Row("GELU", _gelu),
    _unary("HARD_SWISH", lambda x: x.op("HardSwish")),
    Row("LEAKY_RELU", _leaky_relu),
    _unary("LOG", lambda x: x.op("Log")),
    _unary("LOGICAL_NOT", lambda x: x.op("Not")),
    _unary("LOGISTIC", lambda x: x.op("Sigmoid")),
    _unary("NEG", lambda x: -x),
    Row("PRELU", _prelu),
    _unary("RELU", lambda x: x.op("Relu")),
    _unary("RELU6", lambda x: clip(x, 0, 6)),
    _unary("RELU_0_TO_1", lambda x: clip(x, 0, 1)),
    _unary("RELU_N1_TO_1", lambda x: clip(x, -1, 1)),
    _unary("ROUND", lambda x: x.op("Round")),
    _unary("RSQRT", lambda x: x.op("Sqrt").op("Reciprocal")),
    _unary("SIGN", lambda x: x.op("Sign")),
    _unary("SIN", lambda x: x.op("Sin")),
    _unary("SQRT", lambda x: x.op("Sqrt")),
    _unary("SQUARE", _square),
    _unary("TANH", lambda x: x.op("Tanh")),
    _binary("ADD", lambda x, y: x + y),
    _binary("SUB", lambda x, y: x - y),
    _binary("MUL", lambda x, y: x * y),
    Row("DIV", _divide),
    _binary("FLOOR_DIV", floor_quotient),
    _binary("FLOOR_MOD", floor_remainder),
    _binary("MAXIMUM", lambda x, y: x.op("Max", y)),
    _binary("MINIMUM", lambda x, y: x.op("Min", y)),
    _binary("POW", lambda x, y: x.op("Pow", y)),
    _binary("SQUARED_DIFFERENCE", _squared_difference),
    _binary("ATAN2", _atan2),
    _binary("BITWISE_XOR", lambda x, y: x.op("BitwiseXor", y)),
    _binary("RIGHT_SHIFT", shift_right),
    _binary("EQUAL", lambda x, y: x.op("Equal", y)),
    _binary("NOT_EQUAL", lambda x, y: x.op("Equal", y).op("Not")),
    _binary("LESS", lambda x, y: x.op("Less", y)),
    _binary("LESS_EQUAL", lambda x, y: x.op("LessOrEqual", y)),
    _binary("GREATER", lambda x, y: x.op("Greater", y)),
    _binary("GREATER_EQUAL", lambda x, y: x.op("GreaterOrEqual", y)),
    _binary("LOGICAL_AND", lambda x, y: x.op("And", y)),
    _binary("LOGICAL_OR", lambda x, y: x.op("Or", y)),
    Row("ADD_N", _add_n),
    Row("CAST", _cast),
    Row("SELECT", _select),
    Row("SELECT_V2", _select),
    Row("FAKE_QUANT", _fake_quant),
)
"""The rows."""
