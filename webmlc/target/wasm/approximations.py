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

from webmlc.core.dtypes import DType
from webmlc.core.expr import Bitcast, Broadcast, Call, Cast, Const, Expr, call, literal, select
from webmlc.target.wasm.large_angles import LIMIT

EXP = (
    1.0,
    1.0,
    0.49999993447767666,
    0.16666520631511486,
    0.04166838805110772,
    0.008368716898110747,
    0.0013814598366845988,
)
"""exp(r) on |r| <= ln 2 / 2."""
LOG = (
    0.3333331043843817,
    -0.24999986625737716,
    0.2000222670377097,
    -0.1666924946029465,
    0.14218655426084717,
    -0.12384370337870813,
    0.11873016346720593,
    -0.11789695368117299,
    0.06915146533174776,
)
"""(log(1 + f) - f + f²/2) / f³ on sqrt(1/2) <= 1 + f <= sqrt(2)."""
SIN = (-0.16666666641426262, 0.008333329362259815, -0.00019839327131520438, 2.718237238425411e-06)
"""(sin(x)/x - 1) / x², in x², on |x| <= π/4."""
COS = (0.04166666662247896, -0.0013888883722757918, 2.479951179368378e-05, -2.720954987011217e-07)
"""(cos(x) - 1 + x²/2) / x⁴, in x², on |x| <= π/4."""
ATAN = (
    -0.3333331542360185,
    0.19998484000375935,
    -0.14243738766516356,
    0.10595139674993058,
    -0.060811557748392364,
)
"""(atan(x)/x - 1) / x², in x², on |x| <= tan(π/8)."""
ASIN = (
    0.1666665987189387,
    0.07500510918208006,
    0.04451572009861148,
    0.03181761335394805,
    0.014402598163725964,
    0.03756521325610598,
)
"""(asin(x)/x - 1) / x², in x², on |x| <= 1/2."""
SINH = (0.16666666488721116, 0.008333350597904306, 0.00019836066272665686, 2.8174395194967533e-06)
"""(sinh(x)/x - 1) / x², in x², on |x| <= 1."""
TANH = (
    -0.3333294689655304,
    0.1332072913646698,
    -0.05267200991511345,
    0.01643787883222103,
)
"""(tanh(x)/x - 1) / x², in x², on |x| <= 0.55."""
ERF = (
    0.12837915122509003,
    -0.37612542510032654,
    0.11282794177532196,
    -0.02682517282664776,
    0.005140212364494801,
    -0.0007631028420291841,
    6.718953227391466e-05,
)
"""erf(x)/x - 1, in x², on |x| <= 1.15."""
ERFC_ROOT = (
    0.9916545748710632,
    0.18011824786663055,
    0.011205723509192467,
    0.11195256561040878,
    -0.05560632050037384,
    0.025622982531785965,
    -0.005501829087734222,
    0.0006640100036749754,
)
"""erfc(x)^(-1/8) on 1.15 <= x <= 4, fitted for the absolute error of erfc. Above 4 the polynomial
grows, so that 1/p^8 is less than half a unit in the last place of 1, and erf is 1.
"""

LN2_HIGH, LN2_LOW = 0.693359375, -2.12194440e-4
"""ln 2 in two parts. The first has 9 bits, so that n·LN2_HIGH is exact."""
_HALF_PI = (
    1.5703125,
    0.00048351287841796875,
    3.1385570764541626e-07,
    6.07710062827671e-11,
)
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


def fma(a: Expr, b: Expr, c: Expr) -> Expr:
    """a·b + c, with a single rounding if the target has a fused multiply-add, and two if not."""
    return Call("fma", (a, b, c), a.dtype)


def polynomial(x: Expr, coefficients: Sequence[float]) -> Expr:
    """The polynomial of these coefficients, constant first, by Horner's rule."""
    result = literal(coefficients[-1], x)
    for coefficient in reversed(coefficients[:-1]):
        result = fma(result, x, literal(coefficient, x))
    return result


