"""Map operators, element types and lanes to WASM instructions.

In: a scalar operator and the class of its operands (`"f32"`, `"u32"`, `"f32x4"`, ...). Out: an
instruction, or `None` where there is none and `legalise` must have rewritten it. No instruction
computes on small integers: `legalise_types` promotes them to int32.

    >>> instruction("add", "f32x4"), instruction("lt", "u32"), value_type(DType.int64, 1)
    ('f32x4.add', 'i32.lt_u', 'i64')
"""

from __future__ import annotations

from webmlc.core.dtypes import DType
from webmlc.target.wasm import large_angles, remainder

_ARITHMETIC = {"add": "add", "sub": "sub", "mul": "mul"}
_COMPARE = {"eq": "eq", "ne": "ne", "lt": "lt", "le": "le", "gt": "gt", "ge": "ge"}
_FLOAT = {
    **_ARITHMETIC,
    **_COMPARE,
    "div": "div",
    "min": "min",
    "max": "max",
    "neg": "neg",
    "abs": "abs",
    "floor": "floor",
    "ceil": "ceil",
    "trunc": "trunc",
    "round": "nearest",
    "sqrt": "sqrt",
}
_BITS = {"bit_and": "and", "bit_or": "or", "bit_xor": "xor"}
_SIGNED = {
    **_ARITHMETIC,
    **_BITS,
    "eq": "eq",
    "ne": "ne",
    "lt": "lt_s",
    "le": "le_s",
    "gt": "gt_s",
    "ge": "ge_s",
    "truncdiv": "div_s",
    "truncmod": "rem_s",
    "shift_left": "shl",
    "shift_right": "shr_s",
}
_UNSIGNED = {
    **_SIGNED,
    "lt": "lt_u",
    "le": "le_u",
    "gt": "gt_u",
    "ge": "ge_u",
    "truncdiv": "div_u",
    "truncmod": "rem_u",
    "floordiv": "div_u",
    "floormod": "rem_u",
    "shift_right": "shr_u",
}
_SIGNED_LANES = {
    **_ARITHMETIC,
    "eq": "eq",
    "ne": "ne",
    "lt": "lt_s",
    "le": "le_s",
    "gt": "gt_s",
    "ge": "ge_s",
    "neg": "neg",
    "abs": "abs",
    "min": "min_s",
    "max": "max_s",
}
_UNSIGNED_LANES = {
    **_SIGNED_LANES,
    "lt": "lt_u",
    "le": "le_u",
    "gt": "gt_u",
    "ge": "ge_u",
    "min": "min_u",
    "max": "max_u",
}
_WORDS_OF_PAIRS = {"dot_i16": "i32x4.dot_i16x8_s", "add_i16": "i16x8.add"}
_VECTOR_BITS = {"bit_and": "v128.and", "bit_or": "v128.or", "bit_xor": "v128.xor"}


def _calls(kind: str) -> dict[str, str]:
    """The calls of functions of the module that take operands of a class."""
    return {op: f"call {name}" for (op, k), name in large_angles.NAMES.items() if k == kind}


def _rows(prefix: str, names: dict[str, str]) -> dict[str, str]:
    """The instructions of a type, by operator."""
    return {op: f"{prefix}.{name}" for op, name in names.items()}


INSTRUCTIONS: dict[str, dict[str, str]] = {
    "f32": _rows("f32", _FLOAT) | _calls("f32"),
    "f64": _rows("f64", _FLOAT) | {"truncmod": f"call {remainder.HELPER}"},
    "i32": _rows("i32", _SIGNED),
    "u32": _rows("i32", _UNSIGNED),
    "i64": _rows("i64", _SIGNED),
    "u64": _rows("i64", _UNSIGNED),
    "bool": _rows("i32", _BITS | {"eq": "eq", "ne": "ne"}),
    "f32x4": _rows("f32x4", _FLOAT) | _calls("f32x4"),
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
    "even_i8": "(i16x8.shr_s (i16x8.shl {} (i32.const 8)) (i32.const 8))",
    "odd_i8": "(i16x8.shr_s {} (i32.const 8))",
}
"""Text that turns every second byte into a signed 16-bit lane."""

