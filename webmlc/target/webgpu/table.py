"""How WGSL spells each scalar operator, type and literal: one table, by the kind of the operands.

A row is a template over the printed operands, with the precedence of what it makes. Rows spelled as
a function of ours (`erf_T`) name a helper in `HELPERS`, whose one text serves scalars and vectors:
`{T}` is the type, `{B}` its booleans.

    >>> OPERATORS["add"]["float"].text, OPERATORS["bit_not"]["bool"].text
    ('{0} + {1}', '!{0}')
"""

from __future__ import annotations

import math

import numpy as np

from webmlc.core.dtypes import DType
from webmlc.core.errors import InternalError
from webmlc.core.expr import Number
from webmlc.target.webgpu import long_integers, storage
from webmlc.target.webgpu.spelling import (
    LOOSE,
    PRODUCT,
    SUM,
    Helper,
    Kind,
    Spelling,
    template,
)


def _same(spelling: Spelling, *kinds: Kind) -> dict[Kind, Spelling]:
    return dict.fromkeys(kinds, spelling)


def _functions(*names: str) -> dict[str, dict[Kind, Spelling]]:
    return {name: {"float": Spelling(f"{name}({{0}})")} for name in names}


_NUMBERS: tuple[Kind, ...] = ("float", "int", "uint")
_INTEGERS: tuple[Kind, ...] = ("int", "uint")
_ALL: tuple[Kind, ...] = ("float", "int", "uint", "bool")


def _compare(symbol: str) -> dict[Kind, Spelling]:
    return _same(Spelling(f"{{0}} {symbol} {{1}}", LOOSE), *_NUMBERS)


def _helper(name: str, arity: int = 1) -> dict[Kind, Spelling]:
    return {"float": template(name, arity)}


_DIFFERENT = Spelling("{0} != {1}", LOOSE)

