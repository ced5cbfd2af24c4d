"""Compile a model. This module is the table of contents: the whole pipeline, one line per step.

In: a model. Out: a package on disk (`build`), or its parts in memory (`compile_model`). A watcher
(`on_stage`) receives the result of every step: `webmlc inspect` prints these results, and
`WEBMLC_DUMP` writes them.

    >>> build("model.onnx", "build/model", target="both")  # doctest: +SKIP
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from webmlc.cached_build import CachedBuild, usable_cache
from webmlc.core.disk_cache import DiskCache, use_cache
from webmlc.core.errors import UserError
from webmlc.core.flags import dump_folder, verify_level
from webmlc.core.garbage import collect_rarely
from webmlc.core.machine import PLAIN_ADAPTERS, SOFTWARE_ADAPTERS, Device, Machine
from webmlc.core.stages import Stage, Watcher, watcher
from webmlc.frontend.bind_constants import Constants
from webmlc.frontend.doors.export_source import export_source
from webmlc.frontend.read_model import Source, read_model
from webmlc.graph.checks.check_bodies import check_bodies
from webmlc.graph.checks.check_indices import check_indices
from webmlc.graph.checks.warn_of_training import warn_of_training
from webmlc.graph.infer.infer_shapes import infer_shapes
from webmlc.graph.infer.normalise import normalise
from webmlc.graph.ir import Module, print_function
from webmlc.graph.layout.choose_layouts import choose_layouts
from webmlc.graph.layout.widen_halves import widen_halves
from webmlc.graph.quantise.compute_exactly import compute_exactly
from webmlc.graph.quantise.compute_in_integers import QUANTISED_CONSTANTS, compute_in_integers
from webmlc.graph.quantise.duplicate_dequantisation import duplicate_dequantisation
from webmlc.graph.quantise.join_products import join_products
from webmlc.graph.quantise.quantise_weights import QUANTISATIONS, Quantisation
from webmlc.graph.quantise.round_caches import round_caches
from webmlc.graph.quantise.use_block_products import use_block_products
from webmlc.graph.simplify.flush_subnormals import flush_subnormals
from webmlc.graph.simplify.fold_constants import fold_constants
from webmlc.graph.simplify.hand_down_constants import hand_down_constants
from webmlc.graph.simplify.simplify_graph import simplify_graph
from webmlc.graph.simplify.use_buffer_states import use_buffer_states
from webmlc.graph.simplify.use_recurrent_states import use_recurrent_states
from webmlc.graph.simplify.use_states import use_states
from webmlc.graph.simplify.widen_constants import widen_constants
from webmlc.graph.typed.connect_values import check_labels, connect_values
from webmlc.graph.typed.options import ValueOptions
from webmlc.package.compile_kernels import KernelCompiler
from webmlc.package.emit_code import called_kernels, emit_modules, emit_shaders
from webmlc.package.half_buffers import HalfBuffers, half_buffers, stores_halves
from webmlc.package.join_constants import join_constants
from webmlc.package.manifest import Manifest
from webmlc.package.program import program_parts, signature
from webmlc.package.read_manifest import read_manifest
from webmlc.package.write import Parts, ShaderVariant, write_package
from webmlc.schedule.rules import Chooser, default_schedule
from webmlc.target.target import Target
from webmlc.target.targets import TARGETS, target_of
from webmlc.target.wasm.assemble import assemble
from webmlc.target.wasm.emit_module import Module as WasmModule
from webmlc.target.webgpu.target import WEBGPU
from webmlc.version import VERSION

TargetName = Literal["wasm", "webgpu", "both"]
StateMode = Literal["auto", "off"]
AdapterName = Literal["gpu", "software", "all"]


def build(
    model: Source,
    out: str | Path,
    target: TargetName = "both",
    *,
    constants: Constants | None = None,
    inputs: ValueOptions | None = None,
    outputs: ValueOptions | None = None,
    tokenizer: str | Path | None = None,
    emit_text: bool = False,
    force: bool = False,
    exact: bool = False,
    state: StateMode = "auto",
    quantise: Quantisation | None = None,
    context: int | None = None,
    adapter: AdapterName = "gpu",
    choose: Chooser = default_schedule,
    algorithms: Mapping[Device, Mapping[str, str]] | None = None,
    example_inputs: Any = None,
    dynamic_shapes: Any = None,
    on_stage: Watcher | None = None,
    jobs: int = 1,
    cache: bool | CachedBuild = True,
) -> Manifest:
    """Compile `model`, write the package into folder `out`, and return its manifest.

    `model` is the path of a model, or a model in memory: of ONNX, or of one of the frameworks in
    `frontend.doors`. Some of these do not say their inputs. Then `example_inputs` does: tensors for
    a module of PyTorch, arrays or shapes for a function of JAX. `dynamic_shapes` names symbolic
    dimensions, as in `{"image": {0: "batch"}}`.

    `constants` are inputs that become constants, and that leave the signature. Integers and
    booleans must fit the input's type exactly; floats are rounded to it. `inputs` and `outputs`
    compile into the package what is before and behind the model, such as resizing an image and
    ranking classes (`graph.typed.options`). `tokenizer` is the `tokenizer.json` of a model of
    texts. `emit_text` also writes the code as text. `context` limits the tokens of a language model
    in a GGUF file. `adapter` says what the shaders are made fast for: a "gpu", or an adapter of
    "software". They run on both. With "all", the package has both variants, and those for GPUs with
    more features (`core.machine.ADAPTERS`); `load` chooses.
    `choose` chooses the schedule of each kernel, and `algorithms` what a device does for some
    layers (`Target.alternatives`). With `state="auto"`, pairs of a past and a present become states
    of sessions, which grow in place or are replaced; with "off" they stay inputs and outputs.
    `quantise` quantises float weights in blocks, to "int8" or "int4"; `host.quantisation_loss`
    measures what that changes. With `exact`, products of block-quantised weights compute with
    float32 activations, not with int8 ones, and the keys and values that a session keeps are
    float32, not bfloat16. The same model and arguments give the same bytes.

    At most `jobs` processes compile kernels. Where a process does not start as a fork of this one,
    it imports the script of this process first, which therefore must guard its own work with
    `if __name__ == "__main__"`.

    With `cache`, the package of an unchanged model in a file is the one that an earlier build wrote
    (`cached_build`); a watcher then receives no stages. Of any other model, the kernels that an
    earlier build compiled are not compiled again, and a watcher receives their code only. It may be
    the `CachedBuild` of this model and these arguments, whose package the caller did not find.

    Raises:
    - `ModelError` if the model cannot be read;
    - `UnsupportedError`, which lists every unsupported node;
    - `InputError` if a constant names no input, or does not fit its input;
    - `PackageError` if a file in `out` that no build wrote would be replaced, unless `force`;
    - `UserError` for any other mistake of the caller.
    """
    options = {
        "target": target,
        "constants": constants or {},
        "tokenizer": None if tokenizer is None else Path(tokenizer),
        "emit_text": emit_text,
        "exact": exact,
        "state": state,
        "quantise": quantise,
        "context": context,
        "adapter": adapter,
        "algorithms": {device: dict(named) for device, named in (algorithms or {}).items()},
    }
    source = export_source(model, example_inputs, dynamic_shapes)
    disk = usable_cache() if cache and choose is default_schedule else None
    compile_source = partial(
        compile_model,
        source,
        target,
        constants=constants,
        inputs=inputs,
        outputs=outputs,
        tokenizer=tokenizer,
        emit_text=emit_text,
        exact=exact,
        state=state,
        quantise=quantise,
        context=context,
        adapter=adapter,
        choose=choose,
        algorithms=algorithms,
        on_stage=on_stage,
        jobs=jobs,
        cache=disk,
    )
    cached_build = cache if isinstance(cache, CachedBuild) else None
    if cached_build is None and disk is not None and not inputs and not outputs:
        if isinstance(source, str | Path):
            cached_build = CachedBuild.of(Path(source), options)
        if cached_build is not None and cached_build.restore(Path(out), force) is not None:
            return read_manifest(Path(out))
    if cached_build is None:
        return write_package(Path(out), compile_source(), force=force)
    with cached_build.warnings_noted():
        manifest = write_package(Path(out), compile_source(), force=force)
    cached_build.keep(Path(out), manifest)
    return manifest


@collect_rarely()
def compile_model(
    model: Source,
    target: TargetName = "both",
    *,
    constants: Constants | None = None,
    inputs: ValueOptions | None = None,
    outputs: ValueOptions | None = None,
    tokenizer: str | Path | None = None,
    emit_text: bool = False,
    exact: bool = False,
    state: StateMode = "auto",
    quantise: Quantisation | None = None,
    context: int | None = None,
    adapter: AdapterName = "gpu",
    choose: Chooser = default_schedule,
    algorithms: Mapping[Device, Mapping[str, str]] | None = None,
    on_stage: Watcher | None = None,
    jobs: int = 1,
    cache: DiskCache | None = None,
    report_sizes: Mapping[str, int] | None = None,
) -> Parts:
    """Run the whole pipeline in memory (see `build`).

    With `report_sizes` of symbolic dimensions, the parts explain the kernels for a report.

    With a `cache` of kernels or several `jobs` (`package.compile_kernels`), the stages of each
    kernel are one stage, its code. The environment variables that show or check all stages turn
    both off.
    """
    if target not in ("wasm", "webgpu", "both"):
        raise UserError(f"unknown target {target!r}: choose wasm, webgpu or both")
    watch = watcher(on_stage)
    devices = tuple(TARGETS) if target == "both" else (target,)
    if state not in ("auto", "off"):
        raise UserError(f"unknown state {state!r}: choose auto or off")
    variants = device_variants(adapter)
    if quantise is not None and quantise not in QUANTISATIONS:
        raise UserError(f"unknown quantisation {quantise!r}: choose {' or '.join(QUANTISATIONS)}")
    module = shared_graph(model, constants, watch, state, exact, quantise, context, inputs, outputs)
    if tokenizer is not None:
        module = with_tokenizer(module, Path(tokenizer))
    if dump_folder() or verify_level() > 1:
        jobs, cache = 1, None
    with use_cache(cache), KernelCompiler(choose, watch, cache, jobs, report_sizes) as compiler:
        lowered_modules: dict[Device, Module] = {}
        for device in devices:
            chosen = replace(module, algorithms=(algorithms or {}).get(device, {}))
            lowered_modules[device] = kernel_module(chosen, _target(device, variants), watch)
            for runner in TARGETS:
                kernels, read_only = called_kernels(lowered_modules[device], runner)
                compiler.start(kernels, variants[runner], read_only)
        model_signature = signature(module)
        programs = {d: program_parts(m) for d, m in lowered_modules.items()}
        modules, cpu_kernels = emit_modules(lowered_modules, programs, model_signature, compiler)
        shader_variants = variants[WEBGPU.device]
        halves = HalfBuffers()
        if WEBGPU.device in programs and stores_halves(shader_variants):
            gpu = lowered_modules[WEBGPU.device]
            halves = half_buffers(programs[WEBGPU.device], gpu, model_signature)
            programs[WEBGPU.device] = replace(programs[WEBGPU.device], halves=halves.buffers)
        shaders, gpu_kernels = emit_shaders(
            lowered_modules, compiler, shader_variants, halves.parameters
        )
    return Parts(
        name=module.name,
        compiler=f"webmlc {VERSION}",
        symbols=model_signature.symbols,
        inputs=model_signature.inputs,
        outputs=model_signature.outputs,
        sequences=model_signature.sequences,
        state_ports=model_signature.state_ports,
        requirements=module.main.requirements,
        checks=module.checks,
        programs={d: p.with_code(modules.values(), shaders) for d, p in programs.items()},
        constants=join_constants(lowered_modules.values()),
        modules={variant: assemble(m.text) for variant, m in modules.items()},
        shaders={v: s.shaders.text for v, s in shaders.items() if s.shaders.entries},
        shader_features={v: s.shaders.features for v, s in shaders.items() if s.shaders.features},
        texts=_texts(modules, shaders) if emit_text else {},
        assets=module.assets,
        typed=module.typed,
        tuned=compiler.tuned,
        machines=compiler.machines,
        kernels={d: cpu_kernels[d] | (gpu_kernels if d == WEBGPU.device else {}) for d in devices},
        explanations=compiler.explanations,
    )


def device_variants(adapter: str) -> dict[Device, Mapping[str, Machine]]:
    """The variants that kernels are compiled for, by the device that runs them. Raises `UserError`
    for an unknown kind of adapter.
    """
    shaders = WEBGPU.variants
    if adapter not in (*PLAIN_ADAPTERS, "all"):
        raise UserError(f"unknown adapter {adapter!r}: choose {', '.join(PLAIN_ADAPTERS)} or all")
    names = {"all": tuple(shaders), "software": SOFTWARE_ADAPTERS}.get(adapter, (adapter,))
    chosen = {name: shaders[name] for name in names}
    return {**{d: target.variants for d, target in TARGETS.items()}, WEBGPU.device: chosen}


def _target(device: Device, variants: Mapping[Device, Mapping[str, Machine]]) -> Target:
    """The target of a device. All variants of its kernels have the same steps and buffers, so only
    variants of one target have algorithms of their own.
    """
    targets = [target_of(machine) for machine in variants[device].values()]
    return targets[0] if all(t is targets[0] for t in targets) else TARGETS[device]


def _texts(
    modules: Mapping[str, WasmModule], shaders: Mapping[str, ShaderVariant]
) -> dict[str, str]:
    """The code as text, for people."""
    texts = {f"model.{variant}.wat": module.text for variant, module in modules.items()}
    return texts | {
        f"kernels.{name}.wgsl": variant.shaders.text
        for name, variant in shaders.items()
        if variant.shaders.entries
    }


def shared_graph(
    model: Source,
    constants: Constants | None,
    watch: Watcher,
    state: StateMode = "auto",
    exact: bool = False,
    quantise: Quantisation | None = None,
    context: int | None = None,
    inputs: ValueOptions | None = None,
    outputs: ValueOptions | None = None,
) -> Module:
    """Read and optimise a model: the graph that all targets share."""
    module = _show(watch, "frontend", read_model(model, constants, context))
    module = _show(watch, "normalise", normalise(module))
    if inputs or outputs:
        module = _show(watch, "connect values", connect_values(module, inputs, outputs))
    if exact:
        module = _show(watch, "compute exactly", compute_exactly(module))
    else:
        module = _show(watch, "round caches", round_caches(module))
    warn_of_training(module)
    module = _show(watch, "infer shapes", check_labels(infer_shapes(module)))
    module = _show(watch, "fold constants", fold_constants(module, keep=QUANTISED_CONSTANTS))
    module = _show(watch, "simplify", simplify_graph(module))
    if quantise is not None:
        module = widen_constants(module, QUANTISED_CONSTANTS)
    block_products = use_block_products(module, quantise, exact)
    module = _show(watch, "use block products", block_products)
    if state == "auto":
        module = _show(watch, "use states", with_states(module))
    module = _show(watch, "join products", join_products(module))
    module = _show(watch, "check indices", check_indices(module))
    module = _show(watch, "check bodies", check_bodies(module))
    module = _show(watch, "compute in integers", compute_in_integers(module))
    module = _show(watch, "choose layouts", choose_layouts(module))
    module = _show(watch, "widen halves", widen_halves(module))
    module = _show(watch, "simplify layouts", simplify_graph(module))
    module = _show(watch, "hand down constants", hand_down_constants(module))
    module = _show(watch, "flush subnormals", flush_subnormals(module))
    return _show(watch, "duplicate dequantisation", duplicate_dequantisation(module))


def with_tokenizer(module: Module, path: Path) -> Module:
    """Put the tokeniser of a model of texts into its package. Raises `UserError`."""
    try:
        text = path.read_bytes()
        is_tokenizer = "model" in json.loads(text)
    except (OSError, ValueError, TypeError) as error:
        raise UserError(f"{path} is no tokenizer.json: {error}") from None
    if not is_tokenizer:
        raise UserError(f"{path} is no tokenizer.json: it has no key 'model'")
    return replace(module, assets={**module.assets, "tokenizer.json": text})


def with_states(module: Module) -> Module:
    """Keep pasts and recurrent states in sessions."""
    return use_recurrent_states(use_buffer_states(use_states(module)))


def kernel_module(module: Module, target: Target, watch: Watcher) -> Module:
    """Run the passes of a target: from the graph that all targets share to loop functions."""
    for title, transform in target.passes:
        module = _show(watch, f"{target.device}: {title}", transform(module))
    return module


def _show(watch: Watcher, title: str, module: Module) -> Module:
    """Show a graph stage to the watcher, and return the module."""
    watch(Stage(title, partial(_text, module), result=module))
    return module


def _text(module: Module) -> str:
    return "\n".join(map(print_function, module.functions.values()))
