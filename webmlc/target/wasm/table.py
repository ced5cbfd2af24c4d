"""Map operators, element types and lanes to WASM instructions.

In: a scalar operator and the class of its operands (`"f32"`, `"u32"`, `"f32x4"`, ...). Out: an
instruction, or `None` where there is none and `legalise` must have rewritten it. No instruction
computes on small integers: `legalise_types` promotes them to int32.

    >>> instruction("add", "f32x4"), instruction("lt", "u32"), value_type(DType.int64, 1)
    ('f32x4.add', 'i32.lt_u', 'i64')
"""

from __future__ import annotations

import re

from webmlc.core.dtypes import DType
from webmlc.target.wasm.functions import CALLS


def _same(names: str, suffix: str = "") -> dict[str, str]:
    """Operators whose instructions have the same names, with a suffix."""
    return {name: name + suffix for name in names.split()}


_ANY = _same("add sub mul eq ne")
_FLOAT = {
    **_ANY,
    **_same("lt le gt ge div min max neg abs floor ceil trunc sqrt"),
    "round": "nearest",
}
_BITS = {"bit_and": "and", "bit_or": "or", "bit_xor": "xor"}
_SIGNED = {
    **_ANY,
    **_BITS,
    **_same("lt le gt ge", "_s"),
    "truncdiv": "div_s",
    "truncmod": "rem_s",
    "shift_left": "shl",
    "shift_right": "shr_s",
}
_UNSIGNED = {op: re.sub("_s$", "_u", name) for op, name in _SIGNED.items()}
_UNSIGNED |= {"floordiv": "div_u", "floormod": "rem_u"}
_SIGNED_LANES = {**_ANY, **_same("lt le gt ge min max", "_s"), **_same("neg abs")}
_UNSIGNED_LANES = {op: re.sub("_s$", "_u", name) for op, name in _SIGNED_LANES.items()}
_WORDS_OF_PAIRS = {"dot_i16": "i32x4.dot_i16x8_s", "add_i16": "i16x8.add"}
_VECTOR_BITS = {"bit_and": "v128.and", "bit_or": "v128.or", "bit_xor": "v128.xor"}


def _rows(prefix: str, names: dict[str, str]) -> dict[str, str]:
    """The instructions of a type, by operator, and the calls of functions that take the type."""
    calls = {op: f"call {name}" for (op, kind), name in CALLS.items() if kind == prefix}
    return {op: f"{prefix}.{name}" for op, name in names.items()} | calls


INSTRUCTIONS: dict[str, dict[str, str]] = {
    "f32": _rows("f32", _FLOAT),
    "f64": _rows("f64", _FLOAT),
    "i32": _rows("i32", _SIGNED),
    "u32": _rows("i32", _UNSIGNED),
    "i64": _rows("i64", _SIGNED),
    "u64": _rows("i64", _UNSIGNED),
    "bool": _rows("i32", _BITS | {"eq": "eq", "ne": "ne"}),
    "f32x4": _rows("f32x4", _FLOAT),
    "i32x4": _rows("i32x4", _SIGNED_LANES) | _VECTOR_BITS | _WORDS_OF_PAIRS,
    "u32x4": _rows("i32x4", _UNSIGNED_LANES) | _VECTOR_BITS,
    "mask": _VECTOR_BITS | {"eq": "i32x4.eq", "ne": "v128.xor"},
}
"""The instructions, by the class of the operands and then by operator."""

LANE_SHIFTS = {
    ("shift_left", "i32x4"): "i32x4.shl",
    ("shift_left", "u32x4"): "i32x4.shl",
    ("shift_right", "i32x4"): "i32x4.shr_s",
    ("shift_right", "u32x4"): "i32x4.shr_u",
}
"""The vector shifts, by operator and class. The amount is one scalar."""

