"""Emit the code of a package: one WebAssembly module for all programs, and one text of shaders,
each in variants.

In: lowered graphs, and a compiler of their kernels. Out: code, and the kernels of it for reports.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from webmlc.core.machine import RELAXED, Device, Gpu
from webmlc.core.stages import Stage
from webmlc.graph.ir import Module
from webmlc.loops.ir import LoopFunction
from webmlc.loops.narrow_parameters import narrow_parameters
from webmlc.package.compile_kernels import KernelCompiler
from webmlc.package.program import Signature, module_calls
from webmlc.package.write import ProgramParts, ShaderVariant
from webmlc.target.kernel_work import Kernel
from webmlc.target.target import Variant
from webmlc.target.wasm.emit_module import Module as WasmModule
from webmlc.target.wasm.emit_module import Step, join_functions
from webmlc.target.wasm.printer import Printed
from webmlc.target.wasm.target import WASM
from webmlc.target.webgpu.emit_shaders import Shaders, join_shaders
from webmlc.target.webgpu.names import wgsl_name
from webmlc.target.webgpu.printer import Shader
from webmlc.target.webgpu.target import WEBGPU


def emit_modules(
    lowered_modules: Mapping[Device, Module],
    programs: Mapping[Device, ProgramParts],
    model_signature: Signature,
    compiler: KernelCompiler,
) -> tuple[dict[str, WasmModule], dict[Device, dict[str, Kernel]]]:
    """Emit the variants of the one wasm module, which holds every CPU kernel of every program.

    Returns the variants, and the kernels of the relaxed variant by program. The variants
    `relaxed` and `simd128` always exist, another one only if some kernel is compiled for it.
    """
    by_program: dict[Device, dict[str, Kernel]] = {device: {} for device in programs}
    calls = module_calls(programs, model_signature)
    steps = [Step(c.kernel, c.slots, c.displacements, c.control) for c in calls]
    kernels = {
        call.kernel: lowered_modules[call.program].kernels[call.source]
        for call in calls
        if call.control is None
    }
    if not steps:
        return {}, by_program
    modules: dict[str, WasmModule] = {}
    for variant, form in WASM.variants.items():
        machine = form.machine
        if form.is_optional and all(form.machine_of(k) != machine for k in kernels.values()):
            continue
        compiled = compiler.compile(kernels, form, variant)
        functions = {n: code for n, code in compiled.codes.items() if isinstance(code, Printed)}
        emitted = join_functions(functions, steps, compiled.alternatives)
        modules[variant] = emitted
        compiler.watch(Stage(f"{variant}: wat", partial(str, emitted.text), result=emitted))
        if machine is RELAXED:
            for call in calls:
                if call.control is None:
                    kernel = Kernel(kernels[call.kernel], compiled.lowered[call.kernel])
                    by_program[call.program][call.source] = kernel
    return modules, by_program


def emit_shaders(
    lowered_modules: Mapping[Device, Module],
    compiler: KernelCompiler,
    variants: Mapping[str, Variant[Gpu]],
    halves: Mapping[str, frozenset[str]],
) -> tuple[dict[str, ShaderVariant], dict[str, Kernel]]:
    """Emit every shader of the WebGPU program in one text per variant. `halves` are the parameters
    of kernels that variants with `shader-f16` store as float16.

    Returns the variants, and the kernels of the first one by their names in the manifest. A variant
    for adapters with some features is left out if it has the same text as another one.
    """
    kernels: Mapping[str, LoopFunction] = {}
    constants: Mapping[str, frozenset[str]] = {}
    if WEBGPU.device in lowered_modules:
        module = lowered_modules[WEBGPU.device]
        kernels, constants = called_kernels(module, WEBGPU.device)
    narrow = {name: narrow_parameters(k, halves.get(name, ())) for name, k in kernels.items()}
    stores_halves = {v: m for v, m in variants.items() if "shader-f16" in m.machine.features}
    compiler.start({name: narrow[name] for name in halves}, stores_halves, constants)
    emitted: dict[str, ShaderVariant] = {}
    by_name: dict[str, Kernel] = {}
    for variant, form in variants.items():
        stored = narrow if variant in stores_halves else kernels
        compiled = compiler.compile(stored, form, variant, constants)
        shaders = join_shaders(
            {n: c for n, c in compiled.codes.items() if isinstance(c, Shader)},
            shares=form.machine.compiles_slowly and not compiled.alternatives,
        )
        if form.is_optional and any(_is_equal(shaders, v.shaders) for v in emitted.values()):
            compiler.forget(variant)
            continue
        emitted[variant] = ShaderVariant(shaders, compiled.alternatives)
        compiler.watch(Stage(f"{variant}: wgsl", partial(str, shaders.text), result=shaders))
        for name in kernels:
            kernel = Kernel(kernels[name], compiled.lowered[name])
            by_name.setdefault(wgsl_name(name), kernel)
    return emitted, by_name


def _is_equal(shaders: Shaders, other: Shaders) -> bool:
    """True if the texts are equal, and the integers that kernels pass to them."""
    return shaders.text == other.text and shaders.entries == other.entries


def called_kernels(
    module: Module, device: Device
) -> tuple[dict[str, LoopFunction], dict[str, frozenset[str]]]:
    """The kernels that a module calls on a device, by name, and the parameters of each that hold
    constants, as shaders declare them.
    """
    kernels: dict[str, LoopFunction] = {}
    constants: dict[str, frozenset[str]] = {}
    for node in (node for function in module.functions.values() for node in function.nodes):
        if node.op == "call_kernel" and node.attributes["device"] == device:
            name = node.attributes["kernel"]
            kernels[name] = module.kernels[name]
            if device == WEBGPU.device:
                constants[name] = frozenset(node.attributes["constants"])
    return kernels, constants
