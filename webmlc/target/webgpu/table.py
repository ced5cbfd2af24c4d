"""Spell scalar operators, types and literals in WGSL, by the kind of the operands.

A row is a template over the printed operands, with the precedence of the result. Some rows call a
helper function of `HELPERS`, which serves scalars and vectors.

    >>> OPERATORS["add"]["float"].text, OPERATORS["bit_not"]["bool"].text
    ('{0} + {1}', '!{0}')
"""

from __future__ import annotations

import math
import re
from functools import lru_cache

import numpy as np

from webmlc.core.dtypes import DType
from webmlc.core.errors import InternalError
from webmlc.core.expr import Number
from webmlc.target.webgpu import float_helpers, long_integers, storage
from webmlc.target.webgpu.spelling import LOOSE, PRODUCT, SUM, Kind, Spelling, template


def _same(spelling: Spelling, *kinds: Kind) -> dict[Kind, Spelling]:
    """The same spelling for several kinds of operands."""
    return dict.fromkeys(kinds, spelling)


def _functions(*names: str) -> dict[str, dict[Kind, Spelling]]:
    """Operators that are WGSL functions of the same name."""
    return {name: {"float": Spelling(f"{name}({{0}})")} for name in names}


_NUMBERS: tuple[Kind, ...] = ("float", "int", "uint")
_INTEGERS: tuple[Kind, ...] = ("int", "uint")
_ALL: tuple[Kind, ...] = ("float", "int", "uint", "bool")


def _compare(symbol: str) -> dict[Kind, Spelling]:
    """A comparison of numbers."""
    return _same(Spelling(f"{{0}} {symbol} {{1}}", LOOSE), *_NUMBERS)


def _helper(name: str, arity: int = 1) -> dict[Kind, Spelling]:
    """An operator of floats that calls a helper."""
    return {"float": template(name, arity)}


_DIFFERENT = Spelling("{0} != {1}", LOOSE)

_WORD_OPERATORS: dict[str, dict[Kind, Spelling]] = {
    "add": _same(Spelling("{0} + {1}", SUM), *_NUMBERS),
    "sub": _same(Spelling("{0} - {1}", SUM), *_NUMBERS),
    "mul": _same(Spelling("{0} * {1}", PRODUCT), *_NUMBERS),
    "div": {"float": Spelling("{0} / {1}", PRODUCT)},
    "truncdiv": _same(Spelling("{0} / {1}", PRODUCT), *_INTEGERS),
    "truncmod": _same(Spelling("{0} % {1}", PRODUCT), *_INTEGERS) | _helper("remainder", 2),
    "floormod": _helper("floored_remainder", 2),
    "min": {**_same(Spelling("min({0}, {1})"), *_INTEGERS), **_helper("minimum", 2)},
    "max": {**_same(Spelling("max({0}, {1})"), *_INTEGERS), **_helper("maximum", 2)},
    "relaxed_max": {"float": Spelling("max({0}, {1})")},
    # Never `fma`, for which software adapters call a slow function. GPUs contract it themselves.
    "fma": _same(Spelling("{0} * {1} + {2}", SUM), *_NUMBERS),
    "pow": {**_helper("power", 2), **_same(template("whole_power", 2), *_INTEGERS)},
    "unsigned_pow": _helper("power", 2),
    "neg": _same(Spelling("-{0}"), "float", "int"),
    "abs": _same(Spelling("abs({0})"), *_NUMBERS),
    "sign": {"int": Spelling("sign({0})"), **_helper("sign_of")},
    # WGSL's `round` rounds ties to even, as numpy's `rint` does.
    **_functions("floor", "ceil", "trunc", "round", "sqrt", "exp", "cosh"),
    "sin": _helper("sine"),
    "cos": _helper("cosine"),
    "tan": _helper("tangent"),
    "atanh": _helper("area_tangent"),
    "asinh": _helper("area_sine"),
    "acosh": _helper("area_cosine"),
    "log": _helper("natural_log"),
    "log1p": _helper("log_one_plus"),
    "atan": _helper("arc_tangent"),
    "asin": _helper("arc_sine"),
    "acos": _helper("arc_cosine"),
    "sinh": _helper("hyperbolic_sine"),
    "tanh": _helper("hyperbolic_tangent"),
    "erf": _helper("error_function"),
    "bit_and": _same(Spelling("{0} & {1}", LOOSE), "int", "uint", "bool"),
    "bit_or": _same(Spelling("{0} | {1}", LOOSE), "int", "uint", "bool"),
    "bit_xor": {**_same(Spelling("{0} ^ {1}", LOOSE), *_INTEGERS), "bool": _DIFFERENT},
    "bit_not": {**_same(Spelling("~{0}"), *_INTEGERS), "bool": Spelling("!{0}")},
    "shift_left": _same(Spelling("{0} << {unsigned}({1})", LOOSE), *_INTEGERS),
    "shift_right": _same(Spelling("{0} >> {unsigned}({1})", LOOSE), *_INTEGERS),
    "eq": {**_compare("=="), "bool": Spelling("{0} == {1}", LOOSE)},
    "ne": {**_compare("!="), "bool": _DIFFERENT},
    "lt": _compare("<"),
    "le": _compare("<="),
    "gt": _compare(">"),
    "ge": _compare(">="),
    "select": _same(Spelling("select({2}, {1}, {0})"), *_ALL),
}
"""The spellings on values of at most 32 bits."""

