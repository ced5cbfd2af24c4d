"""Compile a model. This module is the table of contents: the whole pipeline, one line per step.

In: a model. Out: a package on disk (`build`), or its parts in memory (`compile_model`). A watcher
(`on_stage`) receives the result of every step: `webmlc inspect` prints these results, and
`WEBMLC_DUMP` writes them.

    >>> build("model.onnx", "build/model", target="both")  # doctest: +SKIP
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path

from webmlc.build_options import DEFAULTS, BuildOptions, with_keywords
from webmlc.cached_build import CachedBuild, usable_cache
from webmlc.core.disk_cache import DiskCache, use_cache
from webmlc.core.errors import UserError
from webmlc.core.flags import dump_folder, verify_level
from webmlc.core.garbage import collect_rarely
from webmlc.core.machine import Device
from webmlc.core.stage_progress import StageProgress
from webmlc.core.stages import Stage, Watcher, ignore, watcher
from webmlc.frontend.doors.export_source import export_source
from webmlc.frontend.read_model import Source, add_tokenizer, read_model
from webmlc.graph.checks.check_bodies import check_bodies
from webmlc.graph.checks.check_indices import check_indices
from webmlc.graph.checks.example_sizes import warn_of_refused_sizes
from webmlc.graph.checks.warn_of_training import warn_of_training
from webmlc.graph.infer.infer_shapes import infer_shapes
from webmlc.graph.infer.normalise import normalise
from webmlc.graph.ir import Module, print_function
from webmlc.graph.layout.choose_layouts import choose_layouts
from webmlc.graph.layout.widen_halves import widen_halves
from webmlc.graph.quantise.compute_in_integers import QUANTISED_CONSTANTS, compute_in_integers
from webmlc.graph.quantise.duplicate_dequantisation import duplicate_dequantisation
from webmlc.graph.quantise.exactness import compute_exactly, round_caches
from webmlc.graph.quantise.join_products import join_products
from webmlc.graph.quantise.quantise_weights import QUANTISATIONS
from webmlc.graph.quantise.use_block_products import use_block_products
from webmlc.graph.simplify.carry_states import carry_states
from webmlc.graph.simplify.constants import (
    flush_subnormals,
    fold_constants,
    hand_down_constants,
    widen_constants,
)
from webmlc.graph.simplify.simplify_graph import simplify_graph
from webmlc.graph.simplify.use_recurrent_states import use_recurrent_states
from webmlc.graph.simplify.use_states import use_buffer_states, use_states
from webmlc.graph.table import with_rows
from webmlc.graph.texts.cut_texts import cut_texts
from webmlc.graph.typed.connect_values import check_labels, connect_values
from webmlc.package.compile_kernels import KernelCompiler
from webmlc.package.emit_code import (
    LoweredProgram,
    called_kernels,
    calls_of,
    emit,
    lowered_program,
    package_parts,
)
from webmlc.package.manifest import Manifest
from webmlc.package.manifest_json import from_json
from webmlc.package.program import signature
from webmlc.package.write import Parts, write_package
from webmlc.schedule.rules import default_schedule
from webmlc.target.target import AnyTarget, ModulePass
from webmlc.target.targets import targets_of


@collect_rarely()
def build_package(
    model: Source,
    out: str | Path,
    options: BuildOptions,
    cached_build: CachedBuild | None = None,
) -> Manifest:
    """Compile `model`, write the package into folder `out`, and return its manifest (see `build`).

    `cached_build` is the build of this model with these options, if the caller has already looked
    for its package in the cache and found none.
    """
    disk = usable_cache() if options.cache and options.choose is None else None
    if cached_build is None and options.keeps_package and isinstance(model, str | Path):
        cached_build = CachedBuild.of(Path(model), options)
        restored = None if cached_build is None else cached_build.restore(Path(out), options.force)
        if restored is not None:
            return from_json(restored.manifest)
    with nullcontext() if cached_build is None else cached_build.recorded():
        source = export_source(
            model,
            options.example_inputs,
            options.dynamic_shapes,
            options.output_names,
            options.signature,
        )
        parts = compile_model(source, options, disk)
    keep = None if cached_build is None else cached_build.keep
    return write_package(Path(out), parts, force=options.force, on_written=keep)


@with_keywords(BuildOptions)
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
    watch, targets = watcher(options.on_stage), targets_of(options.adapter)
    devices = [d for d in targets if options.target in (d, "both")]
    if not devices:
        raise UserError(f"unknown target {options.target!r}: choose {', '.join(targets)} or both")
    jobs = options.jobs
    if dump_folder() or verify_level() > 1:
        jobs, cache = 1, None
    choose = options.choose or default_schedule
    algorithms = options.algorithms or {}
    with with_rows(operator.row for operator in options.operators):
        graph = shared_graph(model, options, watch)
        graphs = {d: replace(graph, algorithms=algorithms.get(d, {})) for d in devices}
        modules = ((d, kernel_module(g, targets[d], watch)) for d, g in graphs.items())
        with use_cache(cache), KernelCompiler(choose, watch, cache, jobs, report_sizes) as compiler:
            return package_of(graph, modules, targets, compiler, options)


def package_of(
    graph: Module,
    modules: Iterable[tuple[Device, Module]],
    targets: Mapping[Device, AnyTarget],
    compiler: KernelCompiler,
    options: BuildOptions,
) -> Parts:
    """Compile the kernels of the programs `modules`, which compute `graph` on their devices."""
    interface = signature(graph)
    programs: dict[Device, LoweredProgram] = {}
    for device, module in modules:
        programs[device] = lowered_program(targets[device], module, interface)
        for target in targets.values():
            kernels, constants = called_kernels(module, target)
            compiler.start(kernels, target.variants.values(), constants)
    code = [emit(t, calls_of(t, programs, interface), compiler) for t in targets.values()]
    return package_parts(graph, interface, programs, code, compiler, options)


def shared_graph(
    model: Source, options: BuildOptions = DEFAULTS, watch: Watcher = ignore
) -> Module:
    """Read and optimise a model: the graph that all targets share. Raises `UserError` for an
    unknown mode of states or of quantisation.
    """
    if options.state not in ("auto", "off"):
        raise UserError(f"unknown state {options.state!r}: choose auto or off")
    if options.quantise is not None and options.quantise not in QUANTISATIONS:
        names = " or ".join(QUANTISATIONS)
        raise UserError(f"unknown quantisation {options.quantise!r}: choose {names}")
    module = read_model(model, options.constants, options.context, options.dims)
    return run((("frontend", lambda module: module), *graph_passes(options)), module, watch)


def graph_passes(options: BuildOptions) -> tuple[ModulePass, ...]:
    """The passes from the graph of the frontend to the graph that all targets share."""
    connect = partial(connect_values, inputs=options.inputs, outputs=options.outputs)
    blocks = partial(use_blocks, options=options)
    tokenizer = options.tokenizer
    return (
        ("normalise", normalise),
        *((("connect values", connect),) if options.inputs or options.outputs else ()),
        ("compute exactly", compute_exactly) if options.exact else ("round caches", round_caches),
        ("infer shapes", infer_and_warn),
        ("cut texts", cut_texts),
        ("fold constants", partial(fold_constants, keep=QUANTISED_CONSTANTS)),
        ("simplify", simplify_graph),
        ("use block products", blocks),
        *((("use states", with_states),) if options.state == "auto" else ()),
        ("join products", join_products),
        ("check indices", check_indices),
        ("check bodies", check_bodies),
        ("compute in integers", compute_in_integers),
        ("choose layouts", choose_layouts),
        ("widen halves", widen_halves),
        ("simplify layouts", simplify_graph),
        ("hand down constants", hand_down_constants),
        ("flush subnormals", flush_subnormals),
        ("duplicate dequantisation", duplicate_dequantisation),
        *((("add tokenizer", partial(add_tokenizer, path=Path(tokenizer))),) if tokenizer else ()),
    )


def infer_and_warn(module: Module) -> Module:
    """Infer all shapes, check the labels, and warn of training mode and of refused sizes."""
    warn_of_training(module)
    module = check_labels(infer_shapes(module))
    warn_of_refused_sizes(module)
    return module


def use_blocks(module: Module, options: BuildOptions) -> Module:
    """Use block-quantised products, and quantise float weights first if the options ask for it."""
    if options.quantise is not None:
        module = widen_constants(module, QUANTISED_CONSTANTS)
    return use_block_products(module, options.quantise, options.exact)


def with_states(module: Module) -> Module:
    """Keep pasts and recurrent states in sessions, unless hosts compute texts for each run."""
    if module.texts is not None:
        return module
    return carry_states(use_recurrent_states(use_buffer_states(use_states(module))))


def kernel_module(module: Module, target: AnyTarget, watch: Watcher) -> Module:
    """Run the passes of a target: from the graph that all targets share to loop functions."""
    return run(target.passes, module, watch, f"{target.device}: ")


def run(
    passes: Iterable[ModulePass], module: Module, watch: Watcher, title_prefix: str = ""
) -> Module:
    """Run passes in order, and show each result to the watcher."""
    for title, transform in passes:
        module = transform(module)
        watch(Stage(title_prefix + title, partial(print_module, module), result=module))
    return module


def print_module(module: Module) -> str:
    """The text of all functions of a module."""
    return "\n".join(map(print_function, module.functions.values()))