def clamp(x: Expr, low: float, high: float) -> Expr:
    """x limited to the interval from `low` to `high`; NaN stays NaN."""
    return call("min", call("max", x, literal(low, x)), literal(high, x))


def _bits(x: Expr) -> Expr:
    return Bitcast(x, DType.int32)


def _shift_left(x: Expr, bits: int) -> Expr:
    return Call("shift_left", (x, literal(bits, x)), x.dtype)


def _shift_right(x: Expr, bits: int) -> Expr:
    return Call("shift_right", (x, literal(bits, x)), x.dtype)


def _with_sign(magnitude: Expr, sign: Expr) -> Expr:
    """`magnitude` with the sign of `sign`. `magnitude` must be non-negative, or have that sign
    already.
    """
    mask = literal(-(2**31), sign, DType.int32)
    return Bitcast(_bits(magnitude) | (_bits(sign) & mask), DType.float32)


def round_float16(x: Expr) -> Expr:
    """The nearest float16, with ties to even. Adding and subtracting 1.5·2^13 times the power of
    two in `x` leaves 11 significant bits, and the last bit of a subnormal is 2^-24.
    """
    exponent = Bitcast(_bits(x) & literal(0x7F800000, x, DType.int32), DType.float32)
    power = clamp(exponent, 2.0**-14, 2.0**16)
    magic = power * literal(1.5 * 2**13, x)
    size = call("abs", (x + magic) - magic)
    size = select(call("gt", size, literal(65504.0, x)), literal(math.inf, x), size)
    return _with_sign(size, x)


def round_bfloat16(x: Expr) -> Expr:
    """The nearest bfloat16, with ties to even: the upper half of the bits. A NaN stays."""
    bits = _bits(x)
    odd = _shift_right(bits, 16) & literal(1, bits)
    nearest = bits + literal(0x7FFF, bits) + odd & literal(-0x10000, bits)
    return select(call("eq", x, x), Bitcast(nearest, DType.float32), x)


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
    biased = fma(x, literal(scale / math.log(2), x), rounding)
    n = biased - rounding
    r = fma(n, literal(-LN2_LOW / scale, x), fma(n, literal(-LN2_HIGH / scale, x), x))
    half_power = Bitcast(_shift_left(_bits(biased), 23), DType.float32)
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
            return fma(power, two, fma(tail, r * power, literal(1.0, x)))
    return None


def log(x: Expr) -> Expr:
    """The natural logarithm: -inf at 0, NaN below."""
    is_below_normal = call("lt", x, literal(_SMALLEST_NORMAL, x))
    normal = select(is_below_normal, x * literal(2.0**23, x), x)
    shift = select(is_below_normal, literal(-23.0, x), literal(0.0, x))
    # After the subtraction, the high bits are the exponent. The low 23 bits, with sqrt(1/2) added
    # back, are the bits of 1 + f in [sqrt(1/2), sqrt(2)).
    bits = _bits(normal)
    offset = bits - literal(0x3F3504F3, x, DType.int32)
    exponent = Cast(_shift_right(offset, 23), DType.float32) + shift
    bits_of_one_plus_f = (offset & literal(0x007FFFFF, x, DType.int32)) + literal(
        0x3F3504F3, x, DType.int32
    )
    f = Bitcast(bits_of_one_plus_f, DType.float32) - literal(1.0, x)
    square = f * f
    tail = fma(square * f, polynomial(f, LOG), exponent * literal(LN2_LOW, x))
    tail = fma(square, literal(-0.5, x), tail)
    result = fma(exponent, literal(LN2_HIGH, x), f + tail)
    result = select(call("eq", x, literal(math.inf, x)), x, result)
    result = select(call("gt", x, literal(0.0, x)), result, literal(math.nan, x))
    return select(call("eq", x, literal(0.0, x)), literal(-math.inf, x), result)


