"""Convert between the bits of small numbers and the wide values that targets compute on.

Small numbers are floats of 16, 8, 6 and 4 bits, and integers of 4 and 2 bits. In: bits (uint16, or
uint8 for all types that take a byte) or a wide value (float32, int32). Out: the wide value, or the
bits. The conversions use only integer arithmetic, comparisons, and exact float operations on normal
numbers. They work on scalars and vectors alike, on every target.

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

_MANTISSA, _BIAS = 23, 127
"""The mantissa bits and the exponent bias of float32."""
_MAGNITUDE = 0x7FFFFFFF
"""The bits of a float32 but its sign."""
_SIGN_AND_HALF = 0x0FFFE000 - (1 << 31)
"""The bits of a sign and a float16's magnitude in their places of a float32, as an int32."""
_INFINITY = 0x7F800000
"""The bits of float32's infinity."""
_NEGATIVE_NAN = -0x400000
"""The bits of a float32 NaN whose sign bit is set, as an int32."""


@dataclass(frozen=True, slots=True)
class Format:
    """The exponent and mantissa bits of a small float, its exponent bias, and the meaning of its
    largest exponent.

    `"ieee"`: infinity and NaNs. `"nan"`: one NaN, the largest magnitude (OCP's `fn`). `"nanuz"`:
    one NaN, in place of -0 (`fnuz`). `"finite"`: numbers only; larger values saturate.
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
        """The bits after the last finite magnitude: infinity, NaN, or no number."""
        code = self.sign - (1 << self.mantissa if self.special == "ieee" else 0)
        return code - 1 if self.special == "nan" else code

    @property
    def shift(self) -> int:
        """The mantissa bits that float32 has in addition."""
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
"""The floats that have a sign, an exponent, and a mantissa shorter than float32's."""

SMALL_FLOATS = frozenset({*FORMATS, DType.bfloat16, DType.float8_e8m0fnu})
"""The floats that are computed in float32."""
TINY_INTEGERS = frozenset({DType.int4, DType.uint4, DType.int2, DType.uint2})
"""The integers of less than a byte. Each is stored in a byte."""
SMALL_INTEGERS = TINY_INTEGERS | {DType.int8, DType.uint8, DType.int16, DType.uint16}
"""The integers that are computed in int32."""
STORED = SMALL_FLOATS | TINY_INTEGERS
"""The types whose values memory and variables hold as bits."""


def storage(dtype: DType) -> DType:
    """The type that holds a value of `dtype` in memory and in variables."""
    if dtype not in STORED:
        return dtype
    return DType.uint16 if dtype.bytes == 2 else DType.uint8


def bits_of(value: float, dtype: DType) -> Const:
    """The bits of a literal of a stored type."""
    holder = storage(dtype)
    exact = np.asarray(value).astype(dtype.numpy)
    return Const(int(exact.view(holder.numpy)), holder)


def decode(bits: Expr, dtype: DType) -> Expr:
    """The value of the bits of `dtype`: an int32 for integers, a float32 for floats."""
    wide_bits = bits.astype(DType.int32)
    match dtype:
        case DType.int4 | DType.int2:
            spare_bits = 32 - dtype.bits
            return _right(_left(wide_bits, spare_bits), spare_bits)
        case DType.uint4 | DType.uint2:
            return wide_bits & literal((1 << dtype.bits) - 1, wide_bits)
        case DType.bfloat16:
            return Bitcast(_left(wide_bits, 16), DType.float32)
        case DType.float8_e8m0fnu:
            power = select(
                call("eq", wide_bits, literal(0, wide_bits)),
                literal(1 << 22, wide_bits),
                _left(wide_bits, 23),
            )
            return Bitcast(_where_nan(wide_bits, 0xFF, power), DType.float32)
    return _decode_float(wide_bits, FORMATS[dtype])


def decode_finite_half(bits: Expr) -> Expr:
    """The float32 of the bits of a finite float16, in few operations. The bits become a float32
    that is 2^112 times too small, because the exponents' biases differ by 112. It is subnormal if
    the float16 is, so this needs a target that does not flush subnormal numbers to zero.
    """
    top = _left(bits.astype(DType.int32), 16)
    extended = _right(top, 16 - FORMATS[DType.float16].shift)
    number = extended & literal(_SIGN_AND_HALF, extended)
    return Bitcast(number, DType.float32) * literal(2.0**112, number, DType.float32)