INTERLEAVED = {
    1: "(i8x16.shuffle 0 16 1 17 2 18 3 19 4 20 5 21 6 22 7 23 {} {})",
    2: "(i8x16.shuffle 0 1 16 17 2 3 18 19 4 5 20 21 6 7 22 23 {} {})",
}
"""Text that interleaves the lower halves of two vectors, by the bytes of an element."""

LOWEST_BYTES = "(i8x16.swizzle {} (v128.const i8x16 0 4 8 12 0 4 8 12 0 4 8 12 0 4 8 12))"
"""Text that moves the lowest byte of each lane to the first four bytes."""

LOADS = {
    DType.bool: "i32.load8_u",
    DType.uint8: "i32.load8_u",
    DType.int8: "i32.load8_s",
    DType.uint16: "i32.load16_u",
    DType.int16: "i32.load16_s",
    DType.int32: "i32.load",
    DType.uint32: "i32.load",
    DType.int64: "i64.load",
    DType.uint64: "i64.load",
    DType.float32: "f32.load",
    DType.float64: "f64.load",
}
"""The instruction that loads an element."""

_BYTES = "i32x4.extend_low_i16x8_u (i16x8.extend_low_i8x16_u (v128.load32_zero{}))"
"""Text that loads four unsigned bytes into 32-bit lanes."""
LANE_LOADS = {
    DType.bool: f"i32x4.neg ({_BYTES})",
    DType.uint8: _BYTES,
    DType.int8: "i32x4.extend_low_i16x8_s (i16x8.extend_low_i8x16_s (v128.load32_zero{}))",
    DType.uint16: "v128.load16x4_u{}",
    DType.int16: "v128.load16x4_s{}",
}
"""Text that loads four adjacent small integers into 32-bit lanes, and booleans as masks. `{}` is
the address.
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

STORES = {
    DType.bool: "i32.store8",
    DType.uint8: "i32.store8",
    DType.int8: "i32.store8",
    DType.uint16: "i32.store16",
    DType.int16: "i32.store16",
    DType.int32: "i32.store",
    DType.uint32: "i32.store",
    DType.int64: "i64.store",
    DType.uint64: "i64.store",
    DType.float32: "f32.store",
    DType.float64: "f64.store",
}
"""The instruction that stores an element."""

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


def instruction(op: str, kind: str) -> str | None:
    """The instruction of an operator on operands of a class, or `None`."""
    return INSTRUCTIONS[kind].get(op)


def conversion(source: DType, target: DType, lanes: int) -> tuple[str, ...] | None:
    """The instructions that convert a number, in order; `None` where `legalise` must rewrite it.

    Floats become integers by truncation that saturates; integers wrap. `legalise` rewrites
    conversions to and from bool.
    """
    if lanes > 1:
        return _vector_conversion(source, target)
    return _scalar_conversion(source, target)


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
        return (f"i64.trunc_sat_{from_type}_s", "i32.wrap_i64", *_wrap(target))
    if from_type == to_type:
        return _wrap(target) if _narrows(source, target) else ()
    if to_type == "i64":
        return (f"i64.extend_i32_{sign}",)
    return ("i32.wrap_i64", *_wrap(target))


def _narrows(source: DType, target: DType) -> bool:
    """True where both types are held as an i32, and a value of `source` may not fit in `target`."""
    if source is DType.bool or target.bytes == 4:
        return False
    if source.bytes < target.bytes:
        return source.is_signed and not target.is_signed
    return source != target


def _wrap(target: DType) -> tuple[str, ...]:
    """The instructions that wrap an i32 into the range of a small integer."""
    match target:
        case DType.int8:
            return ("i32.extend8_s",)
        case DType.int16:
            return ("i32.extend16_s",)
        case DType.uint8:
            return ("i32.and (i32.const 255)",)
        case DType.uint16:
            return ("i32.and (i32.const 65535)",)
    return ()