def _undivided(x: Expr) -> Expr:
    """Replace a / c by a · (1 / c). A relative error of the argument of tanh or erf causes no
    larger error of the result, so the extra rounding costs at most one rounding of the result.

    A quotient stays if 1 / c is no normal float32.
    """
    match x:
        case Call(op="div", args=(a, Const(value=divisor) | Broadcast(value=Const(value=divisor)))):
            is_invertible = 1 / _LARGEST <= abs(float(divisor)) <= 1 / _SMALLEST_NORMAL
            return a * literal(1 / float(divisor), x) if is_invertible else x
    return x


def tanh(x: Expr) -> Expr:
    """The hyperbolic tangent: 1 - 2 / (1 + e^(2|x|)), or a polynomial near 0."""
    x = _undivided(x)
    a = call("abs", x)
    t = a * a
    small = fma(a * t, polynomial(t, TANH), a)
    one, two = literal(1.0, x), literal(2.0, x)
    large = one - two / (one + _exp(call("min", a, literal(10.0, x)), 2.0))
    return _with_sign(select(call("lt", a, literal(0.55, x)), small, large), x)


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
    one = literal(1.0, x)
    large = one - one / power
    return _with_sign(select(call("lt", a, literal(1.15, x)), small, large), x)


def _sin_cos(x: Expr, shift: int) -> Expr:
    """sin(x + shift·π/2), with x = n·π/2 + high + low. A function of the module computes it where
    |x| is large (`large_angles`). Infinity and NaN become NaN.
    """
    rounding = literal(_ROUNDING, x)
    biased = fma(x, literal(2 / math.pi, x), rounding)
    n = biased - rounding
    first, second, third, fourth = (literal(-part, x) for part in _HALF_PI)
    partly_reduced = fma(n, second, fma(n, first, x))
    high = fma(n, third, partly_reduced)
    low = fma(n, fourth, fma(n, third, partly_reduced - high))
    r = high + low
    t = r * r
    sine = high + fma(r * t, polynomial(t, SIN), low)
    sine = select(call("eq", t, literal(0.0, x)), high, sine)  # keeps -0
    cosine = fma(t * t, polynomial(t, COS), fma(t, literal(-0.5, x), literal(1.0, x)))
    quadrant = _bits(biased)
    if shift:
        quadrant = quadrant + literal(shift, x, DType.int32)
    zero = literal(0, x, DType.int32)
    odd = call("ne", quadrant & literal(1, x, DType.int32), zero)
    magnitude = select(odd, cosine, sine)
    flip = _shift_left(quadrant & literal(2, x, DType.int32), 30)
    small = Bitcast(Call("bit_xor", (_bits(magnitude), flip), DType.int32), DType.float32)
    is_large = call("ge", call("abs", x), literal(LIMIT, x))
    return select(is_large, call("cos" if shift else "sin", x), small)


def sin(x: Expr) -> Expr:
    """The sine."""
    return _sin_cos(x, 0)


def cos(x: Expr) -> Expr:
    """The cosine."""
    return _sin_cos(x, 1)


def tan(x: Expr) -> Expr:
    """The tangent."""
    return sin(x) / cos(x)


def atan(x: Expr) -> Expr:
    """The arc tangent: π/4 + atan((a - 1) / (a + 1)) above tan(π/8), π/2 - atan(1 / a) above
    tan(3π/8).
    """
    a = call("abs", x)
    large = call("gt", a, literal(2.414213562373095, x))
    middle = call("gt", a, literal(0.4142135623730950, x))
    one = literal(1.0, x)
    reduced = select(middle, (a - one) / (a + one), a)
    reduced = select(large, literal(-1.0, x) / a, reduced)
    base = select(middle, literal(math.pi / 4, x), literal(0.0, x))
    base = select(large, literal(math.pi / 2, x), base)
    t = reduced * reduced
    return _with_sign(base + fma(reduced * t, polynomial(t, ATAN), reduced), x)


def _asin_small(x: Expr) -> Expr:
    """The arc sine for |x| <= 1/2."""
    t = x * x
    return fma(x * t, polynomial(t, ASIN), x)


