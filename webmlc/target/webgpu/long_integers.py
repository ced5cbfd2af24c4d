"""Define 64-bit integers, which WGSL lacks, as a `vec2u` of the low and the high word.

The module holds only tables. `OPERATORS` spells each scalar operator on `long` and `ulong`
operands. `HELPERS` holds the functions that these spellings call. All arithmetic wraps modulo 2^64,
as in numpy.

    a + b   ->   add_long(a, b)        a & b   ->   a & b
"""

from __future__ import annotations

from webmlc.target.webgpu.spelling import LOOSE, Kind, Spelling, function, helpers_of

_LONGS: tuple[Kind, ...] = ("long", "ulong")


def _both(name: str, arity: int = 2) -> dict[Kind, Spelling]:
    """A call of the same function for signed and for unsigned operands."""
    return dict.fromkeys(_LONGS, function(name, arity))


def _each(name: str, arity: int = 2) -> dict[Kind, Spelling]:
    """A call of one function for signed operands and of another for unsigned operands."""
    return {kind: function(name.format(kind=kind), arity) for kind in _LONGS}


def _plain(text: str) -> dict[Kind, Spelling]:
    """An infix operator of WGSL, for both kinds of operands."""
    return dict.fromkeys(_LONGS, Spelling(text, LOOSE))


def _compare(swapped: bool, negated: bool) -> dict[Kind, Spelling]:
    """A comparison by the function that decides whether one number is less than another."""
    operands = "({1}, {0})" if swapped else "({0}, {1})"
    return {
        kind: Spelling(f"{'!' if negated else ''}less_{kind}{operands}", helper=f"less_{kind}")
        for kind in _LONGS
    }


OPERATORS: dict[str, dict[Kind, Spelling]] = {
    "add": _both("add_long"),
    "sub": _both("subtract_long"),
    "mul": _both("multiply_long"),
    "fma": _both("multiply_add_long", 3),
    "pow": _both("power_long"),
    "truncdiv": _each("quotient_{kind}"),
    "truncmod": _each("remainder_{kind}"),
    "min": _each("least_{kind}"),
    "max": _each("greatest_{kind}"),
    "neg": _both("negate_long", 1),
    "abs": {"long": function("magnitude_long", 1), "ulong": Spelling("({0})")},
    "sign": {"long": function("sign_long", 1)},
    "bit_and": _plain("{0} & {1}"),
    "bit_or": _plain("{0} | {1}"),
    "bit_xor": _plain("{0} ^ {1}"),
    "bit_not": dict.fromkeys(_LONGS, Spelling("~{0}")),
    "shift_left": _both("shift_left_long"),
    "shift_right": _each("shift_right_{kind}"),
    "eq": dict.fromkeys(_LONGS, Spelling("all(({0}) == ({1}))")),
    "ne": dict.fromkeys(_LONGS, Spelling("any(({0}) != ({1}))")),
    "lt": _compare(swapped=False, negated=False),
    "le": _compare(swapped=True, negated=True),
    "gt": _compare(swapped=True, negated=False),
    "ge": _compare(swapped=False, negated=True),
    "select": dict.fromkeys(_LONGS, Spelling("select({2}, {1}, {0})")),
}
"""The spelling of each operator, by the kind of its operands."""

