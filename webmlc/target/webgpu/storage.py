"""Load and store the elements of GPU buffers, which have the same (little-endian) bytes as on the
CPU.

Buffers are copied between CPU and GPU unchanged. WGSL reads and writes memory in words of 32 bits.
A 64-bit integer takes two words (`long_integers.py`); smaller elements share a word. A load
extracts an element from its word; four aligned elements form a vector from one or two words. A
store of four elements writes their words. A store of a single element must not change the other
elements of the word, which other invocations may write. It therefore clears its own bits, and then
sets them, each in one atomic step; no other invocation accesses the same element. 16-bit floats are
widened to float32 for every operation, and rounded where they are stored. With the feature
`shader-f16`, an element of float16 is not a part of a word: the printer has its type, `f16`.

    lowered form                       WGSL
    x[i]  (uint8)                      byte_at(x[i >> 2u], i)
    y[T.ramp(k * 4, 1, 4)] = v         y[k] = pack_bytes(v)
"""

from __future__ import annotations

from dataclasses import dataclass

from webmlc.core.dtypes import DType
from webmlc.target.webgpu.spelling import ATOM, LOOSE, Spelling, function, helpers_of, template


@dataclass(frozen=True, slots=True)
class Part:
    """A type that is smaller than a word.

    - `scalar`: the text that reads one element from its word and index.
    - `vector`: the text that reads four elements from their words.
    - `bits`: the text of a value's bits, as u32.
    - `narrowed`: the text that brings a wider value into the type's range.

    `{U}` is u32, or the vector of u32 with the lanes of the value.
    """

    bytes: int
    scalar: Spelling
    vector: Spelling
    bits: Spelling
    narrowed: Spelling

    @property
    def packed(self) -> Spelling:
        """The words that hold the bits of four elements."""
        return function("pack_bytes" if self.bytes == 1 else "pack_shorts", 1)


def _cut(dropped: int, signed: bool) -> Spelling:
    """Keep the low `32 - dropped` bits of a 32-bit integer, sign-extended if `signed`."""
    if signed:
        return Spelling(f"({{0}} << {{U}}({dropped}u)) >> {{U}}({dropped}u)", LOOSE)
    return Spelling(f"{{0}} & {{U}}({2 ** (32 - dropped) - 1}u)", LOOSE)


def _low_bits(mask: int) -> Spelling:
    """The low bits of a signed value, as unsigned."""
    return Spelling(f"(bitcast<{{U}}>({{0}}) & {{U}}({mask}u))")


_SAME = Spelling("({0})")
"""A value that is its own bits: unsigned, and in the type's range."""

PARTS: dict[DType, Part] = {
    DType.bool: Part(
        1,
        Spelling("byte_at({0}, {1}) != 0u", LOOSE, "byte_at"),
        Spelling("bytes_of({0}) != vec4u()", LOOSE, "bytes_of"),
        Spelling("{U}({0})"),
        _cut(24, False),
    ),
    DType.uint8: Part(1, function("byte_at", 2), function("bytes_of", 1), _SAME, _cut(24, False)),
    DType.int8: Part(
        1,
        function("signed_byte_at", 2),
        function("signed_bytes_of", 1),
        _low_bits(255),
        _cut(24, True),
    ),
    DType.uint16: Part(
        2, function("short_at", 2), function("shorts_of", 1), _SAME, _cut(16, False)
    ),
    DType.int16: Part(
        2,
        function("signed_short_at", 2),
        function("signed_shorts_of", 1),
        _low_bits(65535),
        _cut(16, True),
    ),
    DType.float16: Part(
        2,
        function("half_at", 2),
        function("halves_of", 1),
        template("half_bits", 1),
        template("round_half", 1),
    ),
    DType.bfloat16: Part(
        2,
        function("bfloat_at", 2),
        Spelling("bitcast<vec4f>(shorts_of({0}) << vec4u(16u))", ATOM, "shorts_of"),
        template("bfloat_bits", 1),
        template("round_bfloat", 1),
    ),
}
"""The types that are stored as parts of words."""
WORDS = ("words", "atomic words")
"""The storages of such types."""

FROM_BITS: dict[DType, Spelling] = {
    DType.float16: template("float_of_half", 1),
    DType.bfloat16: Spelling("bitcast<{F}>(({0}) << {U}(16u))"),
}
"""The value of a 16-bit float, from its bits."""

ROUNDINGS: dict[str, Spelling] = {
    "round_float16": template("round_half", 1),
    "round_bfloat16": template("round_bfloat", 1),
}
"""The scalar operators that round a float32 to a 16-bit float."""

