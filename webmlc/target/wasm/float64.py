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
from webmlc.core.expr import Bitcast, Cast, Expr, call, literal, select
from webmlc.target.wasm.approximations import Elementary, polynomial, where_defined, with_sign

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


def exp(x: Expr) -> Expr:
    """e^x, with 2^n as two factors, so that results below the smallest normal number are
    right as well.
    """
    low, high = -745.14, 709.782712893384
    n = call("round", x * (1 / math.log(2)))
    r = x - n * _LN2_HIGH - n * _LN2_LOW
    whole = Cast(n, DType.int64)
    half = call("shift_right", whole, 1)
    scaled = polynomial(r, _EXP) * _power_of_two(half) * _power_of_two(whole - half)
    small = select(x < low, 0.0, scaled)
    return select(x > high, math.inf, small)


def _power_of_two(exponent: Expr) -> Expr:
    return Bitcast(call("shift_left", exponent + 1023, 52), DType.float64)


def log(x: Expr) -> Expr:
    """The natural logarithm: -inf at 0, NaN below."""
    is_subnormal = x < sys.float_info.min
    normal = select(is_subnormal, x * 2.0**54, x)
    offset = Bitcast(normal, DType.int64) - _SQRT_HALF_BITS
    biased = Cast(call("shift_right", offset, 52), DType.float64)
    exponent = select(is_subnormal, biased - 54.0, biased)
    m = Bitcast((offset & (1 << 52) - 1) + _SQRT_HALF_BITS, DType.float64)
    s = (m - 1.0) / (m + 1.0)
    tail = exponent * _LN2_LOW + 2.0 * s * polynomial(s * s, _ATANH)
    return where_defined(x, exponent * _LN2_HIGH + tail)


def _sin_cos(x: Expr, shift: int) -> Expr:
    """The sine, `shift` quarters of a turn later. The reduced angle of a huge number has no correct
    digits: it is limited, so that the result is from -1 to 1.
    """
    n = call("round", x * (2 / math.pi))
    r = x - n * _HALF_PI_HIGH - n * _HALF_PI_LOW
    r = call("max", call("min", r, math.pi / 4), -math.pi / 4)
    quadrant = Cast(n, DType.int64) + shift
    t = r * r
    magnitude = select(call("ne", quadrant & 1, 0), polynomial(t, _COS), r * polynomial(t, _SIN))
    return select(call("ne", quadrant & 2, 0), -magnitude, magnitude)


def _sinh_near(x: Expr) -> Expr:
    """The hyperbolic sine for |x| <= 1."""
    return x * polynomial(x * x, _SINH)


def tanh(x: Expr) -> Expr:
    """The hyperbolic tangent: s / sqrt(1 + s²) with s = sinh(x) where |x| < 1, else from
    e^(2|x|).
    """
    a, s = call("abs", x), _sinh_near(x)
    large = 1.0 - 2.0 / (exp(2.0 * a) + 1.0)
    return select(a < 1.0, s / call("sqrt", 1.0 + s * s), with_sign(large, x))


def atan(x: Expr) -> Expr:
    """The arc tangent: atan((|x| - c) / (1 + c·|x|)) + atan(c), with the sign of x, for the nearest
    c of a few constants (fdlibm, s_atan.c).
    """
    a = call("abs", x)
    reduced, base = a, literal(0.0, x)
    for above, c in ((7 / 16, 0.5), (11 / 16, 1.0), (19 / 16, 1.5)):
        reduced = select(a > above, (a - c) / (1.0 + c * a), reduced)
        base = select(a > above, math.atan(c), base)
    reduced = select(a > 39 / 16, -1.0 / a, reduced)
    base = select(a > 39 / 16, math.pi / 2, base)
    t = reduced * reduced
    return with_sign(base + (reduced - reduced * t * polynomial(t, _ATAN)), x)


def asin(x: Expr) -> Expr:
    """The arc sine, as an arc tangent; NaN outside [-1, 1]."""
    return atan(x / call("sqrt", (1.0 - x) * (1.0 + x)))


def acos(x: Expr) -> Expr:
    """The arc cosine, as the arc tangent of half the angle; NaN outside [-1, 1]."""
    return 2.0 * atan(call("sqrt", (1.0 - x) / (1.0 + x)))


def erf(x: Expr) -> Expr:
    """The error function. Below 1 it is the Taylor series. From 1 on it is 1 - t·exp(P(t) - x²)
    with t = 2 / (2 + |x|) (Numerical Recipes, 6.2.2).
    """
    a = call("min", call("abs", x), 6.0)
    t = 2.0 / (2.0 + a)
    scaled = (t - _ERFC_MIDDLE) * (1 / _ERFC_HALF)
    large = 1.0 - t * exp(polynomial(scaled, _ERFC) - a * a)
    small = a * polynomial(a * a, _ERF)
    return with_sign(select(a < 1.0, small, large), x)


def _log1p(y: Expr) -> Expr:
    """log(1 + y) for y >= 0, accurate near 0 (Kahan)."""
    u = y + 1.0
    exact = log(u) * (y / (u - 1.0))
    return select(u.equals(1.0), y, select(y.equals(math.inf), y, exact))


APPROXIMATIONS: dict[str, Callable[[Expr], Expr]] = {
    **Elementary(exp, log, _log1p, _sinh_near, 1e150).functions(),
    "sin": lambda x: _sin_cos(x, 0),
    "cos": lambda x: _sin_cos(x, 1),
    "tan": lambda x: _sin_cos(x, 0) / _sin_cos(x, 1),
    "tanh": tanh,
    "atan": atan,
    "asin": asin,
    "acos": acos,
    "erf": erf,
}
"""The functions of one float64 argument."""


def power(a: Expr, b: Expr) -> Expr:
    """a^b as in C, computed in float64. A negative base gives a negative result for an odd integer
    b, and NaN for a fraction.
    """
    x, y = a.astype(DType.float64), b.astype(DType.float64)
    size, half, whole = call("abs", x), y * 0.5, call("floor", y)
    magnitude = exp(y * log(size))
    is_odd = whole.equals(y) & call("ne", call("floor", half), half)
    result = select(is_odd, with_sign(magnitude, x), magnitude)
    undefined = (x < 0.0) & call("ne", whole, y) & (size < math.inf)
    result = select(undefined, math.nan, result)
    unit = size.equals(1.0) & call("abs", y).equals(math.inf)
    unit = unit | x.equals(1.0) | y.equals(0.0)
    return select(unit, 1.0, result).astype(a.dtype)
