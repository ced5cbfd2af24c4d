"""Cast, CastLike, BitCast and RoundToHalf: conversions between element types.

Except for the 8-bit floats, numbers convert as in numpy and ml_dtypes. Floats round to the nearest
float, ties to even. Floats become integers by truncation (`truncated` says which results numbers
have that do not fit). Integers that do not fit wrap. A conversion to an 8-bit float saturates
unless the node says otherwise. Powers of two (float8e8m0) have their own rounding modes
(`_to_e8m0`).
"""

from __future__ import annotations

from webmlc.core.dtypes import DType
from webmlc.core.expr import Bitcast, Const, Expr, call, const, minimum, select
from webmlc.graph.compute import Tensor
from webmlc.graph.element_types import ELEMENT_TYPES
from webmlc.graph.ir import TensorType
from webmlc.graph.ops.operator import Context, NotSupportedError, Operator, case, same_type
from webmlc.graph.ops.shapes import pointwise

SATURATING = frozenset(
    {DType.float8_e4m3fn, DType.float8_e4m3fnuz, DType.float8_e5m2, DType.float8_e5m2fnuz}
)
"""The types to which a conversion may saturate: a number that is too large becomes the type's
largest number. Without saturation it becomes infinity or NaN, depending on the type.
"""

HALF_ROUNDINGS = {DType.float16: "round_float16", DType.bfloat16: "round_bfloat16"}
"""The scalar operators that round a float32 to a half."""


def cast_to(x: Expr, dtype: DType, saturate: bool = True, round_mode: str = "up") -> Expr:
    """Convert `x` as ONNX's Cast does. `round_mode` is the rounding mode of float8e8m0."""
    if dtype is DType.bool and x.dtype is not DType.bool:
        return call("ne", x, 0)
    if dtype is DType.float8_e8m0fnu and x.dtype is not dtype:
        return _to_e8m0(x.astype(DType.float32), saturate, round_mode)
    if dtype in SATURATING and saturate:
        return clamped(x, dtype).astype(dtype)
    if dtype.is_integer and x.dtype.is_float:
        return truncated(x, dtype)
    return x.astype(dtype)


def truncated(x: Expr, dtype: DType) -> Expr:
    """Truncate a float to an integer. ONNX leaves NaN and numbers that do not fit undefined. Here
    every device gives the result of numpy and onnxruntime on x86:

    - int32, int64: the lowest integer.
    - integers of fewer bits: the lowest bits of the int32. As a uint8, 300 becomes 44.
    - uint32, uint64: a negative number of the signed type wraps. A number that does not fit becomes
      0 if it is too large, else half of the range.
    """
    number = x if x.dtype is DType.float64 else x.astype(DType.float32)
    signed_dtype = DType.int64 if dtype.bits == 64 else DType.int32
    half = 1 << (signed_dtype.bits - 1)
    if dtype.is_signed or dtype.bits < 32:
        return _truncated_signed(number, signed_dtype).astype(dtype)
    is_high = number >= float(half)
    low_part = number - select(is_high, float(half), Const(0.0, number.dtype))
    whole = _truncated_signed(low_part, signed_dtype).astype(dtype)
    return whole + select(is_high, Const(half, dtype), Const(0, dtype))


def _truncated_signed(x: Expr, dtype: DType) -> Expr:
    """Truncate a float to an int32 or int64; numbers that do not fit become the lowest integer."""
    limit = float(1 << (dtype.bits - 1))
    fits = (x >= -limit) & (x < limit)
    return select(fits, x, Const(-limit, x.dtype)).astype(dtype)


def clamped(x: Expr, dtype: DType) -> Expr:
    """Convert `x` to float32 (float64 stays), and limit it to the finite numbers of `dtype`. NaN
    stays.
    """
    number = x if x.dtype is DType.float64 else x.astype(DType.float32)
    low, high = (Const(limit, number.dtype) for limit in dtype.limits)
    return select(number > high, high, select(number < low, low, number))