OPERATORS: dict[str, dict[Kind, Spelling]] = {
    name: {**_WORD_OPERATORS.get(name, {}), **long_integers.OPERATORS.get(name, {})}
    for name in dict.fromkeys((*_WORD_OPERATORS, *long_integers.OPERATORS))
}
"""The spellings, by operator and the kind of the last operand. `legalise` rewrites all other
operators.
"""

BY_A_LITERAL: dict[str, Spelling] = {"min": template("at_most", 2), "max": template("at_least", 2)}
"""Operators of floats whose second operand is a literal, which is no NaN."""

HELPERS = float_helpers.HELPERS | long_integers.HELPERS | storage.HELPERS
"""The WGSL of each helper function (`spelling.helpers_of`)."""

_CALL = re.compile(r"\b(\w+?)(_\{suffix\}|_u32|_u32x4)?\(")
_FIXED_LANES = {"_u32": 1, "_u32x4": 4}
"""A call of a helper, and the lanes of those whose type is fixed."""

INFINITY = "var<private> infinity_bits: u32 = 0x7f800000u;\n"
"""The bits of infinity as a variable: WGSL rejects constant expressions that are not finite."""

ENABLE: dict[str, str] = {"shader-f16": "enable f16;", "subgroups": "enable subgroups;"}
"""The directive that enables each feature of WebGPU (`machine.SHADER_FEATURES`)."""

_SCALARS: dict[Kind, str] = {
    "float": "f32",
    "int": "i32",
    "uint": "u32",
    "bool": "bool",
    "long": "vec2u",
    "ulong": "vec2u",
}
"""The WGSL type of a scalar of each kind."""


def kind_of(dtype: DType) -> Kind:
    """The kind of a dtype's values on the GPU. Raises InternalError where a shader has no such
    values.

    Values of small types are held in 32 bits, and 64-bit integers in two words.
    """
    if dtype is DType.bool:
        return "bool"
    if dtype.is_float and dtype is not DType.float64:
        return "float"
    if dtype is DType.int64:
        return "long"
    if dtype is DType.uint64:
        return "ulong"
    if dtype.is_integer:
        return "int" if dtype.is_signed else "uint"
    raise InternalError(f"webgpu: a shader has no values of {dtype}")


def type_name(dtype: DType, lanes: int = 1) -> str:
    """The WGSL type of a value."""
    scalar = _SCALARS[kind_of(dtype)]
    if lanes == 1:
        return scalar
    if kind_of(dtype) == "bool":
        return f"vec{lanes}<bool>"
    if scalar == "vec2u":
        raise InternalError(f"webgpu: a shader has no vectors of {dtype}")
    return f"vec{lanes}{scalar[0]}"


