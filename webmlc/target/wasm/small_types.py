"""Types that WASM stores but does not compute: small integers and 16-bit floats.

Small integers are promoted to int32 and wrapped back; float16 and bfloat16 live in memory and
variables as their bits (`uint16`) and are widened to float32 for every operation, then rounded to
nearest even (one operation at a time, which is exact: float32 has more than twice their precision).

before (uint8, then float16)       after
    Y[i] = A[i] + B[i]                 Y[i] = cast(cast(A[i], int32) + cast(B[i], int32), uint8)
    Y[i] = A[i] + B[i]                 Y[i] = encode(decode(A[i]) + decode(B[i]))      (uint16)
"""

from __future__ import annotations

from webmlc.core.dtypes import DType
from webmlc.core.expr import Bitcast, Const, Expr, call, select

SMALL_FLOATS = frozenset({DType.float16, DType.bfloat16})
SMALL_INTEGERS = frozenset({DType.int8, DType.uint8, DType.int16, DType.uint16})


def storage(dtype: DType) -> DType:
    """The type that holds a value of `dtype` in memory and in variables."""
    return DType.uint16 if dtype in SMALL_FLOATS else dtype


def bits_of(value: float, dtype: DType) -> Const:
    """A literal of a small float as its bits."""
    import numpy as np

    exact = np.asarray(value).astype(dtype.numpy)
    return Const(int(exact.view(np.uint16)), DType.uint16)


def decode(bits: Expr, dtype: DType) -> Expr:
    """The float32 value of the bits of a small float."""
    wide = bits.astype(DType.int32)
    if dtype is DType.bfloat16:
        return Bitcast(call("shift_left", wide, Const(16)), DType.float32)
    sign = call("shift_left", wide & Const(0x8000), Const(16))
    rest = wide & Const(0x7FFF)
    # Subnormals come right by themselves: the product is exact.
    shifted = Bitcast(call("shift_left", rest, Const(13)), DType.float32)
    normal = Bitcast(shifted * Const(2.0**112, DType.float32), DType.int32)
    special = call("bit_or", call("shift_left", rest, Const(13)), Const(0x7F800000))
    magnitude = select(call("ge", rest, Const(0x7C00)), special, normal)
    return Bitcast(call("bit_or", magnitude, sign), DType.float32)


def encode(value: Expr, dtype: DType) -> Expr:
    """The bits of the small float nearest to a float32 value, ties to even."""
    bits = Bitcast(value, DType.int32)
    nan = call("isnan", value)
    if dtype is DType.bfloat16:
        odd = call("shift_right", bits, Const(16)) & Const(1)
        rounded = call("shift_right", bits + Const(0x7FFF) + odd, Const(16)) & Const(0xFFFF)
        return select(nan, Const(0x7FC0), rounded).astype(DType.uint16)
    sign = call("shift_right", bits, Const(16)) & Const(0x8000)
    rest = bits & Const(0x7FFFFFFF)
    odd = call("shift_right", rest, Const(13)) & Const(1)
    rebased = call("shift_right", rest - Const(112 << 23) + Const(0xFFF) + odd, Const(13))
    # Adding 0.5 aligns a subnormal's last bit with float32's, so the addition rounds it.
    half = Const(0.5, DType.float32)
    tiny = Bitcast(Bitcast(rest, DType.float32) + half, DType.int32) - Const(0x3F000000)
    magnitude = select(call("lt", rest, Const(113 << 23)), tiny, rebased)
    magnitude = select(call("ge", rest, Const(0x477FF000)), Const(0x7C00), magnitude)
    magnitude = select(nan, Const(0x7E00), magnitude)
    return call("bit_or", magnitude, sign).astype(DType.uint16)
