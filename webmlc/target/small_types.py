"""Numbers that no target computes on, as bits: 16-bit floats, those of 8, 6 and 4 bits, and
integers of 4 and 2 bits.

In: bits (uint16, or uint8 for all that take a byte) or a wide value (float32, int32). Out: the wide
value, or the bits. Only integer arithmetic, comparisons, and exact float operations on normal
numbers: scalars and vectors alike, on every target.

    decode(bits, DType.float16)           float32, exact
    encode(value, DType.float8_e4m3fn)    nearest, ties to even; too large becomes NaN
    encode(value, DType.int4)             the lowest 4 bits of an int32
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from webmlc.core.dtypes import DType
from webmlc.core.expr import Bitcast, Call, Const, Expr, call, literal, select

_MANTISSA, _BIAS = 23, 127  # of float32
_MAGNITUDE = 0x7FFFFFFF
_INFINITY = 0x7F800000
_NEGATIVE_NAN = -0x400000


@dataclass(frozen=True, slots=True)
class Format:
    """Exponent and mantissa bits of a small float, its exponent bias, and what its largest
    exponent means.

    `"ieee"`: infinity and NaNs. `"nan"`: one NaN, the largest magnitude (OCP's `fn`). `"nanuz"`:
    one NaN, where -0 would be (`fnuz`). `"finite"`: numbers only, what is too large saturates.
    """

    exponent: int
    mantissa: int
    bias: int
    special: Literal["ieee", "nan", "nanuz", "finite"]

    @property
    def sign(self) -> int:
        """The sign bit."""
        return 1 << (self.exponent + self.mantissa)

    @property
    def infinity(self) -> int:
        """The bits past the last finite magnitude: infinity, NaN, or no number."""
        past = self.sign - (1 << self.mantissa if self.special == "ieee" else 0)
        return past - 1 if self.special == "nan" else past

    @property
    def shift(self) -> int:
        """Mantissa bits that float32 has more."""
        return _MANTISSA - self.mantissa


FORMATS: dict[DType, Format] = {
    DType.float16: Format(5, 10, 15, "ieee"),
    DType.float8_e5m2: Format(5, 2, 15, "ieee"),
    DType.float8_e4m3fn: Format(4, 3, 7, "nan"),
    DType.float8_e4m3fnuz: Format(4, 3, 8, "nanuz"),
    DType.float8_e5m2fnuz: Format(5, 2, 16, "nanuz"),
    DType.float6_e3m2fn: Format(3, 2, 3, "finite"),
    DType.float6_e2m3fn: Format(2, 3, 1, "finite"),
    DType.float4_e2m1fn: Format(2, 1, 1, "finite"),
}
"""The floats that are a sign, an exponent and a mantissa shorter than float32's."""

SMALL_FLOATS = frozenset({*FORMATS, DType.bfloat16, DType.float8_e8m0fnu})
"""Floats that are computed in float32."""
TINY_INTEGERS = frozenset({DType.int4, DType.uint4, DType.int2, DType.uint2})
"""Integers of less than a byte, which is stored."""
SMALL_INTEGERS = TINY_INTEGERS | {DType.int8, DType.uint8, DType.int16, DType.uint16}
"""Integers that are computed in int32."""
STORED = SMALL_FLOATS | TINY_INTEGERS
"""What memory and variables hold as bits."""


def storage(dtype: DType) -> DType:
    """The type that holds a value of `dtype` in memory and in variables."""
    if dtype not in STORED:
        return dtype
    return DType.uint16 if dtype.bytes == 2 else DType.uint8


def bits_of(value: float, dtype: DType) -> Const:
    """A literal of a stored type as its bits."""
    holder = storage(dtype)
    exact = np.asarray(value).astype(dtype.numpy)
    return Const(int(exact.view(holder.numpy)), holder)


def decode(bits: Expr, dtype: DType) -> Expr:
    """The value that bits of `dtype` stand for: int32 of an integer, float32 of a float."""
    wide = bits.astype(DType.int32)
    match dtype:
        case DType.int4 | DType.int2:
            spare = 32 - dtype.bits
            return _right(_left(wide, spare), spare)
        case DType.uint4 | DType.uint2:
            return wide & literal((1 << dtype.bits) - 1, wide)
        case DType.bfloat16:
            return Bitcast(_left(wide, 16), DType.float32)
        case DType.float8_e8m0fnu:
            power = select(
                call("eq", wide, literal(0, wide)), literal(1 << 22, wide), _left(wide, 23)
            )
            return Bitcast(_where_nan(wide, 0xFF, power), DType.float32)
    return _decode_float(wide, FORMATS[dtype])


def _decode_float(bits: Expr, form: Format) -> Expr:
    rest = bits & literal(form.sign - 1, bits)
    rebias = (_BIAS - form.bias) << _MANTISSA
    normal = _left(rest, form.shift) + literal(rebias, bits)
    step = literal(2.0 ** (1 - form.bias - form.mantissa), bits, DType.float32)
    subnormal = Bitcast(rest.astype(DType.float32) * step, DType.int32)
    is_subnormal = call("lt", rest, literal(1 << form.mantissa, bits))
    magnitude = select(is_subnormal, subnormal, normal)
    match form.special:
        case "ieee":
            special = _left(rest, form.shift) | literal(_INFINITY, bits)
            magnitude = select(call("ge", rest, literal(form.infinity, bits)), special, magnitude)
        case "nan":
            magnitude = _where_nan(rest, form.infinity, magnitude)
    sign = _left(bits & literal(form.sign, bits), 31 - form.exponent - form.mantissa)
    signed = magnitude | sign
    if form.special == "nanuz":
        signed = _where_nan(bits, form.sign, signed, _NEGATIVE_NAN)
    return Bitcast(signed, DType.float32)


def _where_nan(bits: Expr, code: int, otherwise: Expr, nan: int = 0x7FC00000) -> Expr:
    """The bits of a NaN where `bits` are `code`."""
    return select(call("eq", bits, literal(code, bits)), literal(nan, bits), otherwise)


def encode(value: Expr, dtype: DType) -> Expr:
    """The bits of an int32 wrapped into `dtype`, or of the number of `dtype` nearest to a float32,
    ties to even.
    """
    if dtype in TINY_INTEGERS:
        return (value & literal((1 << dtype.bits) - 1, value)).astype(DType.uint8)
    bits = Bitcast(value, DType.int32)
    if dtype is DType.bfloat16:
        code = _encode_bfloat16(bits)
    elif dtype is DType.float8_e8m0fnu:
        code = _encode_power(bits)
    else:
        code = _encode_float(bits, FORMATS[dtype])
    return code.astype(storage(dtype))


def _encode_bfloat16(bits: Expr) -> Expr:
    nan = call("gt", bits & literal(_MAGNITUDE, bits), literal(_INFINITY, bits))
    odd = _right(bits, 16) & literal(1, bits)
    rounded = _right(bits + literal(0x7FFF, bits) + odd, 16) & literal(0xFFFF, bits)
    return select(nan, literal(0x7FC0, bits), rounded)


def _encode_power(bits: Expr) -> Expr:
    """The exponent of the nearest power of two, ties up; what is not positive becomes NaN.

    ml_dtypes rounds up all that lies between the two smallest, 2^-127 and 2^-126.
    """
    bits = call("min", bits, literal(_INFINITY, bits))  # what follows does not overflow
    normal = _right(bits + literal(1 << 22, bits), _MANTISSA)
    subnormal = _right(bits + literal((1 << 22) - 1, bits), _MANTISSA)
    code = select(call("lt", bits, literal(1 << 23, bits)), subnormal, normal)
    return select(call("gt", bits, literal(0, bits)), code, literal(0xFF, bits))


def _encode_float(bits: Expr, form: Format) -> Expr:
    rest = bits & literal(_MAGNITUDE, bits)
    odd = _right(rest, form.shift) & literal(1, bits)
    rebias = (_BIAS - form.bias) << _MANTISSA
    half = (1 << (form.shift - 1)) - 1
    normal = _right(rest + literal(half - rebias, bits) + odd, form.shift)
    # Adding a power of two aligns a subnormal's last bit with float32's, so the addition rounds it.
    align = (_BIAS + form.shift + 1 - form.bias) << _MANTISSA
    magic = Bitcast(literal(align, bits), DType.float32)
    subnormal = Bitcast(Bitcast(rest, DType.float32) + magic, DType.int32) - literal(align, bits)
    least = (_BIAS - form.bias + 1) << _MANTISSA
    magnitude = select(call("lt", rest, literal(least, bits)), subnormal, normal)
    sign = _right(bits, 31 - form.exponent - form.mantissa) & literal(form.sign, bits)
    return _special(rest, magnitude, sign, form)


def _special(rest: Expr, magnitude: Expr, sign: Expr, form: Format) -> Expr:
    """The code of a rounded magnitude: what is too large or NaN becomes what the format has."""
    largest = literal(form.infinity - 1, rest)
    nan = call("gt", rest, literal(_INFINITY, rest))
    too_large = call("gt", magnitude, largest) | call("ge", rest, literal(_INFINITY, rest))
    match form.special:
        case "ieee":
            magnitude = select(too_large, literal(form.infinity, rest), magnitude)
            quiet = form.infinity | 1 << (form.mantissa - 1)
            return select(nan, literal(quiet, rest), magnitude) | sign
        case "nan":
            return select(too_large, literal(form.infinity, rest), magnitude) | sign
        case "nanuz":
            signed = select(call("eq", magnitude, literal(0, rest)), magnitude, magnitude | sign)
            return select(too_large, literal(form.sign, rest), signed)
    finite = select(too_large, largest, magnitude) | sign
    return select(nan, call("bit_xor", sign, literal(form.sign, rest)), finite)  # as ml_dtypes


def to_odd(value: Expr) -> Expr:
    """A float64 as float32, rounded to odd: rounding that again is as rounding the float64 itself
    (Boldo and Melquiond, 2008).
    """
    nearest = value.astype(DType.float32)
    back = nearest.astype(DType.float64)
    bits = Bitcast(nearest, DType.int32)
    inexact = call("ne", back, value) & call("eq", back, back)
    even = call("eq", bits & literal(1, bits), literal(0, bits))
    beyond = call("lt", call("abs", value), call("abs", back))
    odd = bits + select(beyond, literal(-1, bits), literal(1, bits))
    return Bitcast(select(inexact & even, odd, bits), DType.float32)


def _left(bits: Expr, by: int) -> Expr:
    return Call("shift_left", (bits, literal(by, bits)), bits.dtype)


def _right(bits: Expr, by: int) -> Expr:
    return Call("shift_right", (bits, literal(by, bits)), bits.dtype)
