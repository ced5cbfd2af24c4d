"""Elementwise operators: an output element depends on the elements at the same position of the
(broadcast) inputs.

>>> next(row for row in OPS if row.name == "Relu").kind
'elementwise'
"""

from __future__ import annotations

import keyword
import math
from collections.abc import Callable
from dataclasses import replace
from functools import reduce

import numpy as np

from webmlc.core.dtypes import DType
from webmlc.core.expr import Const, Expr, call, const, maximum, minimum, select
from webmlc.graph.builder import Builder
from webmlc.graph.compute import Tensor
from webmlc.graph.ir import TensorType
from webmlc.graph.ops.operator import (
    Case,
    Context,
    Layout,
    NotSupportedError,
    Operator,
    Result,
    case,
    same_type,
)
from webmlc.graph.ops.shapes import accumulator, broadcast, check_stretches, pointwise, present

Body = Callable[..., Expr]
ContextBody = Callable[[Context], Body]
Choices = tuple[str, ...]

LARGEST_PRODUCT = 16
"""The largest constant exponent of an integer that is written as products. Chosen by hand: it takes
at most seven products.
"""

X = "float32[3, 4]"
POSITIVE = "float32[3, 4] in 0.1..4"
UNIT = "float32[3, 4] in -0.9..0.9"
PAIRS = (case(X, X), case("float32[2, 3, 4]", "float32[4]"), case("float32[3, 1]", "float32[1, 4]"))
BOOLS = (case("bool[3, 4]", "bool[3, 4]"), case("bool[2, 3]", "bool[3]"))
INTEGERS = (case("int64[3, 4] in -9..9", "int64[4] in 1..9"),)


def bool_like(context: Context) -> TensorType:
    """Booleans in the shape of input 0."""
    return TensorType(DType.bool, context.shape(0))


def broadcast_type(context: Context) -> TensorType:
    """Input 0's dtype in the common shape of all inputs."""
    shapes = [context.shape(i) for i in range(len(context.node.inputs)) if context.has(i)]
    return TensorType(context.dtype(0), broadcast(context, *shapes))


def broadcast_bool(context: Context) -> TensorType:
    """Booleans in the common shape of all inputs."""
    return TensorType(DType.bool, broadcast_type(context).shape)


def in_float32(body: Body) -> Body:
    """The body that computes half-precision numbers in float32 and rounds them once at the end."""

    def wide_body(*x: Expr) -> Expr:
        narrow_dtype = next((v.dtype for v in x if accumulator(v.dtype) != v.dtype), None)
        if narrow_dtype is None:
            return body(*x)
        value = body(*(v.astype(DType.float32) if v.dtype is narrow_dtype else v for v in x))
        return value.astype(narrow_dtype) if value.dtype is DType.float32 else value

    return wide_body


def stage_name(operator: str) -> str:
    """The name of an operator's stage. `And`, `Or` and `Not` get a prefix: they are Python
    keywords.
    """
    name = operator.lower()
    return f"logical_{name}" if keyword.iskeyword(name) else name


def _unary(name: str, body: Body, *cases: Case, infer: object = same_type) -> Operator:
    """A row of one input; `body` computes the element."""
    return _unary_with(name, lambda _: body, *(cases or (case(X),)), infer=infer)


def _unary_with(
    name: str, body: ContextBody, *cases: Case, infer: object = same_type, **choices: Choices
) -> Operator:
    """A row of one input whose body needs attributes. `choices` are the texts of attributes."""

    def meaning(context: Context, x: Tensor) -> Tensor:
        return pointwise(context, stage_name(name), (x,), in_float32(body(context)))

    assert callable(infer)
    return Operator(name, infer, meaning, kind="elementwise", cases=cases, choices=choices)


def _binary(name: str, body: Body, *cases: Case, infer: object = broadcast_type) -> Operator:
    """A row of two inputs, broadcast."""
    return _broadcast_with(name, lambda _: body, *(cases or PAIRS), infer=infer)


def _broadcast_with(
    name: str, body: ContextBody, *cases: Case, infer: object = broadcast_type, **choices: Choices
) -> Operator:
    """A row of several inputs, broadcast, whose body needs attributes. `choices` are the texts of
    attributes.
    """

    def meaning(context: Context, *inputs: Tensor) -> Tensor:
        return pointwise(context, stage_name(name), inputs, in_float32(body(context)))

    assert callable(infer)
    return Operator(name, infer, meaning, kind="broadcast", cases=cases, choices=choices)


def _scalar(op: str) -> Body:
    return lambda *x: call(op, *x)


def _comparison(name: str, op: str, *cases: Case) -> Operator:
    return _binary(name, _scalar(op), *PAIRS, *INTEGERS, *cases, infer=broadcast_bool)


