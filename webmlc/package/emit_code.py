"""Emit the code of a package for each target, in variants.

In: the programs of a package, and a compiler of their kernels. Out: code, and its kernels for
reports.

    calls = calls_of(WASM, programs, signature)        # what the programs call on the CPU
    code = emit(WASM, calls, compiler)
    code.variants["relaxed"].joined.text
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
from msgspec import structs

from webmlc.build_options import BuildOptions
from webmlc.core.errors import InternalError
from webmlc.core.machine import DEVICES, Device, Machine
from webmlc.core.stages import Stage
from webmlc.graph.ir import Array, Module
from webmlc.loops.ir import LoopFunction
from webmlc.loops.narrow_parameters import narrow_parameters
from webmlc.package.compile_kernels import KernelCompiler
from webmlc.package.half_buffers import half_buffers, stores_halves
from webmlc.package.manifest import Manifest
from webmlc.package.program import module_calls, program_parts
from webmlc.package.write import Parts, ProgramParts, ShaderVariant
from webmlc.target.kernel_work import Kernel
from webmlc.target.target import Alternatives, AnyTarget, Task
from webmlc.target.wasm.assemble import assemble
from webmlc.target.wasm.emit_module import Step
from webmlc.target.wasm.target import WASM
from webmlc.target.webgpu.names import wgsl_name
from webmlc.target.webgpu.target import WEBGPU

Parameters = Mapping[str, frozenset[str]]
"""Names of parameters, by kernel."""


@dataclass(frozen=True, slots=True)
class LoweredProgram:
    """A program before its code is emitted: the module of its kernels, and its steps.

    `halves` are the parameters of kernels that variants with `shader-f16` store as float16.
    """

    module: Module
    parts: ProgramParts
    halves: Parameters = field(default_factory=dict)


Programs = Mapping[Device, LoweredProgram]


@dataclass(frozen=True, slots=True)
class Calls:
    """The calls of a package's programs on one device.

    - `kernels`: the kernels by their names in the code.
    - `names`: the name of each kernel in the code, by its program and its name in the manifest.
    - `steps`: the calls in order, if the code runs them.
    - `constants`: the parameters of each kernel that hold constants, if the code declares them.
    - `halves`: the parameters that variants with `shader-f16` store as float16.
    """

    kernels: Mapping[str, LoopFunction]
    names: Mapping[tuple[Device, str], str]
    steps: Sequence[Step] = ()
    constants: Parameters = field(default_factory=dict)
    halves: Parameters = field(default_factory=dict)

    def stored(self, machine: Machine) -> Mapping[str, LoopFunction]:
        """The kernels of a variant for this machine."""
        halves = self.halves if "shader-f16" in machine.features else {}
        return {
            name: narrow_parameters(k, halves.get(name, ())) for name, k in self.kernels.items()
        }


def calls_of(target: AnyTarget, programs: Programs, signature: Manifest) -> Calls:
    """The calls of the programs on a target's device."""
    if DEVICES[target.device].runs_steps:
        calls = module_calls({d: p.parts for d, p in programs.items()}, signature)
        kernel_calls = [call for call in calls if call.control is None]
        return Calls(
            {c.kernel: programs[c.program].module.kernels[c.source] for c in kernel_calls},
            {(c.program, c.source): c.kernel for c in kernel_calls},
            [Step(c.kernel, c.slots, c.displacements, c.control) for c in calls],
        )
    if target.device not in programs:
        return Calls({}, {})
    program = programs[target.device]
    kernels, constants = called_kernels(program.module, target)
    names = {(target.device, wgsl_name(name)): name for name in kernels}
    return Calls(kernels, names, constants=constants, halves=program.halves)


def called_kernels(module: Module, target: AnyTarget) -> tuple[dict[str, LoopFunction], Parameters]:
    """The kernels that a module calls on a target's device, by name. The second result holds the
    parameters of each kernel that its code declares as constants.
    """
    kernels: dict[str, LoopFunction] = {}
    constants: dict[str, frozenset[str]] = {}
    for node in (node for function in module.functions.values() for node in function.nodes):
        if node.op == "call_kernel" and node.attributes["device"] == target.device:
            name = node.attributes["kernel"]
            kernels[name] = module.kernels[name]
            if target.declares_constants:
                constants[name] = frozenset(node.attributes["constants"])
    return kernels, constants


@dataclass(frozen=True, slots=True)
class EmittedVariant:
    """The code of a variant, and which kernel replaces another one on a class of machines."""

    joined: Any
    alternatives: Alternatives