HALVES = {
    "even_i8": ("i16x8.shl (i32.const 8)", "i16x8.shr_s (i32.const 8)"),
    "odd_i8": ("i16x8.shr_s (i32.const 8)",),
    "odd_u8": ("i16x8.shr_u (i32.const 8)",),
}
"""The instructions that turn every second byte into a 16-bit lane, in order. Each has its
second operand behind its name.
"""

INTERLEAVED = {
    1: "i8x16.shuffle 0 16 1 17 2 18 3 19 4 20 5 21 6 22 7 23",
    2: "i8x16.shuffle 0 1 16 17 2 3 18 19 4 5 20 21 6 7 22 23",
}
"""The instruction that interleaves the lower halves of two vectors, by the bytes of an element."""

LOWEST_BYTES = ("i8x16.swizzle (v128.const i8x16 0 4 8 12 0 4 8 12 0 4 8 12 0 4 8 12)",)
"""The instruction that moves the lowest byte of each lane to the first four bytes."""

_BYTES = ("v128.load32_zero", "i16x8.extend_low_i8x16_u", "i32x4.extend_low_i16x8_u")
"""The instructions that load four unsigned bytes into 32-bit lanes."""
LANE_LOADS = {
    DType.bool: (*_BYTES, "i32x4.neg"),
    DType.uint8: _BYTES,
    DType.int8: ("v128.load32_zero", "i16x8.extend_low_i8x16_s", "i32x4.extend_low_i16x8_s"),
    DType.uint16: ("v128.load16x4_u",),
    DType.int16: ("v128.load16x4_s",),
}
"""The instructions that load four adjacent small integers into 32-bit lanes, and booleans as masks:
a load, then conversions.
"""

LANE_STORES = {
    DType.bool: ("v128.store32_lane", "i8x16.narrow_i16x8_u"),
    DType.uint8: ("v128.store32_lane", "i8x16.narrow_i16x8_u"),
    DType.int8: ("v128.store32_lane", "i8x16.narrow_i16x8_s"),
    DType.uint16: ("v128.store64_lane", "i16x8.narrow_i32x4_u"),
    DType.int16: ("v128.store64_lane", "i16x8.narrow_i32x4_s"),
}
"""The store of four adjacent small integers, and the instruction that narrows lanes to them. The
values fit, so saturation does not change them. Bytes are narrowed twice.
"""

_CLASSES = {
    DType.float32: "f32",
    DType.float64: "f64",
    DType.int64: "i64",
    DType.uint64: "u64",
    DType.uint32: "u32",
    DType.bool: "bool",
}
"""The class of a scalar of each type; all other types are computed as `"i32"`."""


def class_of(dtype: DType, lanes: int) -> str:
    """The row of `INSTRUCTIONS` for operands of this type."""
    if lanes == 1:
        return _CLASSES.get(dtype, "i32")
    if dtype is DType.bool:
        return "mask"
    return {DType.float32: "f32x4", DType.uint32: "u32x4"}.get(dtype, "i32x4")


def value_type(dtype: DType, lanes: int) -> str:
    """The WASM type that holds a value."""
    if lanes > 1:
        return "v128"
    name = class_of(dtype, 1)
    return {"u32": "i32", "bool": "i32", "u64": "i64"}.get(name, name)


_NARROW = {DType.bool: "8_u", DType.uint8: "8_u", DType.int8: "8_s"}
_NARROW |= {DType.uint16: "16_u", DType.int16: "16_s"}
"""The ending of the instructions that load small elements."""


def load_instruction(dtype: DType) -> str:
    """The instruction that loads an element."""
    return f"{value_type(dtype, 1)}.load{_NARROW.get(dtype, '')}"


def store_instruction(dtype: DType) -> str:
    """The instruction that stores an element."""
    return f"{value_type(dtype, 1)}.store{_NARROW.get(dtype, '').partition('_')[0]}"


def instruction(op: str, kind: str) -> str | None:
    """The instruction of an operator on operands of a class, or `None`."""
    return INSTRUCTIONS[kind].get(op)


