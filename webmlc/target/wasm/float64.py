"""Elementary functions in float64: scalars only, from Taylor series; also the general float32
power.

In: a float64 expression. Out: arithmetic, within a few units in the last place.

    pow(a, b)  =  exp(b · log(a)),   computed in float64 where the operands are float32
"""

from __future__ import annotations

import math
from collections.abc import Callable

from webmlc.core.dtypes import DType
from webmlc.core.expr import Bitcast, Call, Cast, Const, Expr, call, literal, select
from webmlc.target.wasm.approximations import polynomial

_EXP = tuple(1 / math.factorial(k) for k in range(14))
_ATANH = tuple(1 / (2 * k + 1) for k in range(12))
_SIN = tuple((-1) ** k / math.factorial(2 * k + 1) for k in range(9))
_COS = tuple((-1) ** k / math.factorial(2 * k) for k in range(9))
_LN2_HIGH, _LN2_LOW = 0.6931471803691238, 1.9082149292705877e-10
_HALF_PI_HIGH, _HALF_PI_LOW = 1.5707963267341256, 6.077100506506192e-11
_SQRT_HALF_BITS = 0x3FE6A09E667F3BCD


def _const(value: float) -> Const:
    return Const(value, DType.float64)


def _integer(value: int) -> Const:
    return Const(value, DType.int64)


def exp(x: Expr) -> Expr:
    """e^x: 0 below the smallest normal, infinity past the largest."""
    low, high = -708.39, 709.782712893384
    n = call("round", x * _const(1 / math.log(2)))
    r = x - n * _const(_LN2_HIGH) - n * _const(_LN2_LOW)
    exponent = call("shift_left", Cast(n, DType.int64), _integer(52))
    scaled = Bitcast(Bitcast(polynomial(r, _EXP), DType.int64) + exponent, DType.float64)
    small = select(call("lt", x, _const(low)), _const(0.0), scaled)
    return select(call("gt", x, _const(high)), _const(math.inf), small)


def log(x: Expr) -> Expr:
    """The natural logarithm of a normal number: -inf at 0, NaN below."""
    offset = Bitcast(x, DType.int64) - _integer(_SQRT_HALF_BITS)
    exponent = Cast(call("shift_right", offset, _integer(52)), DType.float64)
    mantissa = call("bit_and", offset, _integer((1 << 52) - 1)) + _integer(_SQRT_HALF_BITS)
    m = Bitcast(mantissa, DType.float64)
    s = (m - _const(1.0)) / (m + _const(1.0))
    t = s * s
    result = exponent * _const(_LN2_HIGH) + (
        exponent * _const(_LN2_LOW) + _const(2.0) * s * polynomial(t, _ATANH)
    )
    result = select(call("eq", x, _const(math.inf)), x, result)
    result = select(call("gt", x, _const(0.0)), result, _const(math.nan))
    return select(call("eq", x, _const(0.0)), _const(-math.inf), result)


def _sin_cos(x: Expr, shift: int) -> Expr:
    n = call("round", x * _const(2 / math.pi))
    r = x - n * _const(_HALF_PI_HIGH) - n * _const(_HALF_PI_LOW)
    quadrant = Cast(n, DType.int64) + _integer(shift)
    t = r * r
    odd = call("ne", call("bit_and", quadrant, _integer(1)), _integer(0))
    magnitude = select(odd, polynomial(t, _COS), r * polynomial(t, _SIN))
    negative = call("ne", call("bit_and", quadrant, _integer(2)), _integer(0))
    return select(negative, call("neg", magnitude), magnitude)


def tanh(x: Expr) -> Expr:
    """The hyperbolic tangent, by e^(-2|x|); near 0 the error is relative to 1."""
    e = exp(_const(-2.0) * call("abs", x))
    positive = (_const(1.0) - e) / (_const(1.0) + e)
    return select(call("lt", x, _const(0.0)), call("neg", positive), positive)


APPROXIMATIONS: dict[str, Callable[[Expr], Expr]] = {
    "exp": exp,
    "log": log,
    "sin": lambda x: _sin_cos(x, 0),
    "cos": lambda x: _sin_cos(x, 1),
    "tan": lambda x: _sin_cos(x, 0) / _sin_cos(x, 1),
    "sinh": lambda x: (exp(x) - exp(call("neg", x))) * _const(0.5),
    "cosh": lambda x: (exp(x) + exp(call("neg", x))) * _const(0.5),
    "tanh": tanh,
}
"""The functions of one float64 argument."""


def power(a: Expr, b: Expr) -> Expr:
    """a^b as numpy's: in float64, the sign by whether b is an odd integer, NaN for a negative base
    else.
    """
    x, y = a.astype(DType.float64), b.astype(DType.float64)
    magnitude = exp(y * log(call("abs", x)))
    half = y * _const(0.5)
    is_integer = call("eq", call("floor", y), y)
    is_odd = is_integer & call("ne", call("floor", half), half)
    negative = select(is_odd, call("neg", magnitude), magnitude)
    negative = select(is_integer, negative, _const(math.nan))
    result = select(call("lt", x, _const(0.0)), negative, magnitude)
    one = call("eq", x, _const(1.0)) | call("eq", y, _const(0.0))
    return select(one, _const(1.0), result).astype(a.dtype)


def integer_power(a: Expr, exponent: int) -> Expr:
    """a^exponent for a small non-negative exponent, by repeated squaring."""
    result: Expr | None = None
    square = a
    while exponent:
        if exponent & 1:
            result = square if result is None else Call("mul", (result, square), a.dtype)
        square = Call("mul", (square, square), a.dtype)
        exponent >>= 1
    return literal(1.0, a) if result is None else result
