"""Turn names into short WGSL identifiers. Keywords, reserved words and built-ins get a trailing
underscore.

>>> wgsl_name("k"), wgsl_name("target")
('k', 'target_')
"""

from __future__ import annotations

import re
from dataclasses import replace

from webmlc.core.dtypes import INDEX
from webmlc.core.expr import Var
from webmlc.loops.ir import Buffer, For, Let, LoopFunction, walk_statements
from webmlc.target.scoped import Names, rename_variables, replace_all_buffers

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


def _short(names: Names, preferred: str) -> str:
    """The first unused name among `r`, `r1`, `r2`, ..."""
    count = names.counts.get(preferred, 0)
    names.counts[preferred] = count + 1
    name = f"{preferred}{count}" if count else preferred
    return _short(names, preferred) if name in names.used_names else name


def shorten_names(function: LoopFunction) -> LoopFunction:
    """Shorten the names of variables, which must be unique: shaders are downloaded, and a tile has
    a hundred variables. Parameters, symbols and shared buffers keep their names.

    Loops over workgroups and threads are named `bx`, `tx`, ...; serial loops `k`; lets of indices
    `p`; other lets `v`; registers `r`; local arrays `a`. A number follows where there are several.
    Registers are renamed in the order of allocation.
    """
    shared_buffers = [b for b in function.allocations if b.scope != "local"]
    fixed_names = [b.name for b in (*function.params, *shared_buffers)] + [
        s.name for s in function.symbols
    ]
    names = Names([*PRINTER_NAMES, *fixed_names])
    variables: dict[Var, Var] = {}
    for stmt in walk_statements(function.body):
        match stmt:
            case For(var=var, thread=thread):
                preferred = "k" if thread is None else f"{thread[0]}{thread[-1]}"
                variables[var] = Var(_short(names, preferred), var.dtype)
            case Let(var=var):
                preferred = "p" if var.dtype == INDEX else "v"
                variables[var] = Var(_short(names, preferred), var.dtype)

    def shortened(buffer: Buffer) -> Buffer:
        if buffer.scope != "local":
            return buffer
        preferred = "r" if buffer.storage == "register" else "a"
        return replace(buffer, name=_short(names, preferred))

    body = rename_variables(function.body, variables)
    return replace_all_buffers(function, body, shortened)