def _to_e8m0(x: Expr, saturate: bool, round_mode: str) -> Expr:
    """Convert float32 to a power of two. The result is the biased exponent, plus 1 if the mantissa
    rounds up. The sign is ignored, and 0xFF is NaN.

    Code c stands for 2^(c - 127). Code 0, 2^-127, is a subnormal of float32 (bits `1 << 22`), so
    numbers below 2^-126 have a separate rule, as in ONNX's reference.
    """
    bits = Bitcast(x, DType.int32) & 0x7FFFFFFF
    match round_mode:
        case "up":
            addend = 0x7FFFFF
        case "nearest":
            addend = 1 << 22  # half of the mantissa: ties go up
        case "down":
            addend = 0
        case _:
            raise NotSupportedError(f"round_mode {round_mode!r}")
    code = call("shift_right", bits + addend, 23)
    if addend:  # the next power after 2^-127 is the smallest normal number
        code = select(bits < 1 << 23, select(bits > 1 << 22, 1, const(0)), code)
    if saturate:
        code = minimum(code, 0xFE)
    else:
        code = select(bits < 1 << 22, const(0xFF), minimum(code, 0xFF))
    code = select(bits > 0x7F800000, const(0xFF), code)
    return Bitcast(code.astype(DType.uint8), DType.float8_e8m0fnu)


def named_type(context: Context, attribute: str) -> DType:
    """Read an attribute as the ONNX number of an element type, and return the type."""
    dtype = ELEMENT_TYPES.get(int(context.attribute(attribute, 0)))
    if dtype is None:
        raise NotSupportedError(f"element type {context.attribute(attribute)} is not supported")
    return dtype


def _cast_type(context: Context) -> TensorType:
    return TensorType(named_type(context, "to"), context.shape(0))


def _cast_like_type(context: Context) -> TensorType:
    return TensorType(context.dtype(1), context.shape(0))


def _cast(context: Context, x: Tensor, *_: Tensor) -> Tensor:
    dtype = context.outputs[0].dtype
    saturate = bool(context.attribute("saturate", 1))
    round_mode = context.attribute("round_mode", "up")
    return pointwise(
        context, "cast", (x,), lambda element: cast_to(element, dtype, saturate, round_mode)
    )


def _bit_cast_type(context: Context) -> TensorType:
    y = _cast_type(context)
    if y.dtype.bits != context.dtype(0).bits:
        raise NotSupportedError(f"{context.dtype(0).name} and {y.dtype.name} differ in size")
    return y


def _bit_cast(context: Context, x: Tensor) -> Tensor:
    dtype = context.outputs[0].dtype
    return pointwise(context, "bit_cast", (x,), lambda v: Bitcast(v, dtype))


def _round_to_half(context: Context, x: Tensor) -> Tensor:
    """The nearest numbers of a small float, as float32 (`graph/layout/widen_halves.py`)."""
    rounding = HALF_ROUNDINGS[named_type(context, "to")]
    return pointwise(context, "rounded", (x,), lambda v: call(rounding, v))


ROUND_MODE = {"round_mode": ("up", "down", "nearest")}
"""How float8_e8m0fnu is rounded."""

X = "float32[3, 4]"

OPS: tuple[Operator, ...] = (
    Operator("Cast", _cast_type, _cast, kind="elementwise", choices=ROUND_MODE, cases=(
        case(X, to=7), case(X, to=9), case("int64[4] in -2..2", to=1), case("bool[4]", to=1),
        case("float32[4] in -3..3", to=10), case("int32[4] in 0..9", to=3),
        case("float32[9] in -600..600", to=17), case("float32[9] in -600..600", to=18, saturate=0),
        case("float16[9] in 0.1..9", to=24, round_mode="nearest"),
        case("int32[9] in -99..99", to=22), case("uint4[9] in 0..15", to=16))),
    Operator("BitCast", _bit_cast_type, _bit_cast, kind="elementwise", cases=(
        case(X, to=6), case("int64[4] in -9..9", to=13))),
    Operator("RoundToHalf", same_type, _round_to_half,
             kind="elementwise", domain="webmlc"),
    Operator("CastLike", _cast_like_type, _cast, kind="elementwise", choices=ROUND_MODE, cases=(
        case(X, "int32[1]"), case("int64[4] in -2..2", X), case(X, "float8_e5m2[1]"))),
)  # fmt: skip
