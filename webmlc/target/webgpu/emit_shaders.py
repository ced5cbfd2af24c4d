"""Lowered kernels -> one WGSL module.

In: lowered loop functions by name, and which of their parameters are constants. Out: the text of
one module that naga and Tint both accept, on the default limits, and for each entry point the
workgroups to dispatch and the symbols to pass.

Binding model: group 0; binding i is the i-th parameter, `read` for constants, `read_write` for all
else (activations live in one arena buffer, bound at different offsets); then, only where the kernel
has symbols, a uniform buffer of them as `array<vec4<i32>, ceil(n / 4)>`, in the order of
`Entry.symbols`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from webmlc.core.errors import InternalError
from webmlc.core.expr import Expr
from webmlc.loops.gpu_form import gpu_obstacle
from webmlc.loops.ir import LoopFunction
from webmlc.target.registers import register_lanes
from webmlc.target.webgpu.hoist_indices import hoist_indices
from webmlc.target.webgpu.legalise import legalise
from webmlc.target.webgpu.names import wgsl_name
from webmlc.target.webgpu.printer import Shader, print_shader
from webmlc.target.webgpu.shorten_names import shorten_names
from webmlc.target.webgpu.table import INFINITY
from webmlc.target.webgpu.threads import grid_of
from webmlc.target.webgpu.views import vector_views
from webmlc.target.webgpu.widen_loads import widen_loads


@dataclass(frozen=True, slots=True)
class Entry:
    """How to launch a kernel: the entry point's name, its grid over the symbols, and the symbols of
    its uniform buffer.
    """

    name: str
    workgroups: tuple[Expr, Expr, Expr]
    symbols: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Shaders:
    """A WGSL module and its entry points by kernel."""

    text: str
    entries: Mapping[str, Entry]


def emit_shaders(
    kernels: Mapping[str, LoopFunction], constants: Mapping[str, frozenset[str]] | None = None
) -> Shaders:
    """Print all kernels into one module; `constants` names each kernel's parameters that hold
    constants.

    Raises InternalError, naming the kernel, for what WGSL cannot say.
    """
    read_only = constants or {}
    shaders = {
        name: emit_shader(f, read_only.get(name, frozenset()), number)
        for number, (name, f) in enumerate(kernels.items())
    }
    helpers = dict.fromkeys(helper for shader in shaders.values() for helper in shader.helpers)
    preamble = [INFINITY] if any(shader.needs_infinity for shader in shaders.values()) else []
    text = "\n".join([*preamble, *helpers, *(shader.text for shader in shaders.values())])
    entries = {
        name: Entry(
            wgsl_name(kernels[name].name),
            grid_of(kernels[name]).workgroups,  # of the function before its divisions became shifts
            tuple(symbol.name for symbol in kernels[name].symbols),
        )
        for name, shader in shaders.items()
    }
    return Shaders(text, entries)


def emit_shader(function: LoopFunction, constants: frozenset[str], number: int = 0) -> Shader:
    """One kernel: widen, legalise, hoist, rename, print. `number` marks its buffers' names."""
    if reason := gpu_obstacle(function):
        raise InternalError(f"webgpu: kernel {function.name}: {reason}")
    wide, made = widen_loads(function)
    registers = frozenset(b.name for b in register_lanes(wide)) | made
    views = vector_views(wide, registers)
    hoisted = hoist_indices(legalise(wide, views), views)
    short = shorten_names(hoisted, registers)
    renamed = dict(zip(hoisted.allocations, short.allocations, strict=True))
    short_registers = frozenset(new.name for old, new in renamed.items() if old.name in registers)
    short_views = frozenset(
        [new.name for old, new in renamed.items() if old.name in views]
        + [b.name for b in function.params if b.name in views]
    )
    return print_shader(short, constants, short_views, short_registers, number)
