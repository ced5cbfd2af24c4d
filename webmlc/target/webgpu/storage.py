"""How elements lie in GPU memory: the same bytes as on the CPU, so nothing is converted between the
two.

WGSL addresses words. Types of 32 bits are words; 64-bit integers are pairs of them; smaller types
are parts of words, cut out by a load and put in by a store. A store must leave the word's other
elements alone, which other invocations write: it clears its own bits, then sets them, atomically.
16-bit floats are widened to float32 for every operation and rounded where they are stored.

    x[i]  (uint8)     ->   byte_at(x[i >> 2], i)
    y[i]  (float16)   ->   float_of_half(short_at(y[i >> 1], i))
"""

from __future__ import annotations

from dataclasses import dataclass

from webmlc.core.dtypes import DType
from webmlc.target.webgpu.spelling import LOOSE, Helper, Spelling, function


@dataclass(frozen=True, slots=True)
class Part:
    """A type that is smaller than a word: `value` spells the element from the word and its index,
    `bits` the unsigned bits of a value, `rounded` a value of wider range as one of this type.
    """

    bytes: int
    value: Spelling
    bits: Spelling
    rounded: Spelling


def _cut(shift: int, signed: bool) -> Spelling:
    """A 32-bit value to its low bits."""
    if signed:
        return Spelling(f"({{0}} << {shift}u) >> {shift}u", LOOSE)
    return Spelling(f"{{0}} & {2 ** (32 - shift) - 1}u", LOOSE)


PARTS: dict[DType, Part] = {
    DType.bool: Part(
        1,
        Spelling("byte_at({0}, {1}) != 0u", LOOSE, "byte_at"),
        Spelling("u32({0})"),
        _cut(24, False),
    ),
    DType.uint8: Part(1, function("byte_at", 2), Spelling("({0})"), _cut(24, False)),
    DType.int8: Part(
        1, function("signed_byte_at", 2), Spelling("(bitcast<u32>({0}) & 255u)"), _cut(24, True)
    ),
    DType.uint16: Part(2, function("short_at", 2), Spelling("({0})"), _cut(16, False)),
    DType.int16: Part(
        2, function("signed_short_at", 2), Spelling("(bitcast<u32>({0}) & 65535u)"), _cut(16, True)
    ),
    DType.float16: Part(
        2, function("half_at", 2), function("half_bits", 1), function("round_half", 1)
    ),
    DType.bfloat16: Part(
        2, function("bfloat_at", 2), function("bfloat_bits", 1), function("round_bfloat", 1)
    ),
}
"""What is stored as parts of words."""

FROM_BITS: dict[DType, Spelling] = {
    DType.float16: function("float_of_half", 1),
    DType.bfloat16: Spelling("bitcast<f32>(({0}) << 16u)"),
}
"""The value of a 16-bit float from its bits."""

HELPERS: dict[str, Helper] = {
    "byte_at": Helper("""\
fn byte_at(word: u32, i: i32) -> u32 {
    return (word >> (u32(i & 3) * 8u)) & 255u;
}
"""),
    "signed_byte_at": Helper("""\
fn signed_byte_at(word: u32, i: i32) -> i32 {
    return bitcast<i32>(word << (24u - u32(i & 3) * 8u)) >> 24u;
}
"""),
    "short_at": Helper("""\
fn short_at(word: u32, i: i32) -> u32 {
    return (word >> (u32(i & 1) * 16u)) & 65535u;
}
"""),
    "signed_short_at": Helper("""\
fn signed_short_at(word: u32, i: i32) -> i32 {
    return bitcast<i32>(word << (16u - u32(i & 1) * 16u)) >> 16u;
}
"""),
    "half_at": Helper(
        """\
fn half_at(word: u32, i: i32) -> f32 {
    return float_of_half(short_at(word, i));
}
""",
        ("float_of_half", "short_at"),
    ),
    "bfloat_at": Helper(
        """\
fn bfloat_at(word: u32, i: i32) -> f32 {
    return bitcast<f32>(short_at(word, i) << 16u);
}
""",
        ("short_at",),
    ),
    # Subnormals are products, for a shader may flush those of float32 to zero.
    "float_of_half": Helper("""\
fn float_of_half(bits: u32) -> f32 {
    let rest = bits & 0x7fffu;
    let tiny = bitcast<u32>(f32(rest) * 5.9604645e-8);
    let finite = select((rest << 13u) + 0x38000000u, tiny, rest < 0x400u);
    let magnitude = select(finite, (rest << 13u) | 0x7f800000u, rest >= 0x7c00u);
    return bitcast<f32>(magnitude | ((bits & 0x8000u) << 16u));
}
"""),
    # To nearest, ties to even; adding 0.5 aligns a subnormal's last bit with float32's.
    "half_bits": Helper("""\
fn half_bits(x: f32) -> u32 {
    let bits = bitcast<u32>(x);
    let rest = bits & 0x7fffffffu;
    let normal = (rest - 0x38000000u + 0xfffu + ((rest >> 13u) & 1u)) >> 13u;
    let tiny = bitcast<u32>(bitcast<f32>(rest) + 0.5) - 0x3f000000u;
    let finite = select(normal, tiny, rest < 0x38800000u);
    let bounded = select(finite, 0x7c00u, rest >= 0x477ff000u);
    return select(bounded, 0x7e00u, rest > 0x7f800000u) | ((bits >> 16u) & 0x8000u);
}
"""),
    "bfloat_bits": Helper("""\
fn bfloat_bits(x: f32) -> u32 {
    let bits = bitcast<u32>(x);
    let rounded = (bits + 0x7fffu + ((bits >> 16u) & 1u)) >> 16u;
    return select(rounded, 0x7fc0u, (bits & 0x7fffffffu) > 0x7f800000u);
}
"""),
    "round_half": Helper(
        """\
fn round_half(x: f32) -> f32 {
    return float_of_half(half_bits(x));
}
""",
        ("float_of_half", "half_bits"),
    ),
    "round_bfloat": Helper(
        """\
fn round_bfloat(x: f32) -> f32 {
    return bitcast<f32>(bfloat_bits(x) << 16u);
}
""",
        ("bfloat_bits",),
    ),
}


def word_of(dtype: DType, index: str) -> str:
    """The index of the word that holds an element; `index` is text that needs no parentheses."""
    return f"{index} >> {1 if PARTS[dtype].bytes == 2 else 2}u"


def store_lines(buffer: str, dtype: DType, index: str, bits: str) -> list[str]:
    """Statements that store the bits of an element among its word's others."""
    part = PARTS[dtype]
    within, mask = (3, 255) if part.bytes == 1 else (1, 65535)
    word = f"{buffer}[element_at >> {1 if part.bytes == 2 else 2}u]"
    return [
        f"let element_at = {index};",
        f"let element_shift = u32(element_at & {within}) * {8 * part.bytes}u;",
        f"let element_bits = {bits};",
        f"atomicAnd(&{word}, ~({mask}u << element_shift));",
        f"atomicOr(&{word}, element_bits << element_shift);",
    ]