def half_type(lanes: int = 1) -> str:
    """The WGSL type of float16 in memory, with the feature `shader-f16`."""
    return "f16" if lanes == 1 else f"vec{lanes}h"


def suffix(dtype: DType, lanes: int) -> str:
    """The ending of a helper's name for this type."""
    return f"{_SCALARS[kind_of(dtype)]}{'' if lanes == 1 else f'x{lanes}'}"


@lru_cache(maxsize=1024)
def definitions(name: str, dtype: DType, lanes: int) -> tuple[str, ...]:
    """The definition of a helper for one type, after the definitions of the helpers it calls."""
    text = HELPERS[name]
    called = {
        call[1]: _FIXED_LANES.get(call[2], lanes)
        for call in _CALL.finditer(text)
        if call[1] in HELPERS and call[1] != name
    }
    inner = [d for need, width in sorted(called.items()) for d in definitions(need, dtype, width)]
    for field, value in type_fields(dtype, lanes).items():
        text = text.replace(f"{{{field}}}", value)
    return tuple(dict.fromkeys((*inner, text)))


def type_fields(dtype: DType, lanes: int) -> dict[str, str]:
    """The fields of the texts of helpers and of the spellings of `storage`."""
    return {
        "T": type_name(dtype, lanes),
        "U": type_name(DType.uint32, lanes),
        "F": type_name(DType.float32, lanes),
        "B": type_name(DType.bool, lanes),
        "suffix": suffix(dtype, lanes),
    }


def cast_spelling(source: DType, target: DType, lanes: int) -> Spelling:
    """The conversion from one type to another, without the rounding to a small type."""
    source_kind, target_kind = kind_of(source), kind_of(target)
    if source_kind == target_kind:
        return Spelling("({0})")
    if (source_kind, target_kind) in long_integers.CASTS:
        return long_integers.CASTS[source_kind, target_kind]
    if source_kind == "float" and target_kind == "uint" and target.bytes < 4:
        signed = type_name(DType.int32, lanes)
        return Spelling(f"{{U}}({signed}({{0}}))")  # wraps, as negative integers do
    return Spelling(f"{type_name(target, lanes)}({{0}})")


def literal(value: Number, dtype: DType) -> str:
    """A literal of a dtype. Infinities and NaNs are built from `infinity_bits` at run time."""
    match kind_of(dtype):
        case "bool":
            return "true" if value else "false"
        case "uint":
            return f"{value}u"
        case "long" | "ulong":
            bits = int(value) % 2**64
            return f"vec2u({bits % 2**32}u, {bits >> 32}u)"
        case "int":
            if value == -(2**31):
                return "(-2147483647 - 1)"
            return str(value) if value >= 0 else f"({value})"
        case "float":
            return _float_literal(float(value))


def _float_literal(value: float) -> str:
    with np.errstate(over="ignore"):
        rounded = np.float32(value)
    if math.isnan(rounded):
        return "bitcast<f32>(infinity_bits | 0x400000u)"
    if math.isinf(rounded):
        return f"bitcast<f32>(infinity_bits{' | 0x80000000u' if rounded < 0 else ''})"
    decimal, exact = str(rounded), float(rounded)
    # Tint reads a decimal literal as a double. It refuses one above float32's largest value, even
    # where it rounds to that value. Decimals that are not exact are therefore written in base 16.
    text = f"{decimal if float(decimal) == exact else _hexadecimal(exact)}f"
    return f"({text})" if text.startswith("-") else text


def _hexadecimal(value: float) -> str:
    """A finite float in base 16, without trailing zeros.

    >>> _hexadecimal(-0.75)
    '-0x1.8p-1'
    """
    mantissa, exponent = value.hex().split("p")
    return f"{mantissa.rstrip('0').rstrip('.')}p{exponent}"