@dataclass(frozen=True, slots=True)
class Code:
    """The code for a target, by variant. `kernels` holds the kernels of the first variant, by
    program and by their names in the manifest.
    """

    target: AnyTarget
    variants: Mapping[str, EmittedVariant] = field(default_factory=dict)
    kernels: Mapping[tuple[Device, str], Kernel] = field(default_factory=dict)

    def texts(self) -> dict[str, str]:
        """The files of the code as text, for people."""
        return {
            f"{self.target.stem}.{name}.{self.target.language}": variant.joined.text
            for name, variant in self.variants.items()
        }


def emit(target: AnyTarget, calls: Calls, compiler: KernelCompiler) -> Code:
    """Emit the code of the calls on a target's device, once for each distinct variant."""
    if not (calls.kernels or calls.steps):
        return Code(target)
    for variant in target.variants.values():
        stored = calls.stored(variant.machine)
        compiler.start({name: stored[name] for name in calls.halves}, [variant], calls.constants)
    emitted: dict[str, EmittedVariant] = {}
    emitted_tasks: list[dict[str, Task]] = []
    kernels: dict[tuple[Device, str], Kernel] = {}
    for name, variant in sorted(target.variants.items(), key=lambda item: item[1].is_optional):
        tasks = compiler.tasks(calls.stored(variant.machine), variant, calls.constants)
        if variant.is_optional and tasks in emitted_tasks:
            continue
        compiled = compiler.compile(tasks, name)
        joined = target.join(compiled.codes, calls.steps, compiled.alternatives, variant.form)
        if variant.is_optional and any(joined == other.joined for other in emitted.values()):
            compiler.forget(name)
            continue
        emitted[name] = EmittedVariant(joined, compiled.alternatives)
        emitted_tasks.append(tasks)
        compiler.watch(
            Stage(f"{name}: {target.language}", partial(str, joined.text), result=joined)
        )
        for (program, source), kernel in calls.names.items():
            meaning, lowered = calls.kernels[kernel], compiled.lowered[kernel]
            kernels.setdefault((program, source), Kernel(meaning, lowered))
    return Code(target, {n: emitted[n] for n in target.variants if n in emitted}, kernels)


def lowered_program(target: AnyTarget, module: Module, interface: Manifest) -> LoweredProgram:
    """The program of a lowered module, with the buffers that some variants store as halves."""
    parts = program_parts(module)
    if not stores_halves(target.variants):
        return LoweredProgram(module, parts)
    halves = half_buffers(parts, module, interface, target.device)
    return LoweredProgram(module, replace(parts, halves=halves.buffers), halves.parameters)


def package_parts(
    graph: Module,
    interface: Manifest,
    programs: Programs,
    code: Sequence[Code],
    compiler: KernelCompiler,
    options: BuildOptions,
) -> Parts:
    """The contents of a package."""
    by_device = {c.target.device: c for c in code}
    modules, shaders = by_device[WASM.device].variants, by_device[WEBGPU.device].variants
    shader_variants = {n: ShaderVariant(v.joined, v.alternatives) for n, v in shaders.items()}
    joined_modules = [variant.joined for variant in modules.values()]
    features = {name: variant.joined.features for name, variant in shaders.items()}
    kernels: dict[Device, dict[str, Kernel]] = {device: {} for device in programs}
    for (device, name), kernel in (item for c in code for item in c.kernels.items()):
        kernels[device][name] = kernel
    return Parts(
        manifest=structs.replace(
            interface, tuned=tuple(compiler.tuned), machines=tuple(compiler.machines)
        ),
        programs={
            device: program.parts.with_code(joined_modules, shader_variants)
            for device, program in programs.items()
        },
        constants=join_constants(program.module for program in programs.values()),
        modules={name: assemble(variant.joined.text) for name, variant in modules.items()},
        shaders={name: variant.joined.text for name, variant in shaders.items()},
        shader_features={name: needs for name, needs in features.items() if needs},
        texts={n: t for c in code for n, t in c.texts().items()} if options.emit_text else {},
        assets=graph.assets,
        kernels=kernels,
        explanations=compiler.explanations,
    )


def join_constants(modules: Iterable[Module]) -> dict[str, Array]:
    """The constants of all functions of some modules.

    Raises `InternalError` if two different constants have the same name, because the second would
    replace the first.
    """
    constants: dict[str, Array] = {}
    for module in modules:
        for function in module.functions.values():
            for name, array in function.constants.items():
                if not _are_equal(constants.setdefault(name, array), array):
                    raise InternalError(
                        f"package: function {function.name}: another constant has the name of "
                        f"{name}"
                    )
    return constants


def _are_equal(left: Array, right: Array) -> bool:
    """True if two arrays have the same type and bits."""
    if left is right:
        return True
    if left.dtype != right.dtype or left.shape != right.shape:
        return False
    return np.array_equal(left.reshape(-1).view(np.uint8), right.reshape(-1).view(np.uint8))
