"""Compute elementary functions by arithmetic, where WASM has no instruction for them.

In: a float32 expression, scalar or vector (`float64.py` has the functions of float64). Out: an
expression of operations that WASM has. The output repeats its argument, so
`common_subexpressions` must run afterwards. For example:

    exp(x)  =  2^n · exp(r),   n = round(x / ln 2),   r = x - n·ln 2       (Cody and Waite, 1980)

The coefficients are minimax fits of the relative error, except for `ERFC_ROOT` (Lawson's reweighted
least squares on 2,000 Chebyshev nodes). The printer rounds them to float32. The coefficients of
tanh and erf were rounded one after another, and the remaining coefficients were fitted again each
time.
Exponentials, logarithms, sigmoids, tanh, erf, sine and cosine are within 2 units in the last place,
with and without FMA, and so are powers (a^0.75: 2.4).
`tests/target/test_approximations.py` samples each function densely and states its error.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from webmlc.core.dtypes import DType
from webmlc.core.expr import (
    Bitcast,
    Broadcast,
    Call,
    Cast,
    Const,
    Expr,
    Operand,
    call,
    literal,
    select,
)
from webmlc.target.wasm.functions import LIMIT

EXP = (
    1.0, 1.0, 0.49999993447767666, 0.16666520631511486, 0.04166838805110772, 0.008368716898110747,
    0.0013814598366845988,
)  # fmt: skip
"""exp(r) on |r| <= ln 2 / 2."""
LOG = (
    0.3333331043843817, -0.24999986625737716, 0.2000222670377097, -0.1666924946029465,
    0.14218655426084717, -0.12384370337870813, 0.11873016346720593, -0.11789695368117299,
    0.06915146533174776,
)  # fmt: skip
"""(log(1 + f) - f + f²/2) / f³ on sqrt(1/2) <= 1 + f <= sqrt(2)."""
SIN = (-0.16666666641426262, 0.008333329362259815, -0.00019839327131520438, 2.718237238425411e-06)
"""(sin(x)/x - 1) / x², in x², on |x| <= π/4."""
COS = (0.04166666662247896, -0.0013888883722757918, 2.479951179368378e-05, -2.720954987011217e-07)
"""(cos(x) - 1 + x²/2) / x⁴, in x², on |x| <= π/4."""
ATAN = (
    -0.3333331542360185, 0.19998484000375935, -0.14243738766516356, 0.10595139674993058,
    -0.060811557748392364,
)  # fmt: skip
"""(atan(x)/x - 1) / x², in x², on |x| <= tan(π/8)."""
ASIN = (
    0.1666665987189387, 0.07500510918208006, 0.04451572009861148, 0.03181761335394805,
    0.014402598163725964, 0.03756521325610598,
)  # fmt: skip
"""(asin(x)/x - 1) / x², in x², on |x| <= 1/2."""
SINH = (0.16666666488721116, 0.008333350597904306, 0.00019836066272665686, 2.8174395194967533e-06)
"""(sinh(x)/x - 1) / x², in x², on |x| <= 1."""
TANH = (
    -0.3333294689655304, 0.1332072913646698, -0.05267200991511345, 0.01643787883222103,
)  # fmt: skip
"""(tanh(x)/x - 1) / x², in x², on |x| <= 0.55."""
ERF = (
    0.12837915122509003, -0.37612542510032654, 0.11282794177532196, -0.02682517282664776,
    0.005140212364494801, -0.0007631028420291841, 6.718953227391466e-05,
)  # fmt: skip
"""erf(x)/x - 1, in x², on |x| <= 1.15."""
ERFC_ROOT = (
    0.9916545748710632, 0.18011824786663055, 0.011205723509192467, 0.11195256561040878,
    -0.05560632050037384, 0.025622982531785965, -0.005501829087734222, 0.0006640100036749754,
)  # fmt: skip
"""erfc(x)^(-1/8) on 1.15 <= x <= 4, fitted for the absolute error of erfc. Above 4 the polynomial
grows, so that 1/p^8 is less than half a unit in the last place of 1, and erf is 1.
"""

LN2_HIGH, LN2_LOW = 0.693359375, -2.12194440e-4
"""ln 2 in two parts. The first has 9 bits, so that n·LN2_HIGH is exact."""
_HALF_PI = (
    1.5703125, 0.00048351287841796875, 3.1385570764541626e-07, 6.07710062827671e-11,
)  # fmt: skip
"""π/2 in four parts. All but the last have at most 9 bits, so that n·part is exact for |n| below
2^15.
"""
_ROUNDING = 1.5 * 2**23
"""Adding this number to x rounds x to an integer, for |x| below 2^22. The low bits of the sum are
the integer.
"""
_SMALLEST_NORMAL = 1.1754943508222875e-38
"""The smallest normal float32."""
_LARGEST = 3.4028234663852886e38
"""The largest finite float32."""


def fma(a: Operand, b: Operand, c: Operand) -> Expr:
    """a·b + c, with a single rounding if the target has a fused multiply-add, and two if not."""
    return call("fma", a, b, c)


def polynomial(x: Expr, coefficients: Sequence[float]) -> Expr:
    """The polynomial of these coefficients, constant first, by Horner's rule."""
    result = literal(coefficients[-1], x)
    for coefficient in reversed(coefficients[:-1]):
        result = fma(result, x, literal(coefficient, x))
    return result


