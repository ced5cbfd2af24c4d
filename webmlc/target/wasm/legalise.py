"""Rewrite every expression that WASM has no instruction for.

Needs: no arithmetic on small types (`legalise_types`); runs before `common_subexpressions`.
Guarantees: only operators of `table.py`, `select` and `fma`. Conversions to and from bool are
comparisons and selects. A product that is added becomes an `fma` (vectors of float32). Each rule
has one reason:

before                                             after
    T.exp(x)                                           2^n · polynomial(r)
    T.exp(x) + 1.0                                     2^n + (2^n · (polynomial(r) - 1) + 1)
    c + a * b                                          T.fma(a, b, c)
    T.cast(m, "float32")        (m is bool)            T.select(m, 1.0, 0.0)
    x * (1.0 / f(x))                                   x / f(x)
    T.max(x, 0.0)               (vectors)              T.select(x < 0.0, 0.0, x)    `f32x4.pmax`
    x >> 0                                             x
    T.relaxed_max(a, b)                                T.select(a < b, b, a)
    T.isnan(x)                                         x != x
    T.cast(limited T.round(x), "uint8")                T.bitcast(limited x + 1.5·2²³) - ...
    T.dot_u8_i8(a, b), T.dot_u7_i8(a, b)               T.dot_i16 of the even and the odd bytes
    T.word_u8(a, b, c, d)       (scalars)              (a & 255) | (b & 255) << 8 | ...
"""

from __future__ import annotations

import math
from dataclasses import replace

from webmlc.core.bounds import Ranges, bounds
from webmlc.core.dtypes import DType
from webmlc.core.expr import (
    Bitcast,
    Broadcast,
    Call,
    Cast,
    Const,
    Expr,
    call,
    literal,
    scalar_of,
    select,
)
from webmlc.core.rewrite import bottom_up, rewrite, rewriter, walk
from webmlc.loops.ir import LoopFunction, map_expressions
from webmlc.target.byte_words import adjacent_bytes, dot_of_bytes, word_of_bytes
from webmlc.target.common_subexpressions import is_guarded
from webmlc.target.expand_vectors import compares_indices
from webmlc.target.guard_division import truncating_division
from webmlc.target.quarter_powers import FEW_ROUNDINGS, is_quarters, quarter_power
from webmlc.target.scoped import map_scoped, rewriter_in_scope, symbol_ranges
from webmlc.target.wasm import approximations, float64
from webmlc.target.wasm.reduce_strength import StrengthReduced


def legalise(function: LoopFunction) -> LoopFunction:
    """Rewrite every expression of `function`."""
    return replace(function, body=map_expressions(function.body, rewriter(_rule)))


def _rule(node: Expr) -> Expr | None:
    match node:
        case Call(op="dot_u8_i8" | "dot_u7_i8", args=(a, b)):
            return _dot(a, b)
        case Call(op="dot_i8", args=(a, b)):
            return dot_of_bytes(a, b, is_signed=True)
        case Call(op="word_u8", args=args) if node.lanes == 1:
            return word_of_bytes(args) if adjacent_bytes(args) is None else None
        case Call():
            return _call(node)
        case Cast(value=value, dtype=dtype):
            return _cast(value, dtype)
    return None


def _call(node: Call) -> Expr | None:
    """The legal form of an operation, or None where it is legal."""
    args, dtype = node.args, node.args[-1].dtype
    match node:
        case Call(op="add", args=(a, b)):  # first, since most operations are sums
            return _sum(a, b) if dtype is DType.float32 else None
        case Call(op="fma" | "select"):
            return None
        case Call(op="min" | "max" as op, args=(a, b)) if dtype is DType.float32 and node.lanes > 1:
            return _limit(op, a, b)
        case Call(op="mul", args=(a, b)):
            return _quotient(a, b)
        case Call(op="shift_left" | "shift_right", args=(a, b)) if b == literal(0, b):
            return a
        case Call(op="relaxed_max", args=(a, b)):
            return select(a < b, b, a)
        case Call(op="isnan", args=(a,)):
            return call("ne", a, a)
        case Call(op="isinf", args=(a,)):
            return call("abs", a).equals(math.inf)
        case Call(op="pow" | "unsigned_pow" as op, args=(a, b)):
            return _power(a, b, has_sign=op == "pow")
        case Call(op="sign", args=(a,)) if dtype.is_float:
            unsigned = select(a > 0.0, 1.0, a)  # zeros and NaN are unchanged
            return select(a < 0.0, -1.0, unsigned)
        case Call(op="sign", args=(a,)):
            at_most_one = call("min", a, 1)
            return call("max", at_most_one, -1) if dtype.is_signed else at_most_one
        case Call(op="abs", args=(a,)) if not dtype.is_signed:
            return a
        case Call(op="floormod" | "truncmod" as op, args=(a, b)) if dtype.is_float:
            is_legal = op == "truncmod" and dtype is DType.float64
            return None if is_legal else _remainder(a, b, rounds_down=op == "floormod")
        case Call(op="floordiv", args=(a, b)) if dtype.is_float:
            return call("floor", a / b)
        case Call(op="truncdiv", args=(a, b)) if dtype.is_float:
            return call("trunc", a / b)
        case Call(op="bit_and", args=(a, b)) if dtype is DType.bool and node.lanes == 1:
            # `&` evaluates both sides: a load on the right that an index test guards must not run.
            if compares_indices(a) and is_guarded(b, a):
                return select(a, b, Const(False, DType.bool))
        case Call(op="min" | "max" as op) if dtype is DType.bool:
            return Call("bit_and" if op == "min" else "bit_or", args, DType.bool)
        case Call(op="neg", args=(a,)) if dtype.is_integer and node.lanes == 1:
            return Call("sub", (Const(0, dtype), a), dtype)
        case Call(op=op) if dtype is DType.float32 and op in approximations.APPROXIMATIONS:
            return rewrite(approximations.APPROXIMATIONS[op](args[0]), _contract)
        case Call(op=op) if dtype is DType.float64 and op in float64.APPROXIMATIONS:
            return float64.APPROXIMATIONS[op](args[0])
    return None