def sigmoid(x: Expr) -> Expr:
    """1 / (1 + exp(-x))."""
    return 1 / (call("exp", -x) + 1)


def tanh(x: Expr) -> Expr:
    """The hyperbolic tangent."""
    return call("tanh", x)


def softplus(x: Expr) -> Expr:
    """log(1 + exp(x)), without overflow."""
    return maximum(x, 0.0) + call("log1p", call("exp", -call("abs", x)))


def _error_function(x: Expr) -> Expr:
    """The error function. ONNX accepted integers until opset 12. For integers the result is
    truncated: 0, or ±1 where float32 rounds it to ±1.
    """
    if x.dtype.is_float:
        return call("erf", x)
    negative = select(x <= -4, -1, Const(0, x.dtype)) if x.dtype.is_signed else Const(0, x.dtype)
    return select(x >= 4, 1, negative)


def _elu(context: Context) -> Body:
    alpha = context.attribute("alpha", 1.0)
    return lambda x: select(x < 0.0, (call("exp", x) - 1.0) * alpha, x)


def _celu(context: Context) -> Body:
    alpha = context.attribute("alpha", 1.0)
    if alpha == 0.0:
        raise NotSupportedError("alpha is 0, and Celu divides by it")
    return lambda x: maximum(x, 0.0) + minimum((call("exp", x / alpha) - 1.0) * alpha, 0.0)


def _selu(context: Context) -> Body:
    alpha = context.attribute("alpha", 1.67326319217681884765625)
    gamma = context.attribute("gamma", 1.05070102214813232421875)
    return lambda x: select(x > 0.0, x, (call("exp", x) - 1.0) * alpha) * gamma


def _leaky_relu(context: Context) -> Body:
    alpha = context.attribute("alpha", 0.01)
    return lambda x: select(x < 0.0, x * alpha, x)


def _thresholded_relu(context: Context) -> Body:
    alpha = context.attribute("alpha", 1.0)
    return lambda x: select(x > alpha, x, 0.0)


def _hard_sigmoid(context: Context) -> Body:
    alpha, beta = context.attribute("alpha", 0.2), context.attribute("beta", 0.5)
    return lambda x: maximum(minimum(x * alpha + beta, 1.0), 0.0)


def _shrink(context: Context) -> Body:
    limit, bias = context.attribute("lambd", 0.5), context.attribute("bias", 0.0)

    def body(x: Expr) -> Expr:
        dtype = x.dtype
        if not dtype.is_float:  # limit and bias may have fractions
            x = x.astype(DType.float32 if dtype.bits < 32 else DType.float64)
        low, high = (Const(v, x.dtype) for v in (-limit, limit))
        zero, shift = Const(0, x.dtype), Const(bias, x.dtype)
        return select(x < low, x + shift, select(x > high, x - shift, zero)).astype(dtype)

    return body


def _gelu(context: Context) -> Body:
    if context.attribute("approximate", "none") == "tanh":
        scale = 2 * math.sqrt(2 / math.pi)  # 1 + tanh(x) is 2 · sigmoid(2x)
        return lambda x: x * sigmoid((x + x * x * x * 0.044715) * scale)
    return lambda x: x * 0.5 * (call("erf", x * math.sqrt(0.5)) + 1.0)


def _same_values(context: Context, build: Builder) -> tuple[Result, ...] | None:
    """Expand the Identity of a sequence or an optional."""
    return (context.sequences[build.inputs[0]],) if context.holds_values(0) else None


def _swish(context: Context) -> Body:
    alpha = context.attribute("alpha", 1.0)
    return lambda x: x * sigmoid(x if alpha == 1.0 else x * alpha)


def _clip(
    context: Context, x: Tensor, low: Tensor | None = None, high: Tensor | None = None
) -> Tensor:
    """Clip. Its limits are attributes up to opset 10, and scalar inputs from opset 11."""

    def body(element: Expr, *limits: Expr) -> Expr:
        limit_of = dict(zip(filter(context.has, (1, 2)), limits, strict=True))
        for index, name, limited in ((1, "min", maximum), (2, "max", minimum)):
            number, array = context.attribute(name), context.constant(index)
            if number is None and array is not None:
                number = array.reshape(-1)[0].item()
            limit = limit_of.get(index) if number is None else Const(number, element.dtype)
            element = element if limit is None else limited(element, limit)
        return element

    return pointwise(context, "clip", present((x, low, high)), in_float32(body))


def _divide(a: Expr, b: Expr) -> Expr:
    """Divide. ONNX rounds the quotient of integers towards zero."""
    return a / b if a.dtype.is_float else call("truncdiv", a, b)