def asin(x: Expr) -> Expr:
    """The arc sine: π/2 - 2·asin(sqrt((1 - a) / 2)) above 1/2; NaN outside [-1, 1]."""
    a = call("abs", x)
    root = call("sqrt", (literal(1.0, x) - a) * literal(0.5, x))
    outer = literal(math.pi / 2, x) - literal(2.0, x) * _asin_small(root)
    return _with_sign(select(call("gt", a, literal(0.5, x)), outer, _asin_small(a)), x)


def acos(x: Expr) -> Expr:
    """The arc cosine; NaN outside [-1, 1]."""
    a = call("abs", x)
    root = call("sqrt", (literal(1.0, x) - a) * literal(0.5, x))
    near = literal(2.0, x) * _asin_small(root)
    near = select(call("lt", x, literal(0.0, x)), literal(math.pi, x) - near, near)
    inner = literal(math.pi / 2, x) - _asin_small(x)
    return select(call("gt", a, literal(0.5, x)), near, inner)


def _half_exp(x: Expr) -> Expr:
    """e^|x| / 2, as two factors, so that it overflows later than e^|x| does."""
    root = exp(call("abs", x) * literal(0.5, x))
    return root * literal(0.5, x) * root


def sinh(x: Expr) -> Expr:
    """The hyperbolic sine: a polynomial near 0, else (e^|x| - e^-|x|) / 2."""
    t = x * x
    small = fma(x * t, polynomial(t, SINH), x)
    half = _half_exp(x)
    large = _with_sign(half - literal(0.25, x) / half, x)
    return select(call("lt", call("abs", x), literal(1.0, x)), small, large)


def cosh(x: Expr) -> Expr:
    """The hyperbolic cosine: (e^|x| + e^-|x|) / 2."""
    half = _half_exp(x)
    return half + literal(0.25, x) / half


def log1p(y: Expr) -> Expr:
    """log(1 + y) for y > -1, accurate near 0: the logarithm of u = 1 + y as rounded,
    corrected for the rounding.
    """
    one = literal(1.0, y)
    u = y + one
    result = log(u)
    finite = call("lt", call("abs", result), literal(math.inf, y))
    return select(finite, result + (y - (u - one)) / u, result)


def asinh(x: Expr) -> Expr:
    """The inverse hyperbolic sine: log1p(|x| + x² / (1 + sqrt(1 + x²))), or log(2|x|) where x²
    would overflow.
    """
    a = call("abs", x)
    one = literal(1.0, x)
    square = x * x
    middle = log1p(a + square / (one + call("sqrt", one + square)))
    large = log(a) + literal(math.log(2), x)
    return _with_sign(select(call("gt", a, literal(1e18, x)), large, middle), x)


def acosh(x: Expr) -> Expr:
    """The inverse hyperbolic cosine; NaN below 1."""
    y = x - literal(1.0, x)
    middle = log1p(y + call("sqrt", y * (x + literal(1.0, x))))
    large = log(x) + literal(math.log(2), x)
    result = select(call("gt", x, literal(1e18, x)), large, middle)
    return select(call("lt", x, literal(1.0, x)), literal(math.nan, x), result)


def atanh(x: Expr) -> Expr:
    """The inverse hyperbolic tangent; NaN outside [-1, 1]."""
    a = call("abs", x)
    half = literal(0.5, x) * log1p(literal(2.0, x) * a / (literal(1.0, x) - a))
    return select(call("gt", a, literal(1.0, x)), literal(math.nan, x), _with_sign(half, x))


APPROXIMATIONS: dict[str, Callable[[Expr], Expr]] = {
    "round_float16": round_float16,
    "round_bfloat16": round_bfloat16,
    "exp": exp,
    "log": log,
    "log1p": log1p,
    "tanh": tanh,
    "erf": erf,
    "sin": sin,
    "cos": cos,
    "tan": tan,
    "atan": atan,
    "asin": asin,
    "acos": acos,
    "sinh": sinh,
    "cosh": cosh,
    "asinh": asinh,
    "acosh": acosh,
    "atanh": atanh,
}
"""The functions of one float32 argument."""
