"""Compute on small types in wide types, and store small types as bits.

Needs: vectors and registers exist; runs before the targets' own `legalise`. Guarantees: operators
apply only to bool and to numbers of 32 and 64 bits. (`select` is an exception: it only moves
values.) No float has less than 32 bits and no integer less than 8: buffers and variables hold the
bits (`small_types`). Each operation rounds or wraps its result. That is exact, because float32 has
more than twice the precision of any small float.

before (uint8, then float16)       after
    Y[i] = A[i] + B[i]                 Y[i] = cast(cast(A[i], int32) + cast(B[i], int32), uint8)
    Y[i] = A[i] + B[i]                 Y[i] = encode(decode(A[i]) + decode(B[i]))      (uint16)
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Literal

import numpy as np

from webmlc.core.dtypes import DType
from webmlc.core.expr import Bitcast, Broadcast, Call, Cast, Const, Expr, Var, call, literal, select
from webmlc.core.rewrite import containing, postorder
from webmlc.loops.ir import (
    Buffer,
    Let,
    Load,
    LoopFunction,
    Stmt,
    Store,
    map_expressions,
    map_statements,
)

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
            return wide_bits & (1 << dtype.bits) - 1
        case DType.bfloat16:
            return Bitcast(_left(wide_bits, 16), DType.float32)
        case DType.float8_e8m0fnu:
            power = select(wide_bits.equals(0), 1 << 22, _left(wide_bits, 23))
            return Bitcast(_where_nan(wide_bits, 0xFF, power), DType.float32)
    return _decode_float(wide_bits, FORMATS[dtype])


def decode_finite_half(bits: Expr) -> Expr:
    """The float32 of the bits of a finite float16, in few operations. The bits become a float32
    that is 2^112 times too small, because the exponents' biases differ by 112. It is subnormal if
    the float16 is, so this needs a target that does not flush subnormal numbers to zero.
    """
    top = _left(bits.astype(DType.int32), 16)
    extended = _right(top, 16 - FORMATS[DType.float16].shift)
    number = extended & _SIGN_AND_HALF
    return Bitcast(number, DType.float32) * 2.0**112


def _decode_float(bits: Expr, form: Format) -> Expr:
    """The float32 of the bits of a small float."""
    payload = bits & form.sign - 1
    rebias = (_BIAS - form.bias) << _MANTISSA
    normal = _left(payload, form.shift) + rebias
    step = literal(2.0 ** (1 - form.bias - form.mantissa), bits, DType.float32)
    subnormal = Bitcast(payload.astype(DType.float32) * step, DType.int32)
    is_subnormal = payload < (1 << form.mantissa)
    magnitude = select(is_subnormal, subnormal, normal)
    match form.special:
        case "ieee":
            special_bits = _left(payload, form.shift) | _INFINITY
            magnitude = select(payload >= form.infinity, special_bits, magnitude)
        case "nan":
            magnitude = _where_nan(payload, form.infinity, magnitude)
    sign = _left(bits & form.sign, 31 - form.exponent - form.mantissa)
    signed = magnitude | sign
    if form.special == "nanuz":
        signed = _where_nan(bits, form.sign, signed, _NEGATIVE_NAN)
    return Bitcast(signed, DType.float32)


def _where_nan(bits: Expr, code: int, otherwise: Expr, nan: int = 0x7FC00000) -> Expr:
    """The bits of a NaN where `bits` equal `code`, else `otherwise`."""
    return select(bits.equals(code), nan, otherwise)


def encode(value: Expr, dtype: DType) -> Expr:
    """The bits of an int32 wrapped into `dtype`, or of the value of `dtype` nearest to a float32,
    with ties to even.
    """
    if dtype in TINY_INTEGERS:
        return (value & (1 << dtype.bits) - 1).astype(DType.uint8)
    bits = Bitcast(value, DType.int32)
    if dtype is DType.bfloat16:
        code = _encode_bfloat16(bits)
    elif dtype is DType.float8_e8m0fnu:
        code = _encode_power(bits)
    else:
        code = _encode_float(bits, FORMATS[dtype])
    return code.astype(storage(dtype))


def _encode_bfloat16(bits: Expr) -> Expr:
    nan = (bits & _MAGNITUDE) > _INFINITY
    odd = _right(bits, 16) & 1
    rounded = _right(bits + 0x7FFF + odd, 16) & 0xFFFF
    return select(nan, 0x7FC0, rounded)


def _encode_power(bits: Expr) -> Expr:
    """The exponent of the nearest power of two, with ties up. A value that is not positive becomes
    NaN.

    Every value between the two smallest powers, 2^-127 and 2^-126, rounds up, as in ml_dtypes.
    """
    bits = call("min", bits, _INFINITY)  # the sums below cannot overflow
    normal = _right(bits + (1 << 22), _MANTISSA)
    subnormal = _right(bits + ((1 << 22) - 1), _MANTISSA)
    code = select(bits < (1 << 23), subnormal, normal)
    return select(bits > 0, code, 0xFF)


def _encode_float(bits: Expr, form: Format) -> Expr:
    """The bits of the small float nearest to a float32, with ties to even."""
    payload = bits & _MAGNITUDE
    odd = _right(payload, form.shift) & 1
    rebias = (_BIAS - form.bias) << _MANTISSA
    half = (1 << (form.shift - 1)) - 1
    normal = _right(payload + (half - rebias) + odd, form.shift)
    # Adding a power of two aligns a subnormal's last bit with float32's, so the addition rounds it.
    align = (_BIAS + form.shift + 1 - form.bias) << _MANTISSA
    magic = Bitcast(literal(align, bits), DType.float32)
    subnormal = Bitcast(Bitcast(payload, DType.float32) + magic, DType.int32) - align
    min_normal = (_BIAS - form.bias + 1) << _MANTISSA
    magnitude = select(payload < min_normal, subnormal, normal)
    sign = _right(bits, 31 - form.exponent - form.mantissa) & form.sign
    return _special(payload, magnitude, sign, form)


def _special(payload: Expr, magnitude: Expr, sign: Expr, form: Format) -> Expr:
    """The code of a rounded magnitude. Values that are too large, and NaN, become the special
    values of the format.
    """
    largest = literal(form.infinity - 1, payload)
    nan = payload > _INFINITY
    too_large = (magnitude > largest) | (payload >= _INFINITY)
    match form.special:
        case "ieee":
            magnitude = select(too_large, form.infinity, magnitude)
            quiet = form.infinity | 1 << (form.mantissa - 1)
            return select(nan, quiet, magnitude) | sign
        case "nan":
            return select(too_large, form.infinity, magnitude) | sign
        case "nanuz":
            signed = select(magnitude.equals(0), magnitude, magnitude | sign)
            return select(too_large, form.sign, signed)
    finite = select(too_large, largest, magnitude) | sign
    return select(nan, call("bit_xor", sign, form.sign), finite)  # as ml_dtypes


def to_odd(value: Expr) -> Expr:
    """A float64 as a float32, rounded to odd. Rounding the result again gives the same as rounding
    the float64 itself (Boldo and Melquiond, 2008).
    """
    nearest = value.astype(DType.float32)
    widened = nearest.astype(DType.float64)
    bits = Bitcast(nearest, DType.int32)
    is_inexact = call("ne", widened, value) & call("eq", widened, widened)
    is_even = (bits & 1).equals(0)
    is_too_large = call("lt", call("abs", value), call("abs", widened))
    odd = bits + select(is_too_large, literal(-1, bits), 1)
    return Bitcast(select(is_inexact & is_even, odd, bits), DType.float32)


def _left(bits: Expr, by: int) -> Expr:
    return call("shift_left", bits, by)


def _right(bits: Expr, by: int) -> Expr:
    return call("shift_right", bits, by)


def legalise_types(function: LoopFunction, printed: frozenset[DType] = frozenset()) -> LoopFunction:
    """Widen every operation of `function` on a small type, and store small types as bits. Types in
    `printed` stay: the target's printer widens and stores them.
    """
    legaliser = _Legaliser(STORED - printed, (SMALL_FLOATS | SMALL_INTEGERS) - printed)
    concerns = containing(*legaliser.stored, *legaliser.small, Cast, "finite")

    def expression(root: Expr) -> Expr:
        return legaliser.expression(root) if concerns(root) else root

    return replace(
        function,
        params=tuple(map(legaliser.buffer, function.params)),
        allocations=tuple(map(legaliser.buffer, function.allocations)),
        body=map_statements(map_expressions(function.body, expression), legaliser.statement),
    )


@dataclass(frozen=True, slots=True)
class _Legaliser:
    """The types to store as bits and to widen, and the legal forms of expressions so far."""

    stored: frozenset[DType]
    small: frozenset[DType]
    results: dict[Expr, Expr] = field(default_factory=dict)

    def buffer(self, buffer: Buffer) -> Buffer:
        """The buffer, with elements of the type that stores them."""
        return replace(buffer, dtype=self.storage(buffer.dtype))

    def storage(self, dtype: DType) -> DType:
        """The type that holds values of `dtype` in memory and in variables."""
        return storage(dtype) if dtype in self.stored else dtype

    def statement(self, node: Stmt) -> Stmt | None:
        match node:
            case Store(buffer=buffer, indices=indices, value=value) if buffer.dtype in self.stored:
                return Store(self.buffer(buffer), indices, value, node.stage)
            case Let(var=var, value=value, body=body) if var.dtype in self.stored:
                return Let(Var(var.name, self.storage(var.dtype)), value, body)
        return None

    def expression(self, root: Expr) -> Expr:
        """Rewrite an expression bottom-up. Rules see the original types."""
        results = self.results
        for node in postorder(root, attrgetter("children"), results):
            results[node] = self.node(node, tuple(map(results.__getitem__, node.children)))
        return results[root]

    def node(self, node: Expr, children: tuple[Expr, ...]) -> Expr:
        """The legal form of `node`, given the legal forms of its children."""
        match node:
            case Const(value=value, dtype=dtype) if dtype in self.stored:
                return bits_of(value, dtype)
            case Var(name=name, dtype=dtype) if dtype in self.stored:
                return Var(name, self.storage(dtype))
            case Load(buffer=buffer) if buffer.dtype in self.stored:
                return Load(self.buffer(buffer), children)
            case Call(op="finite"):
                return children[0]
            case Call(op="select", dtype=dtype):
                return Call("select", children, self.storage(dtype))
            case Call(op=op, args=args, dtype=dtype) if args[-1].dtype in self.small:
                small = args[-1].dtype
                wide_operands = tuple(self.widened(child, small) for child in children)
                if dtype is DType.bool:
                    return Call(op, wide_operands, dtype)
                return self.narrowed(Call(op, wide_operands, wide_operands[-1].dtype), small)
            case Cast(value=Call(op="finite", args=(value,)), dtype=DType.float32) if (
                value.dtype is DType.float16 and value.dtype in self.stored
            ):
                return decode_finite_half(children[0])
            case Cast(value=value, dtype=dtype):
                return self.cast(children[0], value.dtype, dtype)
            case Bitcast(value=value, dtype=dtype) if {value.dtype, dtype} & self.stored:
                return children[0].astype(self.storage(dtype))
        return node if children == node.children else node.rebuild(children)

    def widened(self, value: Expr, dtype: DType) -> Expr:
        """A stored or small value in the type that computes on it."""
        if isinstance(value, Broadcast):  # widen once, and keep the amount of a shift a scalar
            return Broadcast(self.widened(value.value, dtype), value.width)
        return decode(value, dtype) if dtype in self.stored else value.astype(DType.int32)

    def narrowed(self, value: Expr, dtype: DType) -> Expr:
        """A result, rounded or wrapped to the small type."""
        return encode(value, dtype) if dtype in self.stored else value.astype(dtype)

    def cast(self, value: Expr, source: DType, target: DType) -> Expr:
        """The conversion of a value of type `source`, given in its legal form."""
        wide_value = decode(value, source) if source in self.stored else value
        if source == target:
            return value
        if target in TINY_INTEGERS:
            return encode(wide_value.astype(DType.int32), target)
        if target in self.stored:
            is_exact = target is DType.float16 and wide_value.dtype is DType.float64
            return encode(
                to_odd(wide_value) if is_exact else wide_value.astype(DType.float32), target
            )
        return Cast(wide_value, target) if wide_value.dtype != target else wide_value