def clamp(x: Expr, low: float, high: float) -> Expr:
    """x limited to the interval from `low` to `high`; NaN stays NaN."""
    return call("min", call("max", x, low), high)


def _bits(x: Expr) -> Expr:
    return Bitcast(x, DType.int64 if x.dtype is DType.float64 else DType.int32)


def _float(bits: Expr) -> Expr:
    return Bitcast(bits, DType.float64 if bits.dtype is DType.int64 else DType.float32)


def with_sign(magnitude: Expr, sign: Expr) -> Expr:
    """`magnitude` with the sign of `sign`. `magnitude` must be non-negative, or have that sign
    already.
    """
    bits = _bits(sign)
    return _float(_bits(magnitude) | (bits & -(2 ** (8 * bits.dtype.bytes - 1))))


def round_float16(x: Expr) -> Expr:
    """The nearest float16, with ties to even. Adding and subtracting 1.5·2^13 times the power of
    two in `x` leaves 11 significant bits, and the last bit of a subnormal is 2^-24.
    """
    power = clamp(_float(_bits(x) & 0x7F800000), 2.0**-14, 2.0**16)
    magic = power * (1.5 * 2**13)
    size = call("abs", (x + magic) - magic)
    return with_sign(select(size > 65504.0, literal(math.inf, x), size), x)


def round_bfloat16(x: Expr) -> Expr:
    """The nearest bfloat16, with ties to even: the upper half of the bits. A NaN stays."""
    bits = _bits(x)
    odd = call("shift_right", bits, 16) & 1
    return select(x.equals(x), _float(bits + 0x7FFF + odd & -0x10000), x)


def exp(x: Expr) -> Expr:
    """e^x. The result is infinity above float32's largest value, and 0 below 2^-125.5, where
    2^(n-1) would be subnormal. For a negated argument, e^-x is computed without the
    negation.
    """
    match x:
        case Call(op="neg", args=(a,)):
            return _exp(clamp(a, -89.0, 87.5), -1.0)
    return _exp(clamp(x, -87.5, 89.0), 1.0)


def _exp(x: Expr, scale: float) -> Expr:
    """e^(scale·x), with scale·x between -87.5 and 89, and scale plus or minus a power of two.

    `half_power` is 2^(n-1), and the polynomial has the other factor of 2, because 2^128 would be
    infinite. The biased exponent n + 126 is between 0 and 254 within these limits. So results that
    are too small become 0, and results that are too large overflow.
    """
    rounding = literal(_ROUNDING + 126, x)
    biased = fma(x, scale / math.log(2), rounding)
    n = biased - rounding
    r = fma(n, -LN2_LOW / scale, fma(n, -LN2_HIGH / scale, x))
    half_power = _float(call("shift_left", _bits(biased), 23))
    return polynomial(r, [2 * scale**k * c for k, c in enumerate(EXP)]) * half_power


def plus_one(x: Expr) -> Expr | None:
    """1 + e^x for a result of `exp`, with one rounding less: e^r is not rounded before the
    addition. None if x is not such a result.
    """
    match x:
        case Call(
            op="mul",
            args=(
                Call(op="fma", args=(tail, r, two)),
                Bitcast(value=Call(op="shift_left")) as power,
            ),
        ) if two == literal(2.0, x):
            return fma(power, two, fma(tail, r * power, 1.0))
    return None


