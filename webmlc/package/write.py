"""Write a package: all files that a host needs, in one folder.

In: `Parts`, the output of the compiler. Out: the folder, and the `Manifest` that describes it. The
same parts give the same bytes.

    write_package(Path("build/digits"), Parts(name="digits", ..., programs={"wasm":
    ProgramParts(buffers, steps)}))

`runtime_js/` is copied (see `runtime_files`); no JavaScript is generated.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from webmlc.core.errors import InternalError, PackageError
from webmlc.core.expr import as_int
from webmlc.core.machine import Device
from webmlc.core.machine_class import MachineClass
from webmlc.core.package_files import LANGUAGE_FILES, TOKENIZER
from webmlc.core.rewrite import variables
from webmlc.core.sizes import is_size
from webmlc.graph.ir import Check, Requirement
from webmlc.package.check_memory import check_total
from webmlc.package.compression import SUFFIX, deflate
from webmlc.package.manifest import (
    MANIFEST,
    Bind,
    Buffer,
    File,
    Halves,
    Launch,
    Manifest,
    Port,
    Program,
    StatePort,
    Step,
    StepVariant,
    Symbol,
    TunedKernel,
    is_static,
)
from webmlc.package.manifest_from_json import from_json
from webmlc.package.manifest_to_json import to_json
from webmlc.package.memory_plan import layout, used_on
from webmlc.package.model_types import MODEL_TYPES, model_types
from webmlc.package.replace_package import replaced_package
from webmlc.package.resources import Resources
from webmlc.package.runtime_files import runtime_files
from webmlc.package.step_work import row_work
from webmlc.package.tokenizer_file import pack_tokenizer
from webmlc.package.transfers import segments_of, stages
from webmlc.package.weights import SHARD_BYTES, write_weights
from webmlc.target.webgpu.names import wgsl_name

if TYPE_CHECKING:
    from webmlc.package.explanation import Explanation
    from webmlc.target.kernel_work import Kernel
    from webmlc.target.target import Alternatives
    from webmlc.target.wasm.emit_module import Module as WasmModule
    from webmlc.target.webgpu.emit_shaders import Shaders

SKETCHED = 64
"""The first bytes of a constant that tell it from most others. Chosen by hand."""


@dataclass(frozen=True, slots=True)
class ShaderVariant:
    """One variant of the shaders, and which kernel replaces another one on a class of machines."""

    shaders: Shaders
    alternatives: Alternatives

    def step(self, kernel: str) -> StepVariant:
        """What a step launches that calls a kernel."""
        entries = self.shaders.entries
        names = self.alternatives.get(kernel, {})
        launches = {
            number: Launch(entries[name].name, entries[name].workgroups)
            for number, name in names.items()
        }
        entry = entries[kernel]
        name = "" if entry.name == wgsl_name(kernel) else entry.name
        # An alternative has other sections.
        sections = () if self.alternatives else entry.sections
        return StepVariant(entry.workgroups, launches, name, entry.integers, sections)


@dataclass(frozen=True, slots=True)
class ProgramParts:
    """The program of one target before it is written.

    - `buffers`: in the order of their slots.
    - `body`: the steps in order, with the binds of symbols between them.
    - `scratch_bytes`: the scratch memory of each thread, from `emit_module`.
    - `features`: the requirements of the target (`"simd128"`, `"shader-f16"`, ...).
    - `once`: the number of leading steps that run once, at load. Binds do not count.
    - `halves`: the buffers that variants of the shaders with `shader-f16` store as float16.
    """

    buffers: Sequence[Buffer]
    body: Sequence[Step | Bind]
    scratch_bytes: int = 0
    features: tuple[str, ...] = ()
    once: int = 0
    halves: frozenset[str] = frozenset()

    @property
    def steps(self) -> tuple[Step, ...]:
        """The kernel calls, in order."""
        return tuple(item for item in self.body if isinstance(item, Step))

    def with_code(
        self, modules: Iterable[WasmModule], shaders: Mapping[str, ShaderVariant]
    ) -> ProgramParts:
        """Fill in what code generation decided: the scratch size, and the entry point, symbols and
        workgroups of each WebGPU step, with those of its alternatives. `shaders` are by variant.
        """
        body = []
        for item in self.body:
            if isinstance(item, Step) and item.device == "webgpu" and item.control is None:
                steps = {name: variant.step(item.kernel) for name, variant in shaders.items()}
                first, variant = next(iter(shaders.items()))
                item = replace(
                    item,
                    kernel=wgsl_name(item.kernel),
                    symbols=variant.shaders.entries[item.kernel].symbols,
                    workgroups=steps[first].workgroups,
                    alternatives=steps[first].alternatives,
                    entry=steps[first].entry,
                    integers=steps[first].integers,
                    sections=steps[first].sections,
                    variants={name: s for name, s in steps.items() if s != steps[first]},
                )
            body.append(item)
        scratch = max((module.scratch_bytes for module in modules), default=0)
        return replace(self, body=tuple(body), scratch_bytes=scratch)


@dataclass(frozen=True, slots=True)
class Parts:
    """The contents of a package.

    - `compiler`: the name and version of the compiler.
    - `programs`: by device (`"wasm"`, `"webgpu"`).
    - `constants`: by tensor name, as in `Buffer.tensor`.
    - `modules`: the binaries by variant (`"relaxed"`, `"simd128"`). Each holds the steps of the
      wasm program, then the wasm steps of the webgpu program.
    - `shaders`: the WGSL texts by variant (`"gpu"`, `"software"`).
    - `shader_features`: the features of WebGPU that a variant needs, of variants that need some.
    - `texts`: further files (`"model.relaxed.wat"`) that no host reads.
    - `assets`: further files of the model, such as a tokeniser.
    - `requirements`: conditions on the symbols of a run.
    - `checks`: buffers in which kernels count the indices that are out of range.
    - `sequences`: the outputs that each sequence consists of; None for an empty optional.
    - `state_ports`: the inputs and outputs that states replace.
    - `typed`: the inputs and outputs that are values of the page.
    - `tuned`: the kernels whose schedules were found by measuring.
    - `machines`: the classes of machines for which some kernels have other schedules.
    - `kernels`: by device and name. They are not written; they define the work of each step.
    - `explanations`: by variant and kernel, for a report. They are not written.
    """

    name: str
    compiler: str
    symbols: Sequence[Symbol]
    inputs: Sequence[Port]
    outputs: Sequence[Port]
    programs: Mapping[Device, ProgramParts]
    constants: Mapping[str, NDArray[Any]]
    modules: Mapping[str, bytes] = field(default_factory=dict)
    shaders: Mapping[str, str] = field(default_factory=dict)
    shader_features: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    sequences: Mapping[str, tuple[str, ...] | None] = field(default_factory=dict)
    texts: Mapping[str, str] = field(default_factory=dict)
    assets: Mapping[str, bytes] = field(default_factory=dict)
    typed: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    requirements: Sequence[Requirement] = ()
    checks: Sequence[Check] = ()
    tuned: Sequence[TunedKernel] = ()
    machines: Sequence[MachineClass] = ()
    state_ports: Sequence[StatePort] = ()
    kernels: Mapping[Device, Mapping[str, Kernel]] = field(default_factory=dict)
    explanations: Mapping[tuple[str, str], Explanation] = field(default_factory=dict)


def write_package(
    out: Path,
    parts: Parts,
    shard_bytes: int = SHARD_BYTES,
    *,
    force: bool = False,
    on_written: Callable[[Path, Manifest], None] | None = None,
) -> Manifest:
    """Write the package into folder `out`, and return its manifest. An older package is replaced.

    `on_written` receives the folder in which all files are, before they move to `out`, where
    another build may replace them at any time.

    Raises `PackageError` if `out` has files that this would overwrite and that no earlier build
    wrote, unless `force`. Raises `UserError` if a program of static sizes needs more than 32-bit
    memory.
    """
    with replaced_package(out, force=force) as staging:
        manifest = _write_files(staging, parts, shard_bytes)
        if on_written is not None:
            on_written(staging, manifest)
        return manifest


def _write_files(out: Path, parts: Parts, shard_bytes: int) -> Manifest:
    """Write every file of the package into an empty folder."""
    parts = share_equal_constants(parts)
    weights = tuple(
        file
        for stem, tensors in _weight_groups(parts).items()
        for file in write_weights(out, stem, tensors, shard_bytes)
    )
    contents = {module_path(variant): deflate(code) for variant, code in parts.modules.items()}
    shaders = shader_paths(parts.shaders)
    contents |= {shaders[v]: deflate(text.encode()) for v, text in parts.shaders.items()}
    contents |= {path: text.encode() for path, text in parts.texts.items()}
    contents |= _assets(parts.assets)
    is_language_model = all(path in contents for path in LANGUAGE_FILES)
    is_typed = bool(parts.typed) or (TOKENIZER in contents and not is_language_model)
    contents |= runtime_files(is_language_model=is_language_model, is_typed=is_typed)
    draft = Manifest(
        name=parts.name,
        compiler=parts.compiler,
        symbols=tuple(parts.symbols),
        inputs=tuple(parts.inputs),
        outputs=tuple(parts.outputs),
        weights=weights,
        files={},
        programs={device: _program(device, parts) for device in parts.programs},
        sequences=parts.sequences,
        requirements=_checkable(parts),
        checks=tuple(parts.checks),
        tuned=tuple(parts.tuned),
        machines=tuple(parts.machines),
        state_ports=tuple(parts.state_ports),
        typed={name: _stored(kind) for name, kind in parts.typed.items()},
    )
    programs = {
        device: replace(
            p,
            resources=replace(resources(draft, device), row=row_work(parts, draft, device)),
            halves=_with_arena(p.halves, draft, device),
        )
        for device, p in draft.programs.items()
    }
    types = model_types(draft, is_language_model=is_language_model)
    contents[MODEL_TYPES] = types.encode()
    for path, data in contents.items():
        (out / path).write_bytes(data)
    files = {p: File(len(d), hashlib.sha256(d).hexdigest()) for p, d in contents.items()}
    files |= {w.path: File(w.bytes, w.sha256) for w in weights}
    manifest = replace(draft, programs=programs, files=files)
    text = to_json(manifest)
    _validate(text)
    (out / MANIFEST).write_text(text, "utf-8", newline="\n")
    return manifest


def _validate(text: str) -> None:
    """Read the manifest, and plan its runs, as hosts do when they load the package.

    Raises `InternalError` if that fails: the compiler is at fault, and not its user.
    """
    try:
        manifest = from_json(text)
        for device, program in manifest.programs.items():
            stages(program, manifest.results, device)
    except PackageError as error:
        raise InternalError(f"no host can load the package of this model: {error}") from error


def module_path(variant: str) -> str:
    """The file of a WebAssembly module."""
    return f"model.{variant}.wasm{SUFFIX}"


def shader_paths(texts: Mapping[str, str]) -> dict[str, str]:
    """The file of each variant of the shaders. Variants with equal texts share the first's."""
    first: dict[str, str] = {}
    return {v: first.setdefault(text, f"kernels.{v}.wgsl{SUFFIX}") for v, text in texts.items()}