def conversion(source: DType, target: DType, lanes: int) -> tuple[str, ...] | None:
    """The instructions that convert a number, in order; `None` where `legalise` must rewrite it.

    Floats become integers by truncation that saturates; integers wrap. `legalise` rewrites
    conversions to and from bool.
    """
    return (_vector_conversion if lanes > 1 else _scalar_conversion)(source, target)


_VECTOR_CONVERSIONS: dict[tuple[DType, DType], tuple[str, ...]] = {
    (DType.int32, DType.float32): ("f32x4.convert_i32x4_s",),
    (DType.uint32, DType.float32): ("f32x4.convert_i32x4_u",),
    (DType.float32, DType.int32): ("i32x4.trunc_sat_f32x4_s",),
    (DType.float32, DType.uint32): ("i32x4.trunc_sat_f32x4_u",),
    (DType.int32, DType.uint32): (),
    (DType.uint32, DType.int32): (),
}
"""The instructions that convert 32-bit lanes."""
_NARROW_LANES = {
    DType.int8: ("i32x4.shl (i32.const 24)", "i32x4.shr_s (i32.const 24)"),
    DType.int16: ("i32x4.shl (i32.const 16)", "i32x4.shr_s (i32.const 16)"),
    DType.uint8: ("v128.and (v128.const i32x4 255 255 255 255)",),
    DType.uint16: ("v128.and (v128.const i32x4 65535 65535 65535 65535)",),
}
"""The instructions that wrap 32-bit lanes into the range of a small integer."""


def _vector_conversion(source: DType, target: DType) -> tuple[str, ...] | None:
    """The conversion of lanes. Lanes of small integers hold their values as int32."""
    lane_type = DType.int32 if source in _NARROW_LANES else source
    if target not in _NARROW_LANES:
        return () if lane_type == target else _VECTOR_CONVERSIONS.get((lane_type, target))
    if lane_type is not DType.int32:
        first = _VECTOR_CONVERSIONS.get((lane_type, DType.int32))
        return None if first is None else (*first, *_NARROW_LANES[target])
    return _NARROW_LANES[target] if _narrows(source, target) else ()


def _scalar_conversion(source: DType, target: DType) -> tuple[str, ...] | None:
    """The conversion of a scalar."""
    from_type, to_type = value_type(source, 1), value_type(target, 1)
    sign = "s" if source.is_signed else "u"
    if to_type in ("f32", "f64"):
        if from_type == to_type:
            return ()
        if from_type in ("f32", "f64"):
            return ("f32.demote_f64",) if to_type == "f32" else ("f64.promote_f32",)
        return (f"{to_type}.convert_{from_type}_{sign}",)
    if from_type in ("f32", "f64"):
        if target in (DType.int32, DType.int64, DType.uint64):
            return (f"{to_type}.trunc_sat_{from_type}_{'s' if target.is_signed else 'u'}",)
        # Convert through int64, so that values out of range wrap as in numpy.
        return (f"i64.trunc_sat_{from_type}_s", "i32.wrap_i64", *_WRAPPED.get(target, ()))
    if from_type == to_type:
        return _WRAPPED.get(target, ()) if _narrows(source, target) else ()
    if to_type == "i64":
        return (f"i64.extend_i32_{sign}",)
    return ("i32.wrap_i64", *_WRAPPED.get(target, ()))


def _narrows(source: DType, target: DType) -> bool:
    """True where both types are held as an i32, and a value of `source` may not fit in `target`."""
    if source is DType.bool or target.bytes == 4:
        return False
    if source.bytes < target.bytes:
        return source.is_signed and not target.is_signed
    return source != target


_WRAPPED = {
    DType.int8: ("i32.extend8_s",),
    DType.int16: ("i32.extend16_s",),
    DType.uint8: ("i32.and (i32.const 255)",),
    DType.uint16: ("i32.and (i32.const 65535)",),
}
"""The instructions that wrap an i32 into the range of a small integer."""
