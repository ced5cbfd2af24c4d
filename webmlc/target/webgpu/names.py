"""Turn names into WGSL identifiers: keywords, reserved words and built-ins get a trailing
underscore.

>>> wgsl_name("k"), wgsl_name("target")
('k', 'target_')
"""

from __future__ import annotations

import re

from webmlc.loops.ir import Buffer

NAME, NUMBER = "kernel#", "number#"
"""Stand for the name of a kernel and for its number in its text, so that equal kernels of all
models have the same text. No identifier has such a name.
"""

_WORDS = """
    alias break case const const_assert continue continuing default diagnostic discard else enable
    false fn for if let loop override requires return struct switch true var while

    NULL Self abstract active alignas alignof as asm asm_fragment async attribute auto await become
    cast catch class co_await co_return co_yield coherent column_major common compile
    compile_fragment concept const_cast consteval constexpr constinit crate debugger decltype delete
    demote demote_to_helper do dynamic_cast enum explicit export extends extern external fallthrough
    filter final finally friend from fxgroup get goto groupshared highp impl implements import
    inline instanceof interface layout lowp macro macro_rules match mediump meta mod module move mut
    mutable namespace new nil noexcept noinline nointerpolation non_coherent noncoherent
    noperspective null nullptr of operator package packoffset partition pass patch pixelfragment
    precise precision premerge priv protected pub public readonly ref regardless register
    reinterpret_cast require resource restrict self set shared sizeof smooth snorm static
    static_assert static_cast std subroutine super target template this thread_local throw trait try
    type typedef typeid typename typeof union unless unorm unsafe unsized use using varying virtual
    volatile wgsl where with writeonly yield

    bool f16 f32 i32 u32 vec2 vec3 vec4 mat2x2 mat3x3 mat4x4 array atomic ptr sampler texture_2d
    bitcast select abs acos acosh asin asinh atan atanh ceil clamp cos cosh cross degrees distance
    dot exp exp2 extract floor fma fract length log log2 max min mix modf normalize pow radians
    round saturate sign sin sinh sqrt step tan tanh transpose trunc
"""
QUAD_LANE, SUBGROUP_LANE, SUBGROUP_LANES = "quad_lane", "subgroup_lane", "subgroup_lanes"

PRINTER_NAMES = (
    *("group", "thread", "vector", "workgroup", "workgroups", "infinity_bits"),
    *(QUAD_LANE, SUBGROUP_LANE, SUBGROUP_LANES),
)
"""The names that the printer itself uses."""

_RESERVED = frozenset({*_WORDS.split(), *PRINTER_NAMES})


def wgsl_name(name: str) -> str:
    """`name` as a WGSL identifier. Equal names stay equal. Different names that are identifiers
    already stay different.
    """
    identifier = re.sub(r"[^A-Za-z0-9_]", "_", name)
    if not identifier[0].isalpha():
        identifier = f"x{identifier}"
    return f"{identifier}_" if identifier.rstrip("_") in _RESERVED else identifier


def memory_name(buffer: Buffer) -> str:
    """The identifier of a buffer in memory. At module scope, it contains the kernel's number."""
    name = buffer.name
    return wgsl_name(name) if buffer.scope == "local" else f"{wgsl_name(f'{name}_')}{NUMBER}"