def _assets(assets: Mapping[str, bytes]) -> dict[str, bytes]:
    """The assets as the package holds them: the tokeniser and labels in little space."""
    stored = dict(assets)
    if text := stored.pop("tokenizer.json", None):
        stored[TOKENIZER] = deflate(*pack_tokenizer(text))
    return {
        path + SUFFIX if is_labels(path) else path: deflate(data) if is_labels(path) else data
        for path, data in stored.items()
    }


def is_labels(path: str) -> bool:
    """True for a file of labels (`graph/typed/connect_values.py`)."""
    return path.startswith("labels.") and path.endswith(".json")


def _stored(kind: Mapping[str, Any]) -> dict[str, Any]:
    """The kind of a value, with the name that its file of labels has in the package."""
    return {k: v + SUFFIX if k == "labels" else v for k, v in kind.items()}


def share_equal_constants(parts: Parts) -> Parts:
    """Let the buffers of constants with the same bytes share one tensor, such as the embedding that
    a language model reads and multiplies by.
    """
    sketches = {name: _sketch(array) for name, array in parts.constants.items()}
    counts = Counter(sketches.values())
    first: dict[tuple[int, bytes], str] = {}
    names: dict[str, str] = {}
    for name, array in parts.constants.items():
        if counts[sketches[name]] > 1:
            data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
            key = (data.size, hashlib.sha256(data.data).digest())
            names[name] = first.setdefault(key, name)
    programs = {
        device: replace(
            program,
            buffers=[
                b if b.tensor is None else replace(b, tensor=names.get(b.tensor, b.tensor))
                for b in program.buffers
            ],
        )
        for device, program in parts.programs.items()
    }
    return replace(parts, programs=programs)


