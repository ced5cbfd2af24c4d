"""Emit one WGSL module from lowered kernels.

In: lowered loop functions by name, and which of their parameters are constants. Out: the text of
one module, which naga and Tint both accept with the default limits. For each entry point, it also
says how many workgroups to dispatch and which symbols to pass.

Binding model: all bindings are in group 0. Binding i is the i-th parameter: `read` for constants,
`read_write` for all others, because activations share one arena buffer, bound at different offsets.
A kernel with symbols has one more binding: a uniform buffer of the symbols, as an
`array<vec4<i32>, ceil(n / 4)>` in the order of `Entry.symbols`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from webmlc.core.expr import Expr
from webmlc.loops.ir import LoopFunction
from webmlc.target.line_stages import line_ranges
from webmlc.target.webgpu.names import wgsl_name
from webmlc.target.webgpu.printer import Shader, emit_shader
from webmlc.target.webgpu.quad_loads import DIRECTIVE, LANE
from webmlc.target.webgpu.share_shaders import SharedShader, share_shaders
from webmlc.target.webgpu.table import ENABLE, INFINITY


@dataclass(frozen=True, slots=True)
class Entry:
    """The data that launches a kernel: the name of the entry point, and its grid as expressions of
    the symbols. Its uniform buffer holds the `symbols`, then the `integers`. `sections` are the
    workgroups of the optional sections, in the order of the overrides.
    """

    name: str
    workgroups: tuple[Expr, Expr, Expr]
    symbols: tuple[str, ...]
    integers: tuple[int, ...] = ()
    sections: tuple[Expr, ...] = ()


@dataclass(frozen=True, slots=True)
class Shaders:
    """A WGSL module, its entry points by kernel, and the lines of each kernel in the text, counted
    from 0: its comment, its bindings and its function. Kernels may share an entry point and lines.
    `features` are the features of WebGPU that it needs.
    """

    text: str
    entries: Mapping[str, Entry]
    lines: Mapping[str, range] = field(default_factory=dict)
    features: tuple[str, ...] = ()


def emit_shaders(
    kernels: Mapping[str, LoopFunction],
    constants: Mapping[str, frozenset[str]] | None = None,
    features: frozenset[str] = frozenset(),
) -> Shaders:
    """Print all kernels into one module. `constants` names the parameters of each kernel that hold
    constants. `features` are the features of WebGPU that kernels may use.

    Raises InternalError, naming the kernel, where WGSL has no spelling for an expression.
    """
    read_only = constants or {}
    return join_shaders(
        {
            name: emit_shader(f, read_only.get(name, frozenset()), features)
            for name, f in kernels.items()
        }
    )


def join_shaders(shaders: Mapping[str, Shader], *, shares: bool = False) -> Shaders:
    """Join printed kernels to a module. If `shares`, kernels that differ in numbers only have one
    entry point, with the name of the first kernel.
    """
    helpers = dict.fromkeys(helper for shader in shaders.values() for helper in shader.helpers)
    features = sorted({feature for shader in shaders.values() for feature in shader.features})
    if shares:
        shared = share_shaders(shaders)
    else:
        shared = [SharedShader(shader, {name: ()}) for name, shader in shaders.items()]
    code = "".join((*helpers, *(shader.text for shader in shaders.values())))
    preamble = [f"{ENABLE[feature]}\n" for feature in features]
    preamble += [DIRECTIVE] if LANE in code else []
    preamble += [INFINITY] if "infinity_bits" in code else []
    texts = [s.shader.named(s.name, number) for number, s in enumerate(shared)]
    text = "\n".join([*preamble, *helpers, *texts])
    first = sum(part.count("\n") + 1 for part in (*preamble, *helpers))
    ranges = zip(shared, line_ranges(texts, first), strict=True)
    lines = {name: lines for s, lines in ranges for name in s.integers}
    entries = {
        name: _entry(s.name, shaders[name], integers)
        for s in shared
        for name, integers in s.integers.items()
    }
    return Shaders(text, entries, lines, tuple(features))


def _entry(name: str, shader: Shader, integers: tuple[int, ...]) -> Entry:
    return Entry(wgsl_name(name), shader.workgroups, shader.symbols, integers, shader.sections)