_WORDS: dict[str, dict[Kind, Spelling]] = {
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
    # Never `fma`: software adapters call a function to round once; GPUs contract it themselves.
    "fma": _same(Spelling("{0} * {1} + {2}", SUM), *_NUMBERS),
    "pow": {**_helper("power", 2), **_same(template("whole_power", 2), *_INTEGERS)},
    "neg": _same(Spelling("-{0}"), "float", "int"),
    "abs": _same(Spelling("abs({0})"), *_NUMBERS),
    "sign": {"int": Spelling("sign({0})"), **_helper("sign_of")},
    # WGSL's `round` takes ties to even, as numpy's `rint`.
    **_functions("floor", "ceil", "trunc", "round", "sqrt", "exp", "sin", "cos", "tan"),
    **_functions("atanh", "cosh"),
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

OPERATORS: dict[str, dict[Kind, Spelling]] = {
    name: {**_WORDS.get(name, {}), **long_integers.OPERATORS.get(name, {})}
    for name in dict.fromkeys((*_WORDS, *long_integers.OPERATORS))
}
"""By operator, then by the kind of its last operand; `legalise` rewrites what is missing here."""

BY_A_LITERAL: dict[str, Spelling] = {"min": template("at_most", 2), "max": template("at_least", 2)}
"""Operators of floats whose second operand is a literal, and so no NaN."""

_TEMPLATES: dict[str, str] = {
    # WGSL lets compilers assume that floats are finite: only their bits tell a NaN.
    "is_nan": """\
fn is_nan_{suffix}(x: {T}) -> {B} {{
    return (bitcast<{U}>(x) & {U}(0x7fffffffu)) > {U}(0x7f800000u);
}}
""",
    # WGSL's min and max may return either operand where one is a NaN.
    "minimum": """\
fn minimum_{suffix}(a: {T}, b: {T}) -> {T} {{
    return select(select(min(a, b), b, is_nan_{suffix}(b)), a, is_nan_{suffix}(a));
}}
""",
    "maximum": """\
fn maximum_{suffix}(a: {T}, b: {T}) -> {T} {{
    return select(select(max(a, b), b, is_nan_{suffix}(b)), a, is_nan_{suffix}(a));
}}
""",
    # The same where `b` is no NaN: a literal.
    "at_most": """\
fn at_most_{suffix}(a: {T}, b: {T}) -> {T} {{
    return select(min(a, b), a, is_nan_{suffix}(a));
}}
""",
    "at_least": """\
fn at_least_{suffix}(a: {T}, b: {T}) -> {T} {{
    return select(max(a, b), a, is_nan_{suffix}(a));
}}
""",
    "sign_of": """\
fn sign_of_{suffix}(x: {T}) -> {T} {{
    return select(sign(x), x, is_nan_{suffix}(x));
}}
""",
    # x·P(x²)/Q(x²) on [-4, 4], where erf in float32 reaches ±1: as Eigen and XLA have it.
    "error_function": """\
fn error_function_{suffix}(v: {T}) -> {T} {{
    let x = clamp(v, {T}(-4.0), {T}(4.0));
    let s = x * x;
    var p = s * -2.72614225801306e-10 + 2.77068142495902e-08;
    p = p * s - 2.10102402082508e-06;
    p = p * s - 5.69250639462346e-05;
    p = p * s - 7.34990630326855e-04;
    p = p * s - 2.95459980854025e-03;
    p = p * s - 1.60960333262415e-02;
    var q = s * -1.45660718464996e-05 - 2.13374055278905e-04;
    q = q * s - 1.68282697438203e-03;
    q = q * s - 7.37332916720468e-03;
    q = q * s - 1.42647390514189e-02;
    return select(x * p / q, v, is_nan_{suffix}(v));
}}
""",
    # WGSL leaves pow of a negative base undefined, and says nothing of 0 to the power 0.
    "power": """\
fn power_{suffix}(x: {T}, y: {T}) -> {T} {{
    let whole = floor(y) == y;
    let odd = floor(y * 0.5) * 2.0 != y;
    let magnitude = pow(abs(x), y);
    let undefined = bitcast<{T}>({U}(infinity_bits | 0x400000u));
    let negative = select(undefined, select(magnitude, -magnitude, odd), whole);
    var result = select(magnitude, negative, x < {T}(0.0));
    result = select(select(result, y, is_nan_{suffix}(y)), x, is_nan_{suffix}(x));
    return select(result, {T}(1.0), (y == {T}(0.0)) | (x == {T}(1.0)));
}}
""",
    # WGSL's % may be wrong by the divisor where a quotient is close to a whole number, and it says
    # nothing of infinities: what is finite is its own remainder by one.
    "remainder": """\
fn remainder_{suffix}(a: {T}, b: {T}) -> {T} {{
    let size = abs(b);
    let step = select(size, -size, a < {T}(0.0));
    var rest = a - trunc(a / b) * b;
    rest = select(rest, rest + step, rest * step < {T}(0.0));
    rest = select(rest, rest - step, abs(rest) >= size);
    let endless = bitcast<{U}>(size) == {U}(0x7f800000u);
    return select(rest, a, endless & ((bitcast<{U}>(a) & {U}(0x7fffffffu)) < {U}(0x7f800000u)));
}}
""",
    "floored_remainder": """\
fn floored_remainder_{suffix}(a: {T}, b: {T}) -> {T} {{
    let rest = remainder_{suffix}(a, b);
    return select(rest, rest + b, rest * sign(b) < {T}(0.0));
}}
""",
    # Squares for the bits of the exponent, which is not negative.
    "whole_power": """\
fn whole_power_{suffix}(x: {T}, y: {T}) -> {T} {{
    var result = {T}(1);
    var square = x;
    for (var bit = 0u; bit < 31u; bit++) {{
        let odd = ((y >> {U}(bit)) & {T}(1)) == {T}(1);
        result = select(result, result * square, odd);
        square = square * square;
    }}
    return result;
}}
""",
    # Near 1, where WGSL only bounds the absolute error: the series of atanh((x - 1) / (x + 1)).
    "natural_log": """\
fn natural_log_{suffix}(x: {T}) -> {T} {{
    let s = (x - 1.0) / (x + 1.0);
    let q = s * s;
    let series = s * (q * (q * (q * 0.28571430 + 0.4) + 0.66666669) + 2.0);
    return select(log(x), series, abs(x - 1.0) < {T}(0.25));
}}
""",
    # 1 + x would lose x: the series of atanh(x / (x + 2)) near zero.
    "log_one_plus": """\
fn log_one_plus_{suffix}(x: {T}) -> {T} {{
    let s = x / (x + 2.0);
    let q = s * s;
    let series = s * (q * (q * (q * 0.28571430 + 0.4) + 0.66666669) + 2.0);
    return select(log(1.0 + x), series, abs(x) < {T}(0.25));
}}
""",
    # WGSL asks 11 bits of atan, asin and acos, and some drivers give few more: the octants of atan
    # as in `wasm/approximations.py`.
    "arc_tangent": """\
fn arc_tangent_{suffix}(x: {T}) -> {T} {{
    let a = abs(x);
    let far = a > {T}(2.4142135);
    let middle = a > {T}(0.41421357);
    let r = select(select(a, (a - 1.0) / (a + 1.0), middle), -1.0 / a, far);
    let q = r * r;
    var p = q * -0.060811557748392364 + 0.10595139674993058;
    p = p * q - 0.14243738766516356;
    p = p * q + 0.19998484000375935;
    p = p * q - 0.3333331542360185;
    let octant = select(select({T}(0.0), {T}(0.78539816), middle), {T}(1.5707964), far);
    let angle = octant + (r + r * q * p);
    return select(angle, -angle, x < {T}(0.0));
}}
""",
    "arc_sine": """\
fn arc_sine_{suffix}(x: {T}) -> {T} {{
    let undefined = bitcast<{T}>({U}(infinity_bits | 0x400000u));
    let angle = arc_tangent_{suffix}(x / max(sqrt((1.0 - x) * (1.0 + x)), {T}(1e-30)));
    return select(angle, undefined, !(abs(x) <= {T}(1.0)));
}}
""",
    "arc_cosine": """\
fn arc_cosine_{suffix}(x: {T}) -> {T} {{
    return 1.5707964 - arc_sine_{suffix}(x);
}}
""",
    # Drivers square the operand, which overflows: beyond 2^30, x ± 1/x is x.
    "area_sine": """\
fn area_sine_{suffix}(x: {T}) -> {T} {{
    let far = log(abs(x)) + 0.6931472;
    return select(asinh(x), select(far, -far, x < {T}(0.0)), abs(x) > {T}(1073741824.0));
}}
""",
    "area_cosine": """\
fn area_cosine_{suffix}(x: {T}) -> {T} {{
    let undefined = bitcast<{T}>({U}(infinity_bits | 0x400000u));
    let near = select(acosh(x), undefined, !(x >= {T}(1.0)));
    return select(near, log(x) + 0.6931472, x > {T}(1073741824.0));
}}
""",
    # Drivers compute tanh from exp(2x), which overflows into NaN, and cancels near zero.
    "hyperbolic_tangent": """\
fn hyperbolic_tangent_{suffix}(x: {T}) -> {T} {{
    let q = x * x;
    let tail = q * (q * (q * 0.021869488 - 0.053968254) + 0.13333334) - 0.33333334;
    let series = x * (q * tail + 1.0);
    let far = select(tanh(clamp(x, {T}(-10.0), {T}(10.0))), x, is_nan_{suffix}(x));
    return select(far, series, abs(x) < {T}(0.25));
}}
""",
    # exp(x) - exp(-x) cancels near zero: a series there.
    "hyperbolic_sine": """\
fn hyperbolic_sine_{suffix}(x: {T}) -> {T} {{
    let s = x * x;
    let series = x * (s * (s * (s * 1.9841270e-4 + 8.3333333e-3) + 0.16666667) + 1.0);
    return select(sinh(x), series, abs(x) < {T}(0.5));
}}
""",
}

_CALLED = {
    "floored_remainder": "remainder",
    "arc_sine": "arc_tangent",
    "arc_cosine": "arc_sine",
    "error_function": "is_nan",
    "hyperbolic_tangent": "is_nan",
    "power": "is_nan",
    **dict.fromkeys(("minimum", "maximum", "at_most", "at_least", "sign_of"), "is_nan"),
}
"""The template that a template calls."""

HELPERS: dict[str, Helper] = {**long_integers.HELPERS, **storage.HELPERS}
"""Helpers of one text; those of `_TEMPLATES` have one for each type."""

INFINITY = "var<private> infinity_bits: u32 = 0x7f800000u;\n"
"""WGSL rejects constant expressions that are not finite: infinities and NaNs are made of this."""

_SCALARS: dict[Kind, str] = {
    "float": "f32",
    "int": "i32",
    "uint": "u32",
    "bool": "bool",
    "long": "vec2u",
    "ulong": "vec2u",
}


def kind_of(dtype: DType) -> Kind:
    """The kind of a dtype's values on the GPU; raises InternalError where a shader has none.

    Values of small types live in 32 bits, 64-bit integers in two words.
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


def suffix(dtype: DType, lanes: int) -> str:
    """The ending of a helper's name for this type."""
    return f"{_SCALARS[kind_of(dtype)]}{'' if lanes == 1 else f'x{lanes}'}"


def definitions(name: str, dtype: DType, lanes: int) -> tuple[str, ...]:
    """The definition of a helper for one type, and those of the helpers that it calls."""
    if name in _TEMPLATES:
        unsigned = type_name(DType.uint32, lanes)
        ending = suffix(dtype, lanes)
        booleans = type_name(DType.bool, lanes)
        text = _TEMPLATES[name].format(
            T=type_name(dtype, lanes), U=unsigned, B=booleans, suffix=ending
        )
        called = _CALLED.get(name)
        return (*(definitions(called, dtype, lanes) if called else ()), text)
    if name in storage.TEMPLATES:
        helper = storage.TEMPLATES[name]
        text = helper.text.format(**type_fields(lanes))
    else:
        helper = HELPERS[name]
        text, lanes = helper.text, helper.lanes
    inner = [made for need in helper.needs for made in definitions(need, DType.uint32, lanes)]
    return tuple(dict.fromkeys((*inner, text)))


def type_fields(lanes: int) -> dict[str, str]:
    """What the templates of `storage` are filled with."""
    return {
        "U": type_name(DType.uint32, lanes),
        "F": type_name(DType.float32, lanes),
        "suffix": suffix(DType.uint32, lanes),
    }


def uses_infinity(name: str) -> bool:
    """True where a helper, or one that it calls, builds infinities or NaNs."""
    text = _TEMPLATES.get(name, "")
    return "infinity_bits" in text or (name in _CALLED and uses_infinity(_CALLED[name]))


def cast_spelling(source: DType, target: DType, lanes: int) -> Spelling:
    """How a value of one type becomes one of another, not yet rounded to a small type."""
    have, want = kind_of(source), kind_of(target)
    if have == want:
        return Spelling("({0})")
    if (have, want) in long_integers.CASTS:
        return long_integers.CASTS[have, want]
    if have == "float" and want == "uint" and target.bytes < 4:
        signed = type_name(DType.int32, lanes)
        return Spelling(f"{{U}}({signed}({{0}}))")  # modulo the range, as negative integers convert
    return Spelling(f"{type_name(target, lanes)}({{0}})")


def literal(value: Number, dtype: DType) -> str:
    """A literal of a dtype. Infinities and NaNs are built at run time from `infinity_bits`."""
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
    # Tint reads a decimal literal as a double and refuses one beyond float32's largest value, even
    # where it rounds to that value: digits that are not exact are written in base 16.
    text = f"{decimal if float(decimal) == exact else _hexadecimal(exact)}f"
    return f"({text})" if text.startswith("-") else text


def _hexadecimal(value: float) -> str:
    """A finite float in base 16, without trailing zeros.

    >>> _hexadecimal(-0.75)
    '-0x1.8p-1'
    """
    mantissa, exponent = value.hex().split("p")
    return f"{mantissa.rstrip('0').rstrip('.')}p{exponent}"