def _remainder(a: Expr, b: Expr, rounds_down: bool) -> Expr:
    """The remainder of a division that rounds towards zero (C's `fmod`) or down (numpy's `mod`).
    A remainder of `mod` has the sign of the divisor, also for zero.
    """
    x, y = a.astype(DType.float64), b.astype(DType.float64)
    result = call("truncmod", x, y)
    if rounds_down:
        zero = Const(0.0, DType.float64)
        has_other_sign = call("bit_xor", result < zero, y < zero)
        moved = select(has_other_sign, result + y, result)
        result = select(result.equals(zero), select(y < zero, -0.0, zero), moved)
    return result.astype(a.dtype)


def _contract(node: Expr) -> Expr | None:
    """The rules for the expansions of approximations: sums of products, and limits."""
    match node:
        case Call(op="add", args=(a, b), dtype=DType.float32):
            return _sum(a, b)
        case Call(op="min" | "max" as op, args=(a, b), dtype=DType.float32) if node.lanes > 1:
            return _limit(op, a, b)
    return None


def _dot(a: Expr, b: Expr) -> Expr:
    """The dot product of unsigned and signed bytes: as 16-bit halves of words, or byte by byte."""
    if a.lanes == 1:
        return dot_of_bytes(a, b)
    mask = literal(0x00FF00FF, a)
    even, odd = a & mask, call("odd_u8", a)
    return call("dot_i16", even, call("even_i8", b)) + call("dot_i16", odd, call("odd_i8", b))


def _limit(op: str, a: Expr, b: Expr) -> Expr | None:
    """A min or max with a literal, as `pmin` and `pmax` compare: NaN stays NaN."""
    for x, limit in ((a, b), (b, a)):
        if is_number(limit):
            return _compare(op, x, limit)
    return None


def _compare(op: str, x: Expr, limit: Expr) -> Expr:
    """`x` limited by `limit`: from below for "max", from above for "min"."""
    exceeds = call("lt", x, limit) if op == "max" else call("lt", limit, x)
    return select(exceeds, limit, x)


def is_number(expr: Expr) -> bool:
    """True for a broadcast literal that is not NaN."""
    match expr:
        case Broadcast(value=Const(value=value)):
            return not math.isnan(value)
    return False


def _quotient(a: Expr, b: Expr) -> Expr | None:
    """x · (1 / f(x)) as x / f(x): x · sigmoid(x) then has one operation and one rounding less."""
    for x, inverse in ((a, b), (b, a)):
        match inverse:
            case Call(op="div", args=(one, divisor)) if one == literal(1.0, x):
                return x / divisor if x in walk(divisor) else None
    return None


def _sum(a: Expr, b: Expr) -> Expr | None:
    """a + b as an `fma` where an operand is a product of vectors. 1 + e^x has one rounding less."""
    for product, other in ((b, a), (a, b)):
        match product:
            case Call(op="mul", args=(x, y)):
                is_one = other == literal(1.0, product)
                result = approximations.plus_one(product) if is_one else None
                if result is None and product.lanes > 1:
                    result = Call("fma", (x, y, other), DType.float32)
                return result
    return None


def _power(a: Expr, b: Expr, has_sign: bool) -> Expr | None:
    """a^b. Literal multiples of 1/4 become products and square roots; other powers use exp and log
    of float64.

    Products and square roots of float32 that would round too often (`FEW_ROUNDINGS`) use float64,
    too.
    """
    exponent = scalar_of(b)
    if isinstance(exponent, Const) and is_quarters(exponent):
        quarters = int(exponent.value * 4)
        if quarters % 4 and a.dtype.is_float and has_sign:
            # The powers of -inf and -0 are positive; their roots are not.
            is_lowest = a.equals(-literal(math.inf, a))
            a = select(is_lowest, math.inf, a) + 0.0
        if a.dtype is DType.float32 and exponent.value not in FEW_ROUNDINGS:
            return quarter_power(a.astype(DType.float64), quarters).astype(a.dtype)
        if a.dtype.is_float or (quarters >= 0 and quarters % 4 == 0):
            return quarter_power(a, quarters)
    if a.lanes > 1:
        return None
    return _integer_power(a, b) if a.dtype.is_integer else float64.power(a, b)