def _sketch(array: NDArray[Any]) -> tuple[int, bytes]:
    """The number of bytes of an array, and the first of them. Where no other array has the same, a
    hash of all bytes is not worth its time.
    """
    return array.nbytes, array.flat[:SKETCHED].tobytes()[:SKETCHED]


def _checkable(parts: Parts) -> tuple[Requirement, ...]:
    """The requirements that hosts can evaluate: size expressions over the symbols of inputs and of
    binds. No run decides the others.
    """
    names = {symbol.name for symbol in parts.symbols}
    for program in parts.programs.values():
        names |= {name for item in program.body if isinstance(item, Bind) for name in item.symbols}
    return tuple(
        requirement
        for requirement in parts.requirements
        if {v.name for v in variables(requirement.left) | variables(requirement.right)} <= names
        and is_size(requirement.left)
        and is_size(requirement.right)
    )


def _weight_groups(parts: Parts) -> dict[str, dict[str, NDArray[Any]]]:
    """Group the constants by the programs that use them: both, then each one alone.

    A page downloads only the constants of its device. Within a group, they are in the order of
    their slots, which is that of their first use. Steps of loading can then start before all
    constants have arrived.
    """
    users: dict[str, set[Device]] = {}
    for device, program in parts.programs.items():
        for buffer in program.buffers:
            if buffer.tensor is not None:
                if buffer.tensor not in parts.constants:
                    raise InternalError(f"package: no constant {buffer.tensor!r} for {buffer.name}")
                users.setdefault(buffer.tensor, set()).add(device)
    groups: dict[str, dict[str, NDArray[Any]]] = {}
    all_devices = set(parts.programs)
    for stem, group in (
        ("weights", all_devices),
        *((f"weights.{d}", {d}) for d in parts.programs if {d} != all_devices),
    ):
        if tensors := {n: parts.constants[n] for n, devices in users.items() if devices == group}:
            groups[stem] = tensors
    return groups