def _power(context: Context) -> Body:
    """Write small whole exponents as products. An integer with a float exponent is computed as a
    float, unless the exponent is a natural number: floats do not hold all powers.
    """
    array = context.constant(1)
    exponent = array.item() if array is not None and array.size == 1 else None

    def body(x: Expr, y: Expr) -> Expr:
        if exponent in (1, 2, 3):
            return reduce(lambda a, b: a * b, (x,) * int(exponent))
        if x.dtype.is_integer and exponent is not None and exponent in range(LARGEST_PRODUCT + 1):
            return _natural_power(x, int(exponent))
        if exponent == 0.5 and x.dtype.is_float:
            return call("sqrt", x)
        if exponent == -1 and x.dtype.is_float:
            return 1.0 / x
        if y.dtype.is_float and not x.dtype.is_float:
            is_natural = call("eq", call("floor", y), y) & (y >= 0)
            power = call("pow", x.astype(y.dtype), y).astype(x.dtype)
            return select(is_natural, call("pow", x, y.astype(x.dtype)), power)
        return call("pow", x, y.astype(x.dtype))

    return body


def _natural_power(x: Expr, exponent: int) -> Expr:
    """Write a power by repeated squaring."""
    result: Expr = Const(1, x.dtype)
    square = x
    for bit in range(exponent.bit_length()):
        square = square * square if bit else x
        if exponent >> bit & 1:
            result = result * square
    return result


def _modulo(context: Context) -> Body:
    return _scalar("truncmod" if context.attribute("fmod", 0) else "floormod")


def _bit_shift(context: Context) -> Body:
    """Shift. A shift by the width or more, or by a negative number, removes all bits."""
    left = context.attribute("direction") == "LEFT"
    width = context.dtype(0).bytes * 8

    def body(x: Expr, by: Expr) -> Expr:
        is_within_width = by < width if not by.dtype.is_signed else (by >= 0) & (by < width)
        zero, last = Const(0, x.dtype), Const(width - 1, by.dtype)
        if left:
            return select(
                is_within_width, call("shift_left", x, select(is_within_width, by, 0)), zero
            )
        return (
            call("shift_right", x, select(is_within_width, by, last))
            if x.dtype.is_signed
            else select(
                is_within_width, call("shift_right", x, select(is_within_width, by, 0)), zero
            )
        )

    return body


def _is_inf(context: Context) -> Body:
    negative = context.attribute("detect_negative", 1)
    positive = context.attribute("detect_positive", 1)
    if negative and positive:
        return _scalar("isinf")
    if not negative and not positive:
        return lambda x: const(False, DType.bool)
    return lambda x: call("isinf", x) & (x > 0.0 if positive else x < 0.0)


def _fold(op: str) -> ContextBody:
    return lambda _: lambda *x: reduce(lambda a, b: call(op, a, b), x)


def _mean(context: Context) -> Body:
    count = float(len(context.node.inputs))
    return lambda *x: reduce(lambda a, b: a + b, x) * (1 / count)


def _where_type(context: Context) -> TensorType:
    shape = broadcast(context, *(context.shape(i) for i in range(3)))
    return TensorType(context.dtype(1), shape)


def _prelu_type(context: Context) -> TensorType:
    """The type of x. Only the slope may be broadcast."""
    check_stretches(context, 1)
    return context.type(0)


_COMMON: dict[str, str] = {
    "Abs": "abs", "Ceil": "ceil", "Floor": "floor", "Round": "round", "Exp": "exp",
    "Sign": "sign", "Neg": "neg", "Sin": "sin", "Cos": "cos", "Tan": "tan", "Atan": "atan",
    "Sinh": "sinh", "Cosh": "cosh", "Tanh": "tanh", "Asinh": "asinh",
}  # fmt: skip