def _integer_power(a: Expr, b: Expr) -> Expr:
    """a^b of integers, which wraps: repeated squaring over the bits of the exponent.

    Seven bits suffice where |a| > 1, because larger powers have lost all their bits. For -1 and 1
    only the parity of the exponent matters. With a negative exponent, only 1 and -1 have a power
    that does not truncate to 0.
    """
    parity = b & 1
    exponent = select(b < 0, parity, select(b > 127, 126 + parity, b))
    result: Expr = Const(1, a.dtype)
    square = a
    for bit in range(7):
        is_set = call("ne", exponent & (1 << bit), 0)
        result = select(is_set, result * square, result)
        square = square * square
    if not a.dtype.is_signed:
        return result
    return select((b < 0) & ~(a.equals(1) | a.equals(-1)), 0, result)


_MAGIC = 1.5 * 2.0**23
"""A float32 whose last bit has the value 1. Adding a number to it rounds the number to an integer,
with ties to even.
"""
_MAGIC_BITS = 0x4B400000
"""The bits of `_MAGIC`."""


def _saturated(value: Expr, dtype: DType) -> Expr | None:
    """max(min(round(x) + zero, high), low), with literal limits, as a small integer. The value is
    limited first, then rounded by an addition and read from the bits of the sum.

    XNNPACK calls this the "magic bias". NaN becomes the zero point.
    """
    above, low = _limited("max", value)
    shifted, high = _limited("min", above)
    match shifted:
        case Call(op="round", args=(x,)):
            zero = 0.0
        case Call(op="add", args=(Call(op="round", args=(x,)), Broadcast(value=Const(value=zero)))):
            pass
        case _:
            return None
    if (low, high) != dtype.limits or not float(zero).is_integer():
        return None
    upper = _compare("min", x, literal(high - zero, x))
    limited_value = _compare("max", upper, literal(low - zero, x))
    bits = Bitcast(limited_value + _MAGIC, DType.int32)
    return Cast(bits - (_MAGIC_BITS - int(zero)), dtype)


def _limited(op: str, value: Expr) -> tuple[Expr, float]:
    """The operand and the limit of a value that `_compare` made, else the value itself and NaN."""
    match value:
        case Call(op="select", args=(_, Broadcast(value=Const(value=limit)) as limit_vector, x)):
            if value == _compare(op, x, limit_vector):
                return x, float(limit)
    return value, math.nan


def _cast(value: Expr, dtype: DType) -> Expr | None:
    """The legal form of a conversion, or None where it is legal."""
    source = value.dtype
    if source is DType.float32 and value.lanes > 1 and dtype.is_integer and dtype.bytes < 4:
        return _saturated(value, dtype)
    if source == dtype:
        return value
    if dtype is DType.bool:
        return call("ne", value, 0)
    if source is DType.bool and (value.lanes > 1 or dtype.is_float or dtype.bytes == 8):
        return select(value, literal(1, value, dtype), literal(0, value, dtype))
    return None


def legalise_division(reduced: StrengthReduced) -> StrengthReduced:
    """Rewrite every scalar integer expression that WASM has no instruction for, in the
    strength-reduced form: signed `floordiv` and `floormod`, `min`, `max`, `abs`, `neg`, `bit_not`.

    before                                             after (i in [0, 55])
        A[i // 7]                                          A[T.truncdiv(i, 7)]
        A[(i - 1) % 8]                                     A[(i - 1) & 7]
    """
    function = reduced.function
    rule = rewriter_in_scope(_scalar_integer, _has_missing_operation)
    body = map_scoped(function.body, symbol_ranges(function), rule)
    return replace(reduced, function=replace(function, body=body))


_MISSING = frozenset({"floordiv", "floormod", "min", "max", "neg", "abs", "bit_not"})
"""The operators of scalar integers that WASM has no instruction for."""


@bottom_up()
def _has_missing_operation(root: Expr) -> bool:
    """True if a part of an expression is an operation that `_scalar_integer` may rewrite."""
    match root:
        case Call(op=op, lanes=1, dtype=dtype) if op in _MISSING and dtype.is_integer:
            return True
    return any(map(_has_missing_operation, root.children))


def _scalar_integer(node: Expr, ranges: Ranges) -> Expr | None:
    if not isinstance(node, Call) or node.lanes > 1 or not node.dtype.is_integer:
        return None
    match node:
        case Call(op="floordiv" | "floormod" as op, args=(a, b)) if node.dtype.is_signed:
            return truncating_division(op, a, b, lambda e: bounds(e, ranges).low >= 0)
        case Call(op="min", args=(a, b)):
            return select(a < b, a, b)
        case Call(op="max", args=(a, b)):
            return select(a > b, a, b)
        case Call(op="neg", args=(a,)):
            return Call("sub", (Const(0, a.dtype), a), a.dtype)
        case Call(op="abs", args=(a,)):
            return select(a < 0, Call("sub", (Const(0, a.dtype), a), a.dtype), a)
        case Call(op="bit_not", args=(a,)):
            return call("bit_xor", a, -1)
    return None
