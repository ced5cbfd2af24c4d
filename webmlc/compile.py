"""Compile a model. This module is the table of contents: the whole pipeline, one line per step.

In: a model. Out: a package on disk (`build`), or its parts in memory (`compile_model`). A watcher
(`on_stage`) receives the result of every step: `webmlc inspect` prints these results, and
`WEBMLC_DUMP` writes them.

    >>> build("model.onnx", "build/model", target="both")  # doctest: +SKIP
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from functools import partial, update_wrapper
from pathlib import Path
from typing import Any, Concatenate, ParamSpec

from webmlc.build_options import DEFAULTS, BuildOptions
from webmlc.cached_build import CachedBuild, usable_cache
from webmlc.core.dependencies import note_file
from webmlc.core.disk_cache import DiskCache, use_cache
from webmlc.core.errors import UserError
from webmlc.core.flags import dump_folder, verify_level
from webmlc.core.garbage import collect_rarely
from webmlc.core.machine import PLAIN_ADAPTERS, SOFTWARE_ADAPTERS, Device
from webmlc.core.stage_progress import StageProgress
from webmlc.core.stages import Stage, Watcher, ignore, watcher
from webmlc.frontend.doors.export_source import export_source
from webmlc.frontend.read_model import Source, read_model
from webmlc.graph.checks.batch_sizes import warn_of_refused_sizes
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
from webmlc.graph.quantise.quantise_weights import QUANTISATIONS
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
from webmlc.package.compile_kernels import KernelCompiler
from webmlc.package.emit_code import called_kernels, emit_modules, emit_shaders
from webmlc.package.half_buffers import HalfBuffers, half_buffers, stores_halves
from webmlc.package.join_constants import join_constants
from webmlc.package.manifest import Manifest
from webmlc.package.manifest_from_json import from_json
from webmlc.package.program import program_parts, signature
from webmlc.package.write import Parts, ShaderVariant, write_package
from webmlc.schedule.rules import default_schedule
from webmlc.target.target import AnyTarget, Variant
from webmlc.target.targets import TARGETS, target_of
from webmlc.target.wasm.assemble import assemble
from webmlc.target.wasm.emit_module import Module as WasmModule
from webmlc.target.webgpu.target import WEBGPU
from webmlc.version import VERSION

P = ParamSpec("P")
Build = Callable[[Source, str | Path, BuildOptions], Manifest]
Keywords = Callable[Concatenate[Source, str | Path, P], Manifest]
"""A build whose options are keywords."""


def build_package(
    model: Source,
    out: str | Path,
    options: BuildOptions,
    cached_build: CachedBuild | None = None,
) -> Manifest:
    """Compile `model`, write the package into folder `out`, and return its manifest (see `build`).

    `cached_build` is the build of this model with these options whose package the caller did not
    find in the cache.
    """
    disk = usable_cache() if options.cache and options.choose is None else None
    if cached_build is None and options.keeps_package and isinstance(model, str | Path):
        cached_build = CachedBuild.of(Path(model), options)
        restored = None if cached_build is None else cached_build.restore(Path(out), options.force)
        if restored is not None:
            return from_json(restored.manifest)
    with nullcontext() if cached_build is None else cached_build.recorded():
        source = export_source(
            model, options.example_inputs, options.dynamic_shapes, options.output_names
        )
        parts = compile_model(source, options, disk)
    keep = None if cached_build is None else cached_build.keep
    return write_package(Path(out), parts, force=options.force, on_written=keep)


def _with_keywords(options: Callable[P, BuildOptions]) -> Callable[[Build], Keywords[P]]:
    """A decorator of a build that takes the fields of its options as arguments instead."""

    def decorate(build_with: Build) -> Keywords[P]:
        def build(
            model: Source, out: str | Path, *arguments: P.args, **keywords: P.kwargs
        ) -> Manifest:
            return build_with(model, out, options(*arguments, **keywords))

        of_model = list(inspect.signature(build_with).parameters.values())[:2]
        of_options = inspect.signature(options).parameters.values()
        update_wrapper(build, build_with)
        build.__signature__ = inspect.Signature([*of_model, *of_options])  # type: ignore[attr-defined]
        return build  # type: ignore[return-value]  # callers may name `model` and `out`, too

    return decorate


@_with_keywords(BuildOptions)
def build(model: Source, out: str | Path, options: BuildOptions) -> Manifest:
    """Compile `model`, write the package into folder `out`, and return its manifest.

    `model` is the path of a model, or a model in memory: of ONNX, or of one of the frameworks in
    `frontend.doors`. The options are keywords, the fields of `BuildOptions`; the third argument may
    be the target. The same model and options give the same bytes.

    Raises:
    - `ModelError` if the model cannot be read;
    - `UnsupportedError`, which lists every unsupported node;
    - `InputError` if a constant names no input, or does not fit its input, or if one of `dims`
      names no dimension;
    - `PackageError` if a file in `out` that no build wrote would be replaced, unless `force`;
    - `UserError` for any other mistake of the caller.
    """
    name = Path(model).name if isinstance(model, str | Path) else type(model).__name__
    also = options.on_stage or ignore
    with StageProgress(f"Building {name}", quiet=not options.progress, also=also) as watch:
        return build_package(model, out, replace(options, on_stage=watch))


@collect_rarely()
def compile_model(
    model: Source,
    options: BuildOptions = DEFAULTS,
    cache: DiskCache | None = None,
    report_sizes: Mapping[str, int] | None = None,
) -> Parts:
    """Run the whole pipeline in memory (see `build`).

    With `report_sizes` of symbolic dimensions, the parts explain the kernels for a report.

    With a `cache` of kernels or several `jobs` (`package.compile_kernels`), the stages of each
    kernel are one stage, its code. The environment variables that show or check all stages turn
    both off.
    """
    watch = watcher(options.on_stage)
    devices, variants = _devices(options.target), device_variants(options.adapter)
    module = shared_graph(model, options, watch)
    if options.tokenizer is not None:
        module = with_tokenizer(module, Path(options.tokenizer))
    jobs, choose = options.jobs, options.choose or default_schedule
    if dump_folder() or verify_level() > 1:
        jobs, cache = 1, None
    with use_cache(cache), KernelCompiler(choose, watch, cache, jobs, report_sizes) as compiler:
        lowered_modules: dict[Device, Module] = {}
        for device in devices:
            algorithms = (options.algorithms or {}).get(device, {})
            chosen = replace(module, algorithms=algorithms)
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
        texts=_texts(modules, shaders) if options.emit_text else {},
        assets=module.assets,
        typed=module.typed,
        tuned=compiler.tuned,
        machines=compiler.machines,
        kernels={d: cpu_kernels[d] | (gpu_kernels if d == WEBGPU.device else {}) for d in devices},
        explanations=compiler.explanations,
    )


def _devices(target: str) -> tuple[Device, ...]:
    """The devices of a target. Raises `UserError` for an unknown target."""
    if target not in ("wasm", "webgpu", "both"):
        raise UserError(f"unknown target {target!r}: choose wasm, webgpu or both")
    return tuple(device for device in TARGETS if target in (device, "both"))


def device_variants(adapter: str) -> dict[Device, Mapping[str, Variant[Any]]]:
    """The variants that kernels are compiled for, by the device that runs them. Raises `UserError`
    for an unknown kind of adapter.
    """
    shaders = WEBGPU.variants
    if adapter not in (*PLAIN_ADAPTERS, "all"):
        raise UserError(f"unknown adapter {adapter!r}: choose {', '.join(PLAIN_ADAPTERS)} or all")
    names = {"all": tuple(shaders), "software": SOFTWARE_ADAPTERS}.get(adapter, (adapter,))
    chosen = {name: shaders[name] for name in names}
    return {**{d: target.variants for d, target in TARGETS.items()}, WEBGPU.device: chosen}


def _target(device: Device, variants: Mapping[Device, Mapping[str, Variant[Any]]]) -> AnyTarget:
    """The target of a device. All variants of its kernels have the same steps and buffers, so only
    variants of one target have algorithms of their own.
    """
    targets = [target_of(variant.machine) for variant in variants[device].values()]
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
    model: Source, options: BuildOptions = DEFAULTS, watch: Watcher = ignore
) -> Module:
    """Read and optimise a model: the graph that all targets share. Raises `UserError` for an
    unknown mode of states or of quantisation.
    """
    if options.state not in ("auto", "off"):
        raise UserError(f"unknown state {options.state!r}: choose auto or off")
    inputs, outputs, quantise = options.inputs, options.outputs, options.quantise
    if quantise is not None and quantise not in QUANTISATIONS:
        raise UserError(f"unknown quantisation {quantise!r}: choose {' or '.join(QUANTISATIONS)}")
    module = _show(
        watch, "frontend", read_model(model, options.constants, options.context, options.dims)
    )
    module = _show(watch, "normalise", normalise(module))
    if inputs or outputs:
        module = _show(watch, "connect values", connect_values(module, inputs, outputs))
    if options.exact:
        module = _show(watch, "compute exactly", compute_exactly(module))
    else:
        module = _show(watch, "round caches", round_caches(module))
    warn_of_training(module)
    module = _show(watch, "infer shapes", check_labels(infer_shapes(module)))
    warn_of_refused_sizes(module)
    module = _show(watch, "fold constants", fold_constants(module, keep=QUANTISED_CONSTANTS))
    module = _show(watch, "simplify", simplify_graph(module))
    if quantise is not None:
        module = widen_constants(module, QUANTISED_CONSTANTS)
    block_products = use_block_products(module, quantise, options.exact)
    module = _show(watch, "use block products", block_products)
    if options.state == "auto":
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
    note_file(path)
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


def kernel_module(module: Module, target: AnyTarget, watch: Watcher) -> Module:
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