def log(x: Expr) -> Expr:
    """The natural logarithm: -inf at 0, NaN below."""
    is_below_normal = x < _SMALLEST_NORMAL
    normal = select(is_below_normal, x * 2.0**23, x)
    shift = select(is_below_normal, literal(-23.0, x), 0.0)
    # After the subtraction, the high bits are the exponent. The low 23 bits, with sqrt(1/2) added
    # back, are the bits of 1 + f in [sqrt(1/2), sqrt(2)).
    offset = _bits(normal) - 0x3F3504F3
    exponent = Cast(call("shift_right", offset, 23), DType.float32) + shift
    f = _float((offset & 0x007FFFFF) + 0x3F3504F3) - 1.0
    square = f * f
    tail = fma(square * f, polynomial(f, LOG), exponent * LN2_LOW)
    tail = fma(square, -0.5, tail)
    return where_defined(x, fma(exponent, LN2_HIGH, f + tail))


def where_defined(x: Expr, logarithm: Expr) -> Expr:
    """The logarithm of a positive x; infinite for infinity and 0, and NaN below 0."""
    result = select(x.equals(math.inf), x, logarithm)
    result = select(x > 0.0, result, math.nan)
    return select(x.equals(0.0), literal(-math.inf, x), result)


def _undivided(x: Expr) -> Expr:
    """Replace a / c by a · (1 / c). A relative error of the argument of tanh or erf causes no
    larger error of the result, so the extra rounding costs at most one rounding of the result.

    A quotient stays if 1 / c is no normal float32.
    """
    match x:
        case Call(op="div", args=(a, Const(value=divisor) | Broadcast(value=Const(value=divisor)))):
            is_invertible = 1 / _LARGEST <= abs(float(divisor)) <= 1 / _SMALLEST_NORMAL
            return a * (1 / float(divisor)) if is_invertible else x
    return x


def tanh(x: Expr) -> Expr:
    """The hyperbolic tangent: 1 - 2 / (1 + e^(2|x|)), or a polynomial near 0."""
    x = _undivided(x)
    a = call("abs", x)
    t = a * a
    small = fma(a * t, polynomial(t, TANH), a)
    large = 1.0 - 2.0 / (1.0 + _exp(call("min", a, 10.0), 2.0))
    return with_sign(select(a < 0.55, small, large), x)


def erf(x: Expr) -> Expr:
    """The error function: 1 - 1 / p(|x|)^8 (as Abramowitz and Stegun, 7.1.28), or a
    polynomial near 0.
    """
    x = _undivided(x)
    a = call("abs", x)
    small = fma(a, polynomial(a * a, ERF), a)
    power = polynomial(a, ERFC_ROOT)
    for _ in range(3):
        power = power * power
    return with_sign(select(a < 1.15, small, 1.0 - 1.0 / power), x)


def _sin_cos(x: Expr, shift: int) -> Expr:
    """sin(x + shift·π/2), with x = n·π/2 + high + low. A function of the module computes it where
    |x| is large (`functions`). Infinity and NaN become NaN.
    """
    rounding = literal(_ROUNDING, x)
    biased = fma(x, 2 / math.pi, rounding)
    n = biased - rounding
    first, second, third, fourth = (-part for part in _HALF_PI)
    partly_reduced = fma(n, second, fma(n, first, x))
    high = fma(n, third, partly_reduced)
    low = fma(n, fourth, fma(n, third, partly_reduced - high))
    r = high + low
    t = r * r
    sine = high + fma(r * t, polynomial(t, SIN), low)
    sine = select(t.equals(0.0), high, sine)  # keeps -0
    cosine = fma(t * t, polynomial(t, COS), fma(t, -0.5, literal(1.0, x)))
    quadrant = _bits(biased) + shift if shift else _bits(biased)
    magnitude = select(call("ne", quadrant & 1, 0), cosine, sine)
    flip = call("shift_left", quadrant & 2, 30)
    small = _float(call("bit_xor", _bits(magnitude), flip))
    return select(call("abs", x) >= LIMIT, call("cos" if shift else "sin", x), small)


def atan(x: Expr) -> Expr:
    """The arc tangent: π/4 + atan((a - 1) / (a + 1)) above tan(π/8), π/2 - atan(1 / a) above
    tan(3π/8).
    """
    a = call("abs", x)
    large, middle = a > 2.414213562373095, a > 0.4142135623730950
    reduced = select(middle, (a - 1.0) / (a + 1.0), a)
    reduced = select(large, -1.0 / a, reduced)
    base = select(middle, literal(math.pi / 4, x), 0.0)
    base = select(large, literal(math.pi / 2, x), base)
    t = reduced * reduced
    return with_sign(base + fma(reduced * t, polynomial(t, ATAN), reduced), x)