HELPERS = helpers_of("""
fn add_long(a: vec2u, b: vec2u) -> vec2u {
    let low = a.x + b.x;
    return vec2u(low, a.y + b.y + u32(low < a.x));
}

fn subtract_long(a: vec2u, b: vec2u) -> vec2u {
    return vec2u(a.x - b.x, a.y - b.y - u32(a.x < b.x));
}

// The product of the low words is computed from 16-bit halves: WGSL keeps only its low word.
fn multiply_long(a: vec2u, b: vec2u) -> vec2u {
    let low = (a.x & 65535u) * (b.x & 65535u);
    let left = (a.x >> 16u) * (b.x & 65535u);
    let right = (a.x & 65535u) * (b.x >> 16u);
    let middle = (low >> 16u) + (left & 65535u) + (right & 65535u);
    let carry = (left >> 16u) + (right >> 16u) + (middle >> 16u);
    let high = (a.x >> 16u) * (b.x >> 16u) + carry;
    return vec2u((middle << 16u) | (low & 65535u), high + a.x * b.y + a.y * b.x);
}

fn multiply_add_long(a: vec2u, b: vec2u, c: vec2u) -> vec2u {
    return add_long(multiply_long(a, b), c);
}

// Repeated squaring over the bits of the exponent, which is not negative.
fn power_long(x: vec2u, y: vec2u) -> vec2u {
    var result = vec2u(1u, 0u);
    var square = x;
    for (var rest = y.x; rest != 0u; rest >>= 1u) {
        if ((rest & 1u) == 1u) { result = multiply_long(result, square); }
        square = multiply_long(square, square);
    }
    return result;
}

fn negate_long(a: vec2u) -> vec2u {
    return subtract_long(vec2u(), a);
}

fn magnitude_long(a: vec2u) -> vec2u {
    return select(a, negate_long(a), a.y >= 0x80000000u);
}

fn sign_long(a: vec2u) -> vec2u {
    let positive = vec2u(u32(any(a != vec2u())), 0u);
    return select(positive, vec2u(0xffffffffu), a.y >= 0x80000000u);
}

fn less_ulong(a: vec2u, b: vec2u) -> bool {
    return a.y < b.y || (a.y == b.y && a.x < b.x);
}

fn less_long(a: vec2u, b: vec2u) -> bool {
    return bitcast<i32>(a.y) < bitcast<i32>(b.y) || (a.y == b.y && a.x < b.x);
}

fn least_long(a: vec2u, b: vec2u) -> vec2u {
    return select(b, a, less_long(a, b));
}

fn greatest_long(a: vec2u, b: vec2u) -> vec2u {
    return select(b, a, less_long(b, a));
}

fn least_ulong(a: vec2u, b: vec2u) -> vec2u {
    return select(b, a, less_ulong(a, b));
}

fn greatest_ulong(a: vec2u, b: vec2u) -> vec2u {
    return select(b, a, less_ulong(b, a));
}

fn shift_left_long(a: vec2u, b: vec2u) -> vec2u {
    let s = b.x;
    if (s == 0u) { return a; }
    if (s < 32u) { return vec2u(a.x << s, (a.y << s) | (a.x >> (32u - s))); }
    return select(vec2u(), vec2u(0u, a.x << (s - 32u)), s < 64u);
}

fn shift_right_ulong(a: vec2u, b: vec2u) -> vec2u {
    let s = b.x;
    if (s == 0u) { return a; }
    if (s < 32u) { return vec2u((a.x >> s) | (a.y << (32u - s)), a.y >> s); }
    return select(vec2u(), vec2u(a.y >> (s - 32u), 0u), s < 64u);
}

fn shift_right_long(a: vec2u, b: vec2u) -> vec2u {
    let s = min(b.x, 63u);
    let high = bitcast<i32>(a.y);
    if (s == 0u) { return a; }
    if (s < 32u) { return vec2u((a.x >> s) | (a.y << (32u - s)), bitcast<u32>(high >> s)); }
    return vec2u(bitcast<u32>(high >> (s - 32u)), bitcast<u32>(high >> 31u));
}

// Long division, one bit of the quotient per step. Usually both operands fit in one word.
fn divide_ulong(a: vec2u, b: vec2u) -> vec4u {
    if (a.y == 0u && b.y == 0u) { return vec4u(a.x / b.x, 0u, a.x % b.x, 0u); }
    var quotient = a;
    var rest = vec2u();
    for (var step = 0; step < 64; step++) {
        let carry = rest.y >> 31u;
        rest = vec2u((rest.x << 1u) | (quotient.y >> 31u), (rest.y << 1u) | (rest.x >> 31u));
        quotient = vec2u(quotient.x << 1u, (quotient.y << 1u) | (quotient.x >> 31u));
        if (carry == 1u || !less_ulong(rest, b)) {
            rest = subtract_long(rest, b);
            quotient.x |= 1u;
        }
    }
    return vec4u(quotient, rest);
}

fn quotient_ulong(a: vec2u, b: vec2u) -> vec2u {
    return divide_ulong(a, b).xy;
}

fn remainder_ulong(a: vec2u, b: vec2u) -> vec2u {
    return divide_ulong(a, b).zw;
}

fn quotient_long(a: vec2u, b: vec2u) -> vec2u {
    let quotient = divide_ulong(magnitude_long(a), magnitude_long(b)).xy;
    return select(quotient, negate_long(quotient), ((a.y ^ b.y) >> 31u) == 1u);
}

fn remainder_long(a: vec2u, b: vec2u) -> vec2u {
    let rest = divide_ulong(magnitude_long(a), magnitude_long(b)).zw;
    return select(rest, negate_long(rest), a.y >= 0x80000000u);
}

fn long_from_int(a: i32) -> vec2u {
    return vec2u(bitcast<u32>(a), bitcast<u32>(a >> 31u));
}

// The bits below the 32 leading bits only decide ties, so one sticky bit replaces them.
fn float_from_ulong(a: vec2u) -> f32 {
    if (a.y == 0u) { return f32(a.x); }
    let zeros = countLeadingZeros(a.y);
    let shifted = shift_left_long(a, vec2u(zeros, 0u));
    let leading = shifted.y | u32(shifted.x != 0u);
    return f32(leading) * bitcast<f32>((159u - zeros) << 23u);
}

fn float_from_long(a: vec2u) -> f32 {
    let magnitude = float_from_ulong(magnitude_long(a));
    return select(magnitude, -magnitude, a.y >= 0x80000000u);
}

fn ulong_from_float(a: f32) -> vec2u {
    let whole = trunc(max(a, 0.0));
    let high = floor(whole * 2.3283064365386963e-10);
    return vec2u(u32(whole - high * 4294967296.0), u32(high));
}

fn long_from_float(a: f32) -> vec2u {
    let magnitude = ulong_from_float(abs(a));
    return select(magnitude, negate_long(magnitude), a < 0.0);
}
""")
"""The functions that the spellings call, by name."""

CASTS: dict[tuple[Kind, Kind], Spelling] = {
    ("long", "ulong"): Spelling("({0})"),
    ("ulong", "long"): Spelling("({0})"),
    **{(kind, "int"): Spelling("bitcast<i32>(({0}).x)") for kind in _LONGS},
    **{(kind, "uint"): Spelling("({0}).x") for kind in _LONGS},
    **{(kind, "bool"): Spelling("any(({0}) != vec2u())") for kind in _LONGS},
    **{(kind, "float"): function(f"float_from_{kind}", 1) for kind in _LONGS},
    **{("int", kind): function("long_from_int", 1) for kind in _LONGS},
    **{("uint", kind): Spelling("vec2u({0}, 0u)") for kind in _LONGS},
    **{("bool", kind): Spelling("vec2u(u32({0}), 0u)") for kind in _LONGS},
    **{("float", kind): function(f"{kind}_from_float", 1) for kind in _LONGS},
}
"""The conversions from one kind to another."""
