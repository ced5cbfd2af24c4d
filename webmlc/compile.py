"""The table of contents: the whole pipeline, one line per step.

In: a model. Out: a package on disk (`build`), or its parts in memory (`compile_model`). Every
step's result can be watched (`on_stage`): that is what `webmlc inspect` prints and what
`WEBMLC_DUMP` writes.

    >>> build("model.onnx", "build/model", target="both")  # doctest: +SKIP
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Literal

from webmlc.core.errors import UserError
from webmlc.core.flags import verify_level
from webmlc.core.machine import (
    MAX_BINDING_BYTES,
    MAX_BINDINGS,
    RELAXED,
    WASM_MACHINES,
    WEBGPU,
    Machine,
)
from webmlc.core.stages import Stage, Watcher, watcher
from webmlc.frontend.bind_constants import Constants
from webmlc.frontend.read_model import Source, read_model
from webmlc.graph.algorithms.attention.use_attention import use_attention
from webmlc.graph.algorithms.strassen.use_strassen import use_strassen
from webmlc.graph.algorithms.winograd.use_winograd import use_winograd
from webmlc.graph.checks.check_indices import check_indices
from webmlc.graph.checks.warn_of_training import warn_of_training
from webmlc.graph.fuse.concat_in_place import concat_in_place
from webmlc.graph.fuse.fuse import FusionLimits, fuse
from webmlc.graph.fuse.split_large_constants import split_large_constants
from webmlc.graph.fuse.split_operands import split_operands
from webmlc.graph.infer.infer_shapes import infer_shapes
from webmlc.graph.infer.normalise import normalise
from webmlc.graph.ir import Module, print_function
from webmlc.graph.layout.choose_layouts import choose_layouts
from webmlc.graph.layout.widen_halves import widen_halves
from webmlc.graph.quantise.compute_in_integers import QUANTISED_CONSTANTS, compute_in_integers
from webmlc.graph.quantise.duplicate_dequantisation import duplicate_dequantisation
from webmlc.graph.quantise.use_byte_products import use_byte_products
from webmlc.graph.simplify.flush_subnormals import flush_subnormals
from webmlc.graph.simplify.fold_constants import fold_constants
from webmlc.graph.simplify.hand_down_constants import hand_down_constants
from webmlc.graph.simplify.simplify_graph import simplify_graph
from webmlc.loops import text as loop_text
from webmlc.loops.ir import LoopFunction
from webmlc.loops.lower_module import lower_module
from webmlc.loops.name_dimensions import name_dimensions
from webmlc.loops.verify import verify
from webmlc.package.manifest import Device, Manifest
from webmlc.package.program import Signature, module_calls, program_parts, signature
from webmlc.package.write import Parts, ProgramParts, write_package
from webmlc.schedule.analysis import multiplies_bytes
from webmlc.schedule.factor_reductions import factor_reductions
from webmlc.schedule.rules import schedule_kernel
from webmlc.schedule.split_kernels import fits_dispatch, split_kernels
from webmlc.target.bind_dimensions import bind_dimensions
from webmlc.target.kernel_work import Kernel
from webmlc.target.lower import lower
from webmlc.target.wasm.assemble import assemble
from webmlc.target.wasm.emit_module import Module as WasmModule
from webmlc.target.wasm.emit_module import Step, emit_module
from webmlc.target.wasm.fits_scratch import fits_scratch
from webmlc.target.webgpu.emit_shaders import Shaders, emit_shaders
from webmlc.version import VERSION

Target = Literal["wasm", "webgpu", "both"]
FUSION_LIMITS: Mapping[Device, FusionLimits] = {
    "wasm": FusionLimits(pads=True),
    "webgpu": FusionLimits(buffers=MAX_BINDINGS, binding_bytes=MAX_BINDING_BYTES),
}


def build(
    model: Source,
    out: str | Path,
    target: Target = "both",
    *,
    constants: Constants | None = None,
    emit_text: bool = False,
    force: bool = False,
    on_stage: Watcher | None = None,
) -> Manifest:
    """Compile `model` and write the package into folder `out`; returns its manifest.

    `constants` are inputs that become constants: they leave the signature. Integers and booleans
    must fit the input's type exactly, floats are rounded to it.

    Raises `ModelError` (unreadable model), `UnsupportedError` (every unsupported node at once),
    `InputError` (a constant that is no input's, or does not fit it), `PackageError` (a file in
    `out` that no build wrote would be replaced, and not `force`) or `UserError`. The same model and
    arguments give the same bytes. `emit_text` also writes the WAT text.
    """
    parts = compile_model(
        model, target, constants=constants, emit_text=emit_text, on_stage=on_stage
    )
    return write_package(Path(out), parts, force=force)


def compile_model(
    model: Source,
    target: Target = "both",
    *,
    constants: Constants | None = None,
    emit_text: bool = False,
    on_stage: Watcher | None = None,
) -> Parts:
    """The whole pipeline, in memory."""
    if target not in ("wasm", "webgpu", "both"):
        raise UserError(f"unknown target {target!r}: choose wasm, webgpu or both")
    watch = watcher(on_stage)
    module = _seen(watch, "frontend", read_model(model, constants))
    module = _seen(watch, "normalise", normalise(module))
    warn_of_training(module)
    module = _seen(watch, "infer shapes", infer_shapes(module))
    module = _seen(watch, "fold constants", fold_constants(module, keep=QUANTISED_CONSTANTS))
    module = _seen(watch, "simplify", simplify_graph(module))
    module = _seen(watch, "check indices", check_indices(module))
    module = _seen(watch, "compute in integers", compute_in_integers(module))
    module = _seen(watch, "choose layouts", choose_layouts(module))
    module = _seen(watch, "widen halves", widen_halves(module))
    module = _seen(watch, "simplify layouts", simplify_graph(module))
    module = _seen(watch, "hand down constants", hand_down_constants(module))
    module = _seen(watch, "flush subnormals", flush_subnormals(module))
    module = _seen(watch, "duplicate dequantisation", duplicate_dequantisation(module))

    devices: tuple[Device, ...] = ("wasm", "webgpu") if target == "both" else (target,)
    lowered = {d: _kernels_of(module, d, watch) for d in devices}
    described = signature(module)
    programs = {d: program_parts(m) for d, m in lowered.items()}

    modules, cpu_kernels = _wasm_modules(lowered, programs, described, watch)
    shaders, gpu_kernels = _shaders(lowered, watch)
    return Parts(
        name=module.name,
        compiler=f"webmlc {VERSION}",
        symbols=described.symbols,
        inputs=described.inputs,
        outputs=described.outputs,
        sequences=described.sequences,
        requirements=module.requirements,
        checks=module.checks,
        programs={d: p.with_code(modules.values(), shaders) for d, p in programs.items()},
        constants={
            n: a
            for m in lowered.values()
            for f in m.functions.values()
            for n, a in f.constants.items()
        },
        modules={variant: assemble(m.text) for variant, m in modules.items()},
        shaders=shaders.text if shaders.entries else None,
        texts={f"model.{v}.wat": m.text for v, m in modules.items()} if emit_text else {},
        kernels={d: cpu_kernels[d] | (gpu_kernels if d == "webgpu" else {}) for d in devices},
    )


def _kernels_of(module: Module, device: Device, watch: Watcher) -> Module:
    """The stages that know the device: convolutions in the form that suits it, nodes fused, and a
    loop function for each kernel that has a schedule there.
    """
    limits = FUSION_LIMITS[device]
    if device == "wasm":
        module = _seen(watch, "wasm: use winograd", use_winograd(module))
        module = _seen(watch, "wasm: use attention", use_attention(module))
        module = _seen(watch, "wasm: use byte products", use_byte_products(module))
        module = _seen(watch, "wasm: use strassen", use_strassen(module))
    module = _seen(watch, f"{device}: split operands", split_operands(module, limits))
    module = _seen(watch, f"{device}: fuse", fuse(module, limits))
    if device == "wasm":
        module = _seen(watch, "wasm: concat in place", concat_in_place(module))
    else:
        parts = split_large_constants(module, limits)
        module = _seen(watch, "webgpu: split large constants", parts)
    module = _seen(watch, f"{device}: lower", lower_module(module, device))
    if device == "webgpu":
        factored = factor_reductions(module, WEBGPU)
        module = _seen(watch, "webgpu: factor reductions", factored)
        module = _seen(watch, "webgpu: split kernels", split_kernels(module, WEBGPU, fits_dispatch))
    cut = split_kernels(module, RELAXED, fits_scratch)
    return _seen(watch, f"{device}: split for scratch", cut)


def _wasm_modules(
    lowered: Mapping[Device, Module],
    programs: Mapping[Device, ProgramParts],
    described: Signature,
    watch: Watcher,
) -> tuple[dict[str, WasmModule], dict[Device, dict[str, Kernel]]]:
    """The feature variants of the one module that holds every CPU kernel of every program (`dot`
    only where a kernel has dot products of bytes, which are all that sets it apart); and the
    relaxed one's kernels by program.
    """
    made: dict[Device, dict[str, Kernel]] = {device: {} for device in programs}
    calls = module_calls(programs, described)
    steps = [Step(c.kernel, c.slots, c.displacements, c.control) for c in calls]
    kernels = {
        call.kernel: lowered[call.program].kernels[call.source]
        for call in calls
        if call.control is None
    }
    if not steps:
        return {}, made
    modules: dict[str, WasmModule] = {}
    dots = {name: kernel for name, kernel in kernels.items() if multiplies_bytes(kernel)}
    rest = {name: kernel for name, kernel in kernels.items() if name not in dots}
    for variant, machine in WASM_MACHINES.items():
        if variant == "dot" and not dots:
            continue
        others = _compile_kernels(rest, RELAXED if variant == "dot" else machine, variant, watch)
        ready = others | _compile_kernels(dots, machine, variant, watch)
        modules[variant] = emit_module(ready, steps, variant)
        watch(Stage(f"{variant}: wat", partial(str, modules[variant].text)))
        if machine is RELAXED:
            for call in calls:
                if call.control is None:
                    kernel = Kernel(kernels[call.kernel], ready[call.kernel])
                    made[call.program][call.source] = kernel
    return modules, made


def _shaders(lowered: Mapping[Device, Module], watch: Watcher) -> tuple[Shaders, dict[str, Kernel]]:
    """Every shader of the webgpu program, in one text; and the kernels by their entry points."""
    kernels: dict[str, LoopFunction] = {}
    constants: dict[str, frozenset[str]] = {}
    functions = lowered["webgpu"].functions.values() if "webgpu" in lowered else ()
    for node in (node for function in functions for node in function.nodes):
        if node.op == "call_kernel" and node.attributes["device"] == "webgpu":
            name = node.attributes["kernel"]
            kernels[name] = lowered["webgpu"].kernels[name]
            constants[name] = frozenset(node.attributes["constants"])
    ready = _compile_kernels(kernels, WEBGPU, "webgpu", watch)
    shaders = emit_shaders(ready, constants)
    watch(Stage("webgpu: wgsl", partial(str, shaders.text)))
    made = {shaders.entries[n].name: Kernel(kernels[n], ready[n]) for n in kernels}
    return shaders, made


def _compile_kernels(
    kernels: Mapping[str, LoopFunction], machine: Machine, title: str, watch: Watcher
) -> dict[str, LoopFunction]:
    """Schedule and lower every kernel for a machine."""
    ready = {}
    for name, kernel in kernels.items():
        named = name_dimensions(kernel)
        watch(Stage(f"{title}: loops", partial(loop_text.print_function, named.function), name))
        if verify_level():
            verify(named.function)
        schedule = schedule_kernel(named.function, machine)
        watch(
            Stage(f"{title}: schedule", partial(loop_text.print_function, schedule.function), name)
        )
        lowered = bind_dimensions(lower(schedule.function, machine), named.values)
        ready[name] = replace(lowered, origin=kernel.origin)
        watch(Stage(f"{title}: lowered", partial(loop_text.print_function, ready[name]), name))
    return ready


def _seen(watch: Watcher, title: str, module: Module) -> Module:
    """Show a graph stage and hand the module on."""
    watch(Stage(title, partial(_text, module)))
    return module


def _text(module: Module) -> str:
    return "\n".join(map(print_function, module.functions.values()))