def _decode_float(bits: Expr, form: Format) -> Expr:
    """The float32 of the bits of a small float."""
    payload = bits & literal(form.sign - 1, bits)
    rebias = (_BIAS - form.bias) << _MANTISSA
    normal = _left(payload, form.shift) + literal(rebias, bits)
    step = literal(2.0 ** (1 - form.bias - form.mantissa), bits, DType.float32)
    subnormal = Bitcast(payload.astype(DType.float32) * step, DType.int32)
    is_subnormal = call("lt", payload, literal(1 << form.mantissa, bits))
    magnitude = select(is_subnormal, subnormal, normal)
    match form.special:
        case "ieee":
            special_bits = _left(payload, form.shift) | literal(_INFINITY, bits)
            magnitude = select(
                call("ge", payload, literal(form.infinity, bits)), special_bits, magnitude
            )
        case "nan":
            magnitude = _where_nan(payload, form.infinity, magnitude)
    sign = _left(bits & literal(form.sign, bits), 31 - form.exponent - form.mantissa)
    signed = magnitude | sign
    if form.special == "nanuz":
        signed = _where_nan(bits, form.sign, signed, _NEGATIVE_NAN)
    return Bitcast(signed, DType.float32)


def _where_nan(bits: Expr, code: int, otherwise: Expr, nan: int = 0x7FC00000) -> Expr:
    """The bits of a NaN where `bits` equal `code`, else `otherwise`."""
    return select(call("eq", bits, literal(code, bits)), literal(nan, bits), otherwise)


def encode(value: Expr, dtype: DType) -> Expr:
    """The bits of an int32 wrapped into `dtype`, or of the value of `dtype` nearest to a float32,
    with ties to even.
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
    """The exponent of the nearest power of two, with ties up. A value that is not positive becomes
    NaN.

    Every value between the two smallest powers, 2^-127 and 2^-126, rounds up, as in ml_dtypes.
    """
    bits = call("min", bits, literal(_INFINITY, bits))  # the sums below cannot overflow
    normal = _right(bits + literal(1 << 22, bits), _MANTISSA)
    subnormal = _right(bits + literal((1 << 22) - 1, bits), _MANTISSA)
    code = select(call("lt", bits, literal(1 << 23, bits)), subnormal, normal)
    return select(call("gt", bits, literal(0, bits)), code, literal(0xFF, bits))


def _encode_float(bits: Expr, form: Format) -> Expr:
    """The bits of the small float nearest to a float32, with ties to even."""
    payload = bits & literal(_MAGNITUDE, bits)
    odd = _right(payload, form.shift) & literal(1, bits)
    rebias = (_BIAS - form.bias) << _MANTISSA
    half = (1 << (form.shift - 1)) - 1
    normal = _right(payload + literal(half - rebias, bits) + odd, form.shift)
    # Adding a power of two aligns a subnormal's last bit with float32's, so the addition rounds it.
    align = (_BIAS + form.shift + 1 - form.bias) << _MANTISSA
    magic = Bitcast(literal(align, bits), DType.float32)
    subnormal = Bitcast(Bitcast(payload, DType.float32) + magic, DType.int32) - literal(align, bits)
    min_normal = (_BIAS - form.bias + 1) << _MANTISSA
    magnitude = select(call("lt", payload, literal(min_normal, bits)), subnormal, normal)
    sign = _right(bits, 31 - form.exponent - form.mantissa) & literal(form.sign, bits)
    return _special(payload, magnitude, sign, form)


def _special(payload: Expr, magnitude: Expr, sign: Expr, form: Format) -> Expr:
    """The code of a rounded magnitude. Values that are too large, and NaN, become the special
    values of the format.
    """
    largest = literal(form.infinity - 1, payload)
    nan = call("gt", payload, literal(_INFINITY, payload))
    too_large = call("gt", magnitude, largest) | call("ge", payload, literal(_INFINITY, payload))
    match form.special:
        case "ieee":
            magnitude = select(too_large, literal(form.infinity, payload), magnitude)
            quiet = form.infinity | 1 << (form.mantissa - 1)
            return select(nan, literal(quiet, payload), magnitude) | sign
        case "nan":
            return select(too_large, literal(form.infinity, payload), magnitude) | sign
        case "nanuz":
            signed = select(call("eq", magnitude, literal(0, payload)), magnitude, magnitude | sign)
            return select(too_large, literal(form.sign, payload), signed)
    finite = select(too_large, largest, magnitude) | sign
    return select(nan, call("bit_xor", sign, literal(form.sign, payload)), finite)  # as ml_dtypes


def to_odd(value: Expr) -> Expr:
    """A float64 as a float32, rounded to odd. Rounding the result again gives the same as rounding
    the float64 itself (Boldo and Melquiond, 2008).
    """
    nearest = value.astype(DType.float32)
    widened = nearest.astype(DType.float64)
    bits = Bitcast(nearest, DType.int32)
    is_inexact = call("ne", widened, value) & call("eq", widened, widened)
    is_even = call("eq", bits & literal(1, bits), literal(0, bits))
    is_too_large = call("lt", call("abs", value), call("abs", widened))
    odd = bits + select(is_too_large, literal(-1, bits), literal(1, bits))
    return Bitcast(select(is_inexact & is_even, odd, bits), DType.float32)


def _left(bits: Expr, by: int) -> Expr:
    return Call("shift_left", (bits, literal(by, bits)), bits.dtype)


def _right(bits: Expr, by: int) -> Expr:
    return Call("shift_right", (bits, literal(by, bits)), bits.dtype)