def _program(device: Device, parts: Parts) -> Program:
    """The manifest's record of a program; `resources` fills in its sizes afterwards."""
    program = parts.programs[device]
    # In the modules, the wasm steps of the webgpu program follow the steps of the wasm program.
    module_base = 0
    if device == "webgpu" and "wasm" in parts.programs:
        module_base = len(parts.programs["wasm"].steps)
    # The module itself has the symbols and displacements of its steps.
    steps = tuple(
        replace(s, symbols=(), displacements=()) if s.device == "wasm" else s for s in program.steps
    )
    uses_wasm = any(s.device == "wasm" for s in steps) or device == "wasm"
    uses_webgpu = any(s.device == "webgpu" for s in steps)
    return Program(
        buffers=tuple(program.buffers),
        steps=steps,
        segments=segments_of(program.body, module_base, program.once),
        resources=Resources(
            weights=0,
            arena={},
            memory=None,
            largest_binding=None,
            scratch_per_thread=program.scratch_bytes,
            features=program.features,
        ),
        modules={v: module_path(v) for v in parts.modules} if uses_wasm else {},
        shaders=shader_paths(parts.shaders) if uses_webgpu else {},
        shader_features=parts.shader_features if uses_webgpu else {},
        halves=_halves(program),
    )


def _halves(program: ProgramParts) -> Halves | None:
    """The buffers that some variants store as halves, in the order of the buffers."""
    names = tuple(b.name for b in program.buffers if b.name in program.halves)
    return Halves(names) if names else None


def _with_arena(halves: Halves | None, manifest: Manifest, device: Device) -> Halves | None:
    """Fill in the arena of a variant that stores some buffers as halves."""
    if halves is None:
        return None
    program = manifest.programs[device].with_halves()
    narrow = replace(manifest, programs={**manifest.programs, device: program})
    return replace(halves, arena=resources(narrow, device).arena.get("webgpu"))


def resources(manifest: Manifest, device: Device) -> Resources:
    """Compute the resources of a program. If any size of the program depends on a symbol, the
    arena, the memory and the largest binding are `None`.
    """
    program = manifest.programs[device]
    tensors = {b.tensor for b in program.buffers if b.tensor is not None}
    weights = sum(
        end - begin
        for file in manifest.weights
        for name, (begin, end) in file.tensors.items()
        if name in tensors
    )
    devices: tuple[Device, ...] = ("wasm", "webgpu")
    used = [d for d in devices if used_on(program, d, device)]
    if not is_static(program):
        return replace(program.resources, weights=weights, arena=dict.fromkeys(used))
    layouts = {d: layout(manifest, device, d, {}) for d in used}
    if "wasm" in layouts:
        check_total(layouts["wasm"].total, program.buffers, program.steps)
    bound = used_on(program, "webgpu", device)
    largest = max((as_int(b.bytes) or 0 for b in program.buffers if b.name in bound), default=0)
    return replace(
        program.resources,
        weights=weights,
        arena={d: plan.arena for d, plan in layouts.items()},
        memory=layouts["wasm"].total if "wasm" in layouts else 0,
        largest_binding=largest,
    )