_UNARY = (
    *(_unary(name, _scalar(op)) for name, op in _COMMON.items()),
    _unary("Sqrt", _scalar("sqrt"), case(POSITIVE)),
    _unary("Log", _scalar("log"), case(POSITIVE)),
    _unary("Asin", _scalar("asin"), case(UNIT)),
    _unary("Acos", _scalar("acos"), case(UNIT)),
    _unary("Atanh", _scalar("atanh"), case(UNIT)),
    _unary("Acosh", _scalar("acosh"), case("float32[3, 4] in 1.1..4")),
    _unary("Erf", _error_function, case(X), case("int32[6] in -9..9", opset=9)),
    _unary("Reciprocal", lambda x: 1.0 / x, case(POSITIVE)),
    _unary("Relu", lambda x: maximum(x, 0), case(X), case("int32[5] in -4..4")),
    _unary("Sigmoid", sigmoid),
    _unary("Softplus", softplus),
    _unary("Softsign", lambda x: x / (call("abs", x) + 1.0)),
    _unary("HardSwish", lambda x: x * maximum(minimum(x * (1 / 6) + 0.5, 1.0), 0.0)),
    _unary("Mish", lambda x: x * tanh(softplus(x))),
    _unary("Not", lambda x: ~x, case("bool[3, 4]")),
    _unary("BitwiseNot", lambda x: ~x, case("int32[3, 4] in -99..99")),
    replace(_unary("Identity", lambda x: x, case(X), case("int64[3]")), expand=_same_values,
            layout=Layout(("broadcast",), is_view=True)),
    _unary("IsNaN", _scalar("isnan"), case([1.0, np.nan, np.inf]), infer=bool_like),
    _unary_with("IsInf", _is_inf, case([1, -np.inf, np.inf, np.nan]),
                case([1, -np.inf, np.inf], detect_negative=0), infer=bool_like),
    _unary_with("Elu", _elu, case(X), case(X, alpha=2.0)),
    _unary_with("Celu", _celu, case(X), case(X, alpha=2.0)),
    _unary_with("Selu", _selu, case(X), case(X, alpha=2.0, gamma=3.0)),
    _unary_with("LeakyRelu", _leaky_relu, case(X), case(X, alpha=0.2)),
    _unary_with("ThresholdedRelu", _thresholded_relu, case(X), case(X, alpha=0.2)),
    _unary_with("HardSigmoid", _hard_sigmoid, case(X), case(X, alpha=0.5, beta=0.6)),
    _unary_with("Shrink", _shrink, case(X), case(X, lambd=0.1, bias=0.2)),
    _unary_with("Gelu", _gelu, case(X), case(X, approximate="tanh"),
                approximate=("none", "tanh")),
    _unary_with("Swish", _swish, case(X), case(X, alpha=0.5)),
)  # fmt: skip

_BINARY = (
    _binary("Add", _scalar("add"), *PAIRS, *INTEGERS),
    _binary("Sub", _scalar("sub"), *PAIRS, *INTEGERS),
    _binary("Mul", _scalar("mul"), *PAIRS, *INTEGERS),
    _binary("Div", _divide, case(X, POSITIVE), *INTEGERS),
    _binary("And", _scalar("bit_and"), *BOOLS),
    _binary("Or", _scalar("bit_or"), *BOOLS),
    _binary("Xor", _scalar("bit_xor"), *BOOLS),
    _binary("BitwiseAnd", _scalar("bit_and"), *INTEGERS),
    _binary("BitwiseOr", _scalar("bit_or"), *INTEGERS),
    _binary("BitwiseXor", _scalar("bit_xor"), *INTEGERS),
    _comparison("Equal", "eq", case("bool[5]", "bool[5]")),
    _comparison("Less", "lt"),
    _comparison("LessOrEqual", "le"),
    _comparison("Greater", "gt"),
    _comparison("GreaterOrEqual", "ge"),
    _binary("PRelu", lambda x, slope: select(x < 0, x * slope, x),
            case("float32[2, 3, 4]", "float32[3, 1]"), infer=_prelu_type),
    _broadcast_with("Pow", _power, case(POSITIVE, X), case(X, np.float32(2)),
                    case("int32[4] in 1..5", np.float32(3)), case(POSITIVE, np.float32(0.5))),
    _broadcast_with("Mod", _modulo, *INTEGERS, case(X, POSITIVE, fmod=1),
                    case("int32[9] in -9..9", np.int32(4), fmod=1)),
    _broadcast_with("BitShift", _bit_shift,
                    case("uint32[5] in 0..99", "uint32[5] in 0..5", direction="LEFT"),
                    case("uint8[5] in 0..99", "uint8[5] in 0..5", direction="RIGHT"),
                    direction=("LEFT", "RIGHT")),
)  # fmt: skip

_VARIADIC_CASES = (case(X), case(X, X), case("float32[3, 1]", X, "float32[4]"))
_VARIADIC = (
    _broadcast_with("Max", _fold("max"), *_VARIADIC_CASES, *INTEGERS),
    _broadcast_with("Min", _fold("min"), *_VARIADIC_CASES, *INTEGERS),
    _broadcast_with("Sum", _fold("add"), *_VARIADIC_CASES),
    _broadcast_with("Mean", _mean, *_VARIADIC_CASES),
    _broadcast_with("Where", lambda _: select, case("bool[3, 4]", X, X),
                    case("bool[3, 1]", X, "float32[4]"), infer=_where_type),
)  # fmt: skip

OPS: tuple[Operator, ...] = (
    *_UNARY,
    *_BINARY,
    *_VARIADIC,
    Operator("Clip", same_type, _clip, kind="elementwise", cases=(
        case(X, np.float32(-0.5), np.float32(0.5)), case(X, None, np.float32(0.2)),
        case(X, min=-0.5, max=0.5, opset=10), case("int32[6] in -9..9", np.int32(-2)))),
)  # fmt: skip