HELPERS = helpers_of("""
fn byte_at(word: u32, i: i32) -> u32 {
    return (word >> (u32(i & 3) * 8u)) & 255u;
}

fn signed_byte_at(word: u32, i: i32) -> i32 {
    return bitcast<i32>(word << (24u - u32(i & 3) * 8u)) >> 24u;
}

fn short_at(word: u32, i: i32) -> u32 {
    return (word >> (u32(i & 1) * 16u)) & 65535u;
}

fn signed_short_at(word: u32, i: i32) -> i32 {
    return bitcast<i32>(word << (16u - u32(i & 1) * 16u)) >> 16u;
}

fn half_at(word: u32, i: i32) -> f32 {
    return float_of_half_u32(short_at(word, i));
}

fn bfloat_at(word: u32, i: i32) -> f32 {
    return bitcast<f32>(short_at(word, i) << 16u);
}

fn bytes_of(word: u32) -> vec4u {
    return (vec4u(word) >> vec4u(0u, 8u, 16u, 24u)) & vec4u(255u);
}

fn signed_bytes_of(word: u32) -> vec4i {
    return bitcast<vec4i>(vec4u(word) << vec4u(24u, 16u, 8u, 0u)) >> vec4u(24u);
}

fn shorts_of(words: vec2u) -> vec4u {
    return (words.xxyy >> vec4u(0u, 16u, 0u, 16u)) & vec4u(65535u);
}

fn signed_shorts_of(words: vec2u) -> vec4i {
    return bitcast<vec4i>(words.xxyy << vec4u(16u, 0u, 16u, 0u)) >> vec4u(16u);
}

fn halves_of(words: vec2u) -> vec4f {
    return float_of_half_u32x4(shorts_of(words));
}

fn pack_bytes(v: vec4u) -> u32 {
    return v.x | (v.y << 8u) | (v.z << 16u) | (v.w << 24u);
}

fn pack_shorts(v: vec4u) -> vec2u {
    return v.xz | (v.yw << vec2u(16u));
}

// A subnormal half is computed as bits · 2^-24: a shader may flush float32 subnormals to zero.
fn float_of_half_{suffix}(bits: {U}) -> {F} {
    let rest = bits & {U}(0x7fffu);
    let tiny = bitcast<{U}>({F}(rest) * 5.9604645e-8);
    let normal = (rest << {U}(13u)) + {U}(0x38000000u);
    let special = (rest << {U}(13u)) | {U}(0x7f800000u);
    let finite = select(normal, tiny, rest < {U}(0x400u));
    let magnitude = select(finite, special, rest >= {U}(0x7c00u));
    return bitcast<{F}>(magnitude | ((bits & {U}(0x8000u)) << {U}(16u)));
}

// Round to nearest, ties to even. Adding 0.5 makes float32 round a small value to a multiple of
// 2^-24, the step of subnormal halves. Halves are normal from 0x38800000 (2^-14), and infinite
// from 0x477ff000 (65520), as float32 bits.
fn half_bits_{suffix}(x: {F}) -> {U} {
    let bits = bitcast<{U}>(x);
    let rest = bits & {U}(0x7fffffffu);
    let odd = (rest >> {U}(13u)) & {U}(1u);
    let normal = (rest - {U}(0x38000000u) + {U}(0xfffu) + odd) >> {U}(13u);
    let tiny = bitcast<{U}>(bitcast<{F}>(rest) + 0.5) - {U}(0x3f000000u);
    let finite = select(normal, tiny, rest < {U}(0x38800000u));
    let bounded = select(finite, {U}(0x7c00u), rest >= {U}(0x477ff000u));
    let magnitude = select(bounded, {U}(0x7e00u), rest > {U}(0x7f800000u));
    return magnitude | ((bits >> {U}(16u)) & {U}(0x8000u));
}

fn bfloat_bits_{suffix}(x: {F}) -> {U} {
    let bits = bitcast<{U}>(x);
    let odd = (bits >> {U}(16u)) & {U}(1u);
    let rounded = (bits + {U}(0x7fffu) + odd) >> {U}(16u);
    return select(rounded, {U}(0x7fc0u), (bits & {U}(0x7fffffffu)) > {U}(0x7f800000u));
}

fn round_half_{suffix}(x: {F}) -> {F} {
    let bits = bitcast<{U}>(x);
    let rest = bits & {U}(0x7fffffffu);
    let odd = (rest >> {U}(13u)) & {U}(1u);
    let normal = (rest + {U}(0xfffu) + odd) & {U}(0xffffe000u);
    let steps = bitcast<{U}>(bitcast<{F}>(rest) + 0.5) - {U}(0x3f000000u);
    let tiny = bitcast<{U}>({F}(steps) * 5.9604645e-8);
    let finite = select(normal, tiny, rest < {U}(0x38800000u));
    let bounded = select(finite, {U}(0x7f800000u), rest >= {U}(0x477ff000u));
    let magnitude = select(bounded, rest, rest > {U}(0x7f800000u));
    return bitcast<{F}>(magnitude | (bits & {U}(0x80000000u)));
}

fn round_bfloat_{suffix}(x: {F}) -> {F} {
    return bitcast<{F}>(bfloat_bits_{suffix}(x) << {U}(16u));
}
""")
"""The functions that convert elements of small types, by name."""


def word_of(dtype: DType, index: str, in_vectors: bool) -> str:
    """The index of the word that holds an element. If `in_vectors`, the index of the one or two
    words that hold its group of four. `index` must be safe as the left operand of `>>`.
    """
    return f"{index} >> {1 if PARTS[dtype].bytes == 2 and not in_vectors else 2}u"


def store_lines(buffer: str, dtype: DType, index: str, bits: str) -> list[str]:
    """The statements that clear, then set, the bits of an element, and keep the other elements of
    its word. They need a scope of their own, and a buffer of `atomic<u32>`.
    """
    part = PARTS[dtype]
    position_mask, value_mask = (3, 255) if part.bytes == 1 else (1, 65535)
    word = f"{buffer}[element_at >> {1 if part.bytes == 2 else 2}u]"
    return [
        f"let element_at = {index};",
        f"let element_shift = u32(element_at & {position_mask}) * {8 * part.bytes}u;",
        f"let element_bits = {bits};",
        f"atomicAnd(&{word}, ~({value_mask}u << element_shift));",
        f"atomicOr(&{word}, element_bits << element_shift);",
    ]