def _asin_small(x: Expr) -> Expr:
    """The arc sine for |x| <= 1/2."""
    t = x * x
    return fma(x * t, polynomial(t, ASIN), x)


def asin(x: Expr) -> Expr:
    """The arc sine: π/2 - 2·asin(sqrt((1 - a) / 2)) above 1/2; NaN outside [-1, 1]."""
    a = call("abs", x)
    outer = math.pi / 2 - 2.0 * _asin_small(call("sqrt", (1.0 - a) * 0.5))
    return with_sign(select(a > 0.5, outer, _asin_small(a)), x)


def acos(x: Expr) -> Expr:
    """The arc cosine; NaN outside [-1, 1]."""
    a = call("abs", x)
    near = 2.0 * _asin_small(call("sqrt", (1.0 - a) * 0.5))
    near = select(x < 0.0, math.pi - near, near)
    return select(a > 0.5, near, math.pi / 2 - _asin_small(x))


def _sinh_near(x: Expr) -> Expr:
    """The hyperbolic sine for |x| <= 1."""
    t = x * x
    return fma(x * t, polynomial(t, SINH), x)


def _log1p(y: Expr) -> Expr:
    """log(1 + y) for y > -1: log(u) of u = 1 + y as rounded, plus a correction."""
    u = y + 1.0
    result = log(u)
    finite = call("abs", result) < math.inf
    return select(finite, result + (y - (u - 1.0)) / u, result)


@dataclass(frozen=True, slots=True)
class Elementary:
    """The functions of a float type from which its hyperbolic functions follow. `sinh_near` is the
    hyperbolic sine for |x| <= 1. The square of a number above `large` is about to overflow.
    """

    exp: Callable[[Expr], Expr]
    log: Callable[[Expr], Expr]
    log1p: Callable[[Expr], Expr]
    sinh_near: Callable[[Expr], Expr]
    large: float

    def half_exp(self, x: Expr) -> Expr:
        """e^|x| / 2, as two factors, so that it overflows later than e^|x| does."""
        root = self.exp(call("abs", x) * 0.5)
        return root * 0.5 * root

    def sinh(self, x: Expr) -> Expr:
        """The hyperbolic sine: a polynomial near 0, else (e^|x| - e^-|x|) / 2."""
        half = self.half_exp(x)
        far = with_sign(half - 0.25 / half, x)
        return select(call("abs", x) < 1.0, self.sinh_near(x), far)

    def cosh(self, x: Expr) -> Expr:
        """The hyperbolic cosine: (e^|x| + e^-|x|) / 2."""
        half = self.half_exp(x)
        return half + 0.25 / half

    def asinh(self, x: Expr) -> Expr:
        """The inverse hyperbolic sine: log1p(|x| + x² / (1 + sqrt(1 + x²))), or log(2|x|) where x²
        would overflow.
        """
        a, square = call("abs", x), x * x
        middle = self.log1p(a + square / (1.0 + call("sqrt", 1.0 + square)))
        far = self.log(a) + math.log(2)
        return with_sign(select(a > self.large, far, middle), x)

    def acosh(self, x: Expr) -> Expr:
        """The inverse hyperbolic cosine; NaN below 1."""
        y = x - 1.0
        middle = self.log1p(y + call("sqrt", y * (x + 1.0)))
        result = select(x > self.large, self.log(x) + math.log(2), middle)
        return select(x < 1.0, literal(math.nan, x), result)

    def atanh(self, x: Expr) -> Expr:
        """The inverse hyperbolic tangent; NaN outside [-1, 1]."""
        a = call("abs", x)
        half = 0.5 * self.log1p(2.0 * a / (1.0 - a))
        return select(a > 1.0, literal(math.nan, x), with_sign(half, x))

    def functions(self) -> dict[str, Callable[[Expr], Expr]]:
        """The functions, by operator."""
        names = ("exp", "log", "log1p", "sinh", "cosh", "asinh", "acosh", "atanh")
        return {name: getattr(self, name) for name in names}


APPROXIMATIONS: dict[str, Callable[[Expr], Expr]] = {
    **Elementary(exp, log, _log1p, _sinh_near, 1e18).functions(),
    "round_float16": round_float16,
    "round_bfloat16": round_bfloat16,
    "tanh": tanh,
    "erf": erf,
    "sin": lambda x: _sin_cos(x, 0),
    "cos": lambda x: _sin_cos(x, 1),
    "tan": lambda x: _sin_cos(x, 0) / _sin_cos(x, 1),
    "atan": atan,
    "asin": asin,
    "acos": acos,
}
"""The functions of one float32 argument."""
