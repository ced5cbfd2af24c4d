"""Compute elementary functions in float64, and the general float32 power.

In: a scalar float64 expression. Out: arithmetic on Taylor series, within a few units in the last
place.

    pow(a, b)  =  exp(b · log(a)),   computed in float64 where the operands are float32
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable

from webmlc.core.dtypes import DType
from webmlc.core.expr import Bitcast, Cast, Const, Expr, call, select
from webmlc.target.wasm.approximations import polynomial

_EXP = tuple(1 / math.factorial(k) for k in range(14))
"""The Taylor coefficients of exp(r)."""
_ATANH = tuple(1 / (2 * k + 1) for k in range(12))
"""The Taylor coefficients of atanh(s)/s, in s²."""
_SIN = tuple((-1) ** k / math.factorial(2 * k + 1) for k in range(9))
"""The Taylor coefficients of sin(x)/x, in x²."""
_SINH = tuple(1 / math.factorial(2 * k + 1) for k in range(10))
"""The Taylor coefficients of sinh(x)/x, in x²."""
_COS = tuple((-1) ** k / math.factorial(2 * k) for k in range(9))
"""The Taylor coefficients of cos(x), in x²."""
_ATAN = (
    3.33333333333329318027e-01, -1.99999999998764832476e-01, 1.42857142725034663711e-01,
    -1.11111104054623557880e-01, 9.09088713343650656196e-02, -7.69187620504482999495e-02,
    6.66107313738753120669e-02, -5.83357013379057348645e-02, 4.97687799461593236017e-02,
    -3.65315727442169155270e-02, 1.62858201153657823623e-02,
)  # fmt: skip
"""(1 - atan(x)/x) / x², in x², on |x| <= 7/16 (fdlibm)."""
_ERF = tuple(
    2 / math.sqrt(math.pi) * (-1) ** k / (math.factorial(k) * (2 * k + 1)) for k in range(20)
)
"""The Taylor coefficients of erf(x)/x, in x²."""
_ERFC_MIDDLE, _ERFC_HALF = 11 / 24, 5 / 24
"""The middle of the interval of t in `_ERFC`, and half of its length."""
_ERFC = (
    -0.727492285352204, 0.2765835893613108, 0.010174695380207275, -0.0031116996673113346,
    -0.0004014712031337888, 9.560006231032334e-05, 1.604125724388289e-05, -4.5271446009041325e-06,
    -6.019475878217331e-07, 2.564178522845851e-07, 1.439076862353479e-08, -1.4579701936973403e-08,
    7.531782916645936e-10, 7.089720623442094e-10, -3.665502988855894e-10, -1.94344657326215e-11,
    1.613156392091983e-10, -1.9147256879430067e-13, -3.7528623483682934e-11,
)  # fmt: skip
"""log(erfc(x)·exp(x²)/t) for t = 2 / (2 + x), in (t - 11/24) · 24/5: a Chebyshev fit for x
in 1..6.
"""
_LN2_HIGH, _LN2_LOW = 0.6931471803691238, 1.9082149292705877e-10
_HALF_PI_HIGH, _HALF_PI_LOW = 1.5707963267341256, 6.077100506506192e-11
_SQRT_HALF_BITS = 0x3FE6A09E667F3BCD
"""The bits of sqrt(1/2)."""


def _const(value: float) -> Const:
    return Const(value, DType.float64)


def _integer(value: int) -> Const:
    return Const(value, DType.int64)


def exp(x: Expr) -> Expr:
    """e^x, with 2^n as two factors, so that results below the smallest normal number are
    right as well.
    """
    low, high = -745.14, 709.782712893384
    n = call("round", x * _const(1 / math.log(2)))
    r = x - n * _const(_LN2_HIGH) - n * _const(_LN2_LOW)
    whole = Cast(n, DType.int64)
    half = call("shift_right", whole, _integer(1))
    scaled = polynomial(r, _EXP) * _power_of_two(half) * _power_of_two(whole - half)
    small = select(call("lt", x, _const(low)), _const(0.0), scaled)
    return select(call("gt", x, _const(high)), _const(math.inf), small)


def _power_of_two(exponent: Expr) -> Expr:
    return Bitcast(call("shift_left", exponent + _integer(1023), _integer(52)), DType.float64)


def log(x: Expr) -> Expr:
    """The natural logarithm: -inf at 0, NaN below."""
    is_subnormal = call("lt", x, _const(sys.float_info.min))
    normal = select(is_subnormal, x * _const(2.0**54), x)
    offset = Bitcast(normal, DType.int64) - _integer(_SQRT_HALF_BITS)
    biased = Cast(call("shift_right", offset, _integer(52)), DType.float64)
    exponent = select(is_subnormal, biased - _const(54.0), biased)
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
    """The sine, `shift` quarters of a turn later. The reduced angle of a huge number has no correct
    digits: it is limited, so that the result is from -1 to 1.
    """
    n = call("round", x * _const(2 / math.pi))
    r = x - n * _const(_HALF_PI_HIGH) - n * _const(_HALF_PI_LOW)
    r = call("max", call("min", r, _const(math.pi / 4)), _const(-math.pi / 4))
    quadrant = Cast(n, DType.int64) + _integer(shift)
    t = r * r
    odd = call("ne", call("bit_and", quadrant, _integer(1)), _integer(0))
    magnitude = select(odd, polynomial(t, _COS), r * polynomial(t, _SIN))
    negative = call("ne", call("bit_and", quadrant, _integer(2)), _integer(0))
    return select(negative, call("neg", magnitude), magnitude)


def _sinh_series(x: Expr) -> Expr:
    """sinh(x) for |x| <= 1."""
    return x * polynomial(x * x, _SINH)


def _half_exp(x: Expr) -> Expr:
    """e^|x| / 2, which overflows only at a larger |x| than e^|x| does."""
    root = exp(call("abs", x) * _const(0.5))
    return root * _const(0.5) * root


def sinh(x: Expr) -> Expr:
    """The hyperbolic sine."""
    half = _half_exp(x)
    large = _with_sign_of(x, half - _const(0.25) / half)
    return select(call("lt", call("abs", x), _const(1.0)), _sinh_series(x), large)


def cosh(x: Expr) -> Expr:
    """The hyperbolic cosine."""
    half = _half_exp(x)
    return half + _const(0.25) / half


def tanh(x: Expr) -> Expr:
    """The hyperbolic tangent: s / sqrt(1 + s²) with s = sinh(x) where |x| < 1, else from
    e^(2|x|).
    """
    one, two = _const(1.0), _const(2.0)
    s = _sinh_series(x)
    small = s / call("sqrt", one + s * s)
    large = one - two / (exp(two * call("abs", x)) + one)
    return select(call("lt", call("abs", x), one), small, _with_sign_of(x, large))


def atan(x: Expr) -> Expr:
    """The arc tangent: atan((|x| - c) / (1 + c·|x|)) + atan(c), with the sign of x, for the nearest
    c of a few constants (fdlibm, s_atan.c).
    """
    a = call("abs", x)
    reduced: Expr = a
    base: Expr = _const(0.0)
    for above, c in ((7 / 16, 0.5), (11 / 16, 1.0), (19 / 16, 1.5)):
        beyond = call("gt", a, _const(above))
        reduced = select(beyond, (a - _const(c)) / (_const(1.0) + _const(c) * a), reduced)
        base = select(beyond, _const(math.atan(c)), base)
    large = call("gt", a, _const(39 / 16))
    reduced = select(large, _const(-1.0) / a, reduced)
    base = select(large, _const(math.pi / 2), base)
    t = reduced * reduced
    return _with_sign_of(x, base + (reduced - reduced * t * polynomial(t, _ATAN)))


def asin(x: Expr) -> Expr:
    """The arc sine, as an arc tangent; NaN outside [-1, 1]."""
    one = _const(1.0)
    return atan(x / call("sqrt", (one - x) * (one + x)))


def acos(x: Expr) -> Expr:
    """The arc cosine, as the arc tangent of half the angle; NaN outside [-1, 1]."""
    one = _const(1.0)
    return _const(2.0) * atan(call("sqrt", (one - x) / (one + x)))


def erf(x: Expr) -> Expr:
    """The error function. Below 1 it is the Taylor series. From 1 on it is 1 - t·exp(P(t) - x²)
    with t = 2 / (2 + |x|) (Numerical Recipes, 6.2.2).
    """
    a = call("min", call("abs", x), _const(6.0))
    t = _const(2.0) / (_const(2.0) + a)
    scaled = (t - _const(_ERFC_MIDDLE)) * _const(1 / _ERFC_HALF)
    large = _const(1.0) - t * exp(polynomial(scaled, _ERFC) - a * a)
    small = a * polynomial(a * a, _ERF)
    return _with_sign_of(x, select(call("lt", a, _const(1.0)), small, large))


def log1p(y: Expr) -> Expr:
    """log(1 + y) for y >= 0, accurate near 0 (Kahan)."""
    u = y + _const(1.0)
    exact = log(u) * (y / (u - _const(1.0)))
    infinite = call("eq", y, _const(math.inf))
    return select(call("eq", u, _const(1.0)), y, select(infinite, y, exact))


def asinh(x: Expr) -> Expr:
    """The inverse hyperbolic sine: log1p(|x| + x² / (1 + sqrt(1 + x²))), or log(2|x|) where x²
    would overflow.
    """
    a, square = call("abs", x), x * x
    middle = log1p(a + square / (_const(1.0) + call("sqrt", _const(1.0) + square)))
    large = log(a) + _const(math.log(2))
    return _with_sign_of(x, select(call("gt", a, _const(1e150)), large, middle))


def acosh(x: Expr) -> Expr:
    """The inverse hyperbolic cosine; NaN below 1."""
    y = x - _const(1.0)
    middle = log1p(y + call("sqrt", y * (x + _const(1.0))))
    result = select(call("gt", x, _const(1e150)), log(x) + _const(math.log(2)), middle)
    return select(call("lt", x, _const(1.0)), _const(math.nan), result)


def atanh(x: Expr) -> Expr:
    """The inverse hyperbolic tangent; NaN outside [-1, 1]."""
    a = call("abs", x)
    half = _const(0.5) * log1p(_const(2.0) * a / (_const(1.0) - a))
    return select(call("gt", a, _const(1.0)), _const(math.nan), _with_sign_of(x, half))


def _with_sign_of(x: Expr, magnitude: Expr) -> Expr:
    sign = Bitcast(x, DType.int64) & _integer(-(2**63))
    return Bitcast(Bitcast(magnitude, DType.int64) | sign, DType.float64)


APPROXIMATIONS: dict[str, Callable[[Expr], Expr]] = {
    "exp": exp,
    "log": log,
    "log1p": log1p,
    "sin": lambda x: _sin_cos(x, 0),
    "cos": lambda x: _sin_cos(x, 1),
    "tan": lambda x: _sin_cos(x, 0) / _sin_cos(x, 1),
    "sinh": sinh,
    "cosh": cosh,
    "tanh": tanh,
    "atan": atan,
    "asin": asin,
    "acos": acos,
    "erf": erf,
    "asinh": asinh,
    "acosh": acosh,
    "atanh": atanh,
}
"""The functions of one float64 argument."""


def power(a: Expr, b: Expr) -> Expr:
    """a^b as in C, computed in float64. A negative base gives a negative result for an odd integer
    b, and NaN for a fraction.
    """
    x, y = a.astype(DType.float64), b.astype(DType.float64)
    zero, one, infinity = _const(0.0), _const(1.0), _const(math.inf)
    size, half, whole = call("abs", x), y * _const(0.5), call("floor", y)
    magnitude = exp(y * log(size))
    is_odd = call("eq", whole, y) & call("ne", call("floor", half), half)
    result = select(is_odd, _with_sign_of(x, magnitude), magnitude)
    undefined = call("lt", x, zero) & call("ne", whole, y) & call("lt", size, infinity)
    result = select(undefined, _const(math.nan), result)
    unit = call("eq", size, one) & call("eq", call("abs", y), infinity)
    unit = unit | call("eq", x, one) | call("eq", y, zero)
    return select(unit, one, result).astype(a.dtype)
