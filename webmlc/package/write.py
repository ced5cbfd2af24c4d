"""Write a package: all files that a host needs, in one folder.

In: `Parts`, the output of the compiler. Out: the folder, and the `Manifest` that describes it. The
same parts give the same bytes.

    parts = Parts(manifest, programs={"wasm": ProgramParts(buffers, steps)}, ...)
    write_package(Path("build/digits"), parts)

`runtime_js/` is copied (see `runtime_files`); no JavaScript is generated.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from webmlc.core.errors import InternalError, PackageError
from webmlc.core.machine import DEVICES, Device
from webmlc.core.package_files import LANGUAGE_FILES, TOKENIZER
from webmlc.package.compression import SUFFIX, deflate
from webmlc.package.manifest import (
    MANIFEST,
    Buffer,
    File,
    Halves,
    Launch,
    Manifest,
    Program,
    Resources,
    Step,
    TypedValue,
)
from webmlc.package.manifest_json import from_json, to_json
from webmlc.package.memory_plan import layout
from webmlc.package.model_types import MODEL_TYPES, model_types
from webmlc.package.plan_memory import check_total, plan_memory
from webmlc.package.replace_package import replaced_package
from webmlc.package.runtime_files import runtime_files
from webmlc.package.sizes import name_sizes, to_size, with_names
from webmlc.package.step_work import row_work
from webmlc.package.tokenizer_file import pack_tokenizer
from webmlc.package.transfers import HostSegment, segments_of, with_transfers
from webmlc.package.weights import SHARD_BYTES, write_weights
from webmlc.target.webgpu.names import wgsl_name

if TYPE_CHECKING:
    from webmlc.package.kernel_code import Explanation
    from webmlc.target.kernel_work import Kernel
    from webmlc.target.target import Alternatives
    from webmlc.target.wasm.emit_module import Module as WasmModule
    from webmlc.target.webgpu.emit_shaders import Entry, Shaders

SKETCHED = 64
"""The number of leading bytes that tell most constants apart. Chosen by hand."""


@dataclass(frozen=True, slots=True)
class ShaderVariant:
    """One variant of the shaders, and by kernel its replacement on each class of machines."""

    shaders: Shaders
    alternatives: Alternatives

    def launches(self, kernel: str) -> dict[str, Launch]:
        """The launches of a step that calls a kernel, by "" or by `@NUMBER` of a machine class."""
        names = {f"@{n}": name for n, name in self.alternatives.get(kernel, {}).items()}
        entries = self.shaders.entries
        return {k: self._launch(kernel, entries[name]) for k, name in {"": kernel, **names}.items()}

    def _launch(self, kernel: str, entry: Entry) -> Launch:
        x, y, z = map(to_size, entry.workgroups)
        name = "" if entry.name == wgsl_name(kernel) else entry.name
        # An alternative has other sections.
        sections = () if self.alternatives else tuple(map(to_size, entry.sections))
        return Launch((x, y, z), name, entry.integers, sections)


@dataclass(frozen=True, slots=True)
class ProgramParts:
    """The program of one target before it is written.

    - `buffers`: the buffers in the order of their slots.
    - `body`: the steps in order, with the segments of the host between them. A jump's target is an
      item of the body.
    - `scratch_bytes`: the scratch memory of each thread, from `emit_module`.
    - `features`: the requirements of the target (`"simd128"`, `"shader-f16"`, ...).
    - `once`: the number of leading steps that run once, at load. Segments of the
      host do not count.
    - `halves`: the buffers that variants of the shaders with `shader-f16` store as float16.
    - `displacements`: the bytes from a buffer's start to each argument of a step, by the number of
      the step. Steps with displacements of 0 only are left out. The module holds the displacements.
    - `stages`: by the number of a step, the ONNX nodes of each stage of its kernel, for a report.
    """

    buffers: Sequence[Buffer]
    body: Sequence[Step | HostSegment]
    scratch_bytes: int = 0
    features: tuple[str, ...] = ()
    once: int = 0
    halves: frozenset[str] = frozenset()
    displacements: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    stages: Sequence[tuple[tuple[str, ...], ...]] = ()

    @property
    def steps(self) -> tuple[Step, ...]:
        """The kernel calls, in order."""
        return tuple(item for item in self.body if isinstance(item, Step))

    def with_code(
        self, modules: Iterable[WasmModule], shaders: Mapping[str, ShaderVariant]
    ) -> ProgramParts:
        """Fill in the results of code generation: the scratch size, and the symbols and launches of
        each WebGPU step. `shaders` maps each variant to its shaders.
        """
        body = tuple(
            _with_launches(item, shaders)
            if isinstance(item, Step)
            and not DEVICES[item.device].runs_steps
            and item.control is None
            else item
            for item in self.body
        )
        scratch = max((module.scratch_bytes for module in modules), default=0)
        return replace(self, body=body, scratch_bytes=scratch)


def _with_launches(step: Step, shaders: Mapping[str, ShaderVariant]) -> Step:
    """A WebGPU step with its launches. A variant with the launches of the first is left out."""
    launches: dict[str, Launch] = {}
    first: dict[str, Launch] = {}
    for variant, shader in shaders.items():
        by_machine = shader.launches(step.kernel)
        if by_machine != first:
            launches |= {f"{variant}{machine}": launch for machine, launch in by_machine.items()}
        first = first or by_machine
    entry = next(iter(shaders.values())).shaders.entries[step.kernel]
    return structs.replace(
        step, kernel=wgsl_name(step.kernel), symbols=entry.symbols, launches=launches
    )


@dataclass(frozen=True, slots=True)
class Parts:
    """The contents of a package: a manifest, and the data that becomes files.

    - `manifest`: without programs and files, which `write_package` fills in.
    - `programs`: by device (`"wasm"`, `"webgpu"`).
    - `constants`: by tensor name, as in `Buffer.tensor`.
    - `modules`: the binaries by variant (`"relaxed"`, `"simd128"`). Each holds the steps of the
      wasm program, then the wasm steps of the webgpu program.
    - `shaders`: the WGSL texts by variant (`"gpu"`, `"software"`).
    - `shader_features`: the features of WebGPU by variant. Variants that need none are left out.
    - `texts`: further files (`"model.relaxed.wat"`) that no host reads.
    - `assets`: further files of the model, such as a tokeniser.
    - `kernels`: by device and name. Kernels are not written; they define the work of each step.
    - `explanations`: by variant and kernel, for a report. Explanations are not written.
    """

    manifest: Manifest
    programs: Mapping[Device, ProgramParts]
    constants: Mapping[str, NDArray[Any]]
    modules: Mapping[str, bytes] = field(default_factory=dict)
    shaders: Mapping[str, str] = field(default_factory=dict)
    shader_features: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    texts: Mapping[str, str] = field(default_factory=dict)
    assets: Mapping[str, bytes] = field(default_factory=dict)
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

    `on_written` receives a folder with all files before they move to `out`. In `out`, another build
    may replace the files at any time.

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
    draft = parts.manifest
    is_typed = bool(draft.typed) or (TOKENIZER in contents and not is_language_model)
    contents |= runtime_files(is_language_model=is_language_model, is_typed=is_typed)
    typed = {name: _stored(kind) for name, kind in draft.typed.items()}
    programs = {device: _program(device, parts, draft) for device in parts.programs}
    draft = structs.replace(draft, weights=weights, typed=typed, programs=programs)
    programs = {device: _with_plan(draft, device, parts) for device in programs}
    draft = structs.replace(draft, programs=programs)
    types = model_types(draft, is_language_model=is_language_model)
    contents[MODEL_TYPES] = types.encode()
    for path, data in contents.items():
        (out / path).write_bytes(data)
    files = {p: File(len(d), hashlib.sha256(d).hexdigest()) for p, d in contents.items()}
    files |= {w.path: File(w.bytes, w.sha256) for w in weights}
    manifest = structs.replace(draft, files=dict(sorted(files.items())))
    text = to_json(manifest)
    _validate(text)
    (out / MANIFEST).write_text(text, "utf-8", newline="\n")
    return manifest


def _validate(text: str) -> None:
    """Read the manifest, as hosts do when they load the package.

    Raises `InternalError` if reading fails: the compiler is at fault, and not its user.
    """
    try:
        from_json(text)
    except PackageError as error:
        raise InternalError(f"no host can load the package of this model: {error}") from error


def module_path(variant: str) -> str:
    """The file of a WebAssembly module."""
    return f"model.{variant}.wasm{SUFFIX}"


def shader_paths(texts: Mapping[str, str]) -> dict[str, str]:
    """The file of each variant of the shaders. Variants with equal texts share one file."""
    first: dict[str, str] = {}
    return {v: first.setdefault(text, f"kernels.{v}.wgsl{SUFFIX}") for v, text in texts.items()}


def _assets(assets: Mapping[str, bytes]) -> dict[str, bytes]:
    """The assets as the package holds them: the tokeniser and lists of texts in little space."""
    stored = dict(assets)
    if text := stored.pop("tokenizer.json", None):
        stored[TOKENIZER] = deflate(*pack_tokenizer(text))
    return {
        path + SUFFIX if is_list(path) else path: deflate(data) if is_list(path) else data
        for path, data in stored.items()
    }


def is_list(path: str) -> bool:
    """True for a file of labels (`graph/typed/connect_values.py`), words or n-grams
    (`core/text_steps.py`).
    """
    return path.startswith(("labels.", "words.", "grams.")) and path.endswith(".json")


def _stored(value: TypedValue) -> TypedValue:
    """A typed value, with the name that its file of labels has in the package."""
    return structs.replace(value, labels=value.labels and value.labels + SUFFIX)


def share_equal_constants(parts: Parts) -> Parts:
    """Let the buffers of constants with the same bytes share one tensor. An example is the
    embedding that a language model both gathers from and multiplies by.
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
                b if b.tensor is None else structs.replace(b, tensor=names.get(b.tensor, b.tensor))
                for b in program.buffers
            ],
        )
        for device, program in parts.programs.items()
    }
    return replace(parts, programs=programs)


def _sketch(array: NDArray[Any]) -> tuple[int, bytes]:
    """The number of bytes of an array, and its first bytes. An array with a unique sketch equals no
    other array, so a hash of all its bytes is not needed.
    """
    return array.nbytes, array.flat[:SKETCHED].tobytes()[:SKETCHED]


def _weight_groups(parts: Parts) -> dict[str, dict[str, NDArray[Any]]]:
    """Group the constants by the programs that use them: both programs, then each program alone.

    A page downloads only the constants of its device. Within a group, constants are in the order of
    their slots, which is the order of their first use. Steps of loading can then start before all
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


def _program(device: Device, parts: Parts, draft: Manifest) -> Program:
    """The manifest's record of a program, without its plan of memory and its resources."""
    program = parts.programs[device]
    # In the modules, the wasm steps of the webgpu program follow the steps of the wasm program.
    earlier = takewhile(lambda other: other != device, parts.programs)
    module_base = sum(
        DEVICES[step.device].runs_steps for other in earlier for step in parts.programs[other].steps
    )
    # The module itself has the symbols of its steps.
    steps = [
        structs.replace(s, symbols=()) if DEVICES[s.device].runs_steps else s for s in program.steps
    ]
    uses_wasm = any(DEVICES[d].runs_steps for d in (device, *(step.device for step in steps)))
    uses_webgpu = not all(DEVICES[step.device].runs_steps for step in steps)
    record = Program(
        buffers=tuple(program.buffers),
        steps=tuple(steps),
        segments=segments_of(program.body, module_base, program.once),
        resources=Resources(scratch_per_thread=program.scratch_bytes, features=program.features),
        modules={v: module_path(v) for v in parts.modules} if uses_wasm else {},
        shaders=shader_paths(parts.shaders) if uses_webgpu else {},
        shader_features=parts.shader_features if uses_webgpu else {},
        halves=_halves(program),
    )
    segments = with_transfers(record, draft.results, device)
    return with_named_sizes(structs.replace(record, segments=segments))


def with_named_sizes(program: Program) -> Program:
    """The program in which sizes that occur several times have names."""
    launches = [launch for step in program.steps for launch in step.launches.values()]
    sizes = name_sizes(
        size
        for shape in (
            *(buffer.shape for buffer in program.buffers),
            *((*launch.workgroups, *launch.sections) for launch in launches),
        )
        for size in shape
    )
    names = {str(size): name for name, size in sizes.items()}

    def launched(launch: Launch) -> Launch:
        x, y, z = (with_names(size, names) for size in launch.workgroups)
        sections = tuple(with_names(size, names) for size in launch.sections)
        return structs.replace(launch, workgroups=(x, y, z), sections=sections)

    return structs.replace(
        program,
        sizes={
            name: [op, *(with_names(part, names) for part in parts)]
            for name, (op, *parts) in sizes.items()
        },
        buffers=tuple(
            structs.replace(b, shape=tuple(with_names(size, names) for size in b.shape))
            for b in program.buffers
        ),
        steps=tuple(
            structs.replace(s, launches={k: launched(v) for k, v in s.launches.items()})
            for s in program.steps
        ),
    )


def _halves(program: ProgramParts) -> Halves | None:
    """The buffers that some variants store as halves, in the order of the buffers."""
    numbers = tuple(i for i, b in enumerate(program.buffers) if b.name in program.halves)
    return Halves(numbers) if numbers else None


def _with_plan(draft: Manifest, device: Device, parts: Parts) -> Program:
    """A program with its plan of memory and its resources."""
    program = structs.replace(draft.programs[device], memory=plan_memory(draft, device))
    row = row_work(parts, draft, device)
    needs = structs.replace(resources(_with(draft, device, program), device), row=row)
    halves = program.halves
    if halves is not None:
        narrow = resources(_with(draft, device, program.with_halves()), device)
        halves = structs.replace(halves, arena=narrow.arena.get("webgpu"))
    return structs.replace(program, resources=needs, halves=halves)


def _with(manifest: Manifest, device: Device, program: Program) -> Manifest:
    return structs.replace(manifest, programs={**manifest.programs, device: program})


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
    sizes = {b.name: b.static_bytes for b in program.buffers}
    if None in sizes.values():
        arena: dict[Device, int | None] = dict.fromkeys(program.memory)
        return structs.replace(program.resources, weights=weights, arena=arena)
    layouts = {d: layout(manifest, device, d, {}) for d in program.memory}
    totals = [plan.total for d, plan in layouts.items() if DEVICES[d].runs_steps]
    for total in totals:
        check_total(total, program.buffers, program.steps)
    bindings = (m.buffers for d, m in program.memory.items() if not DEVICES[d].runs_steps)
    bound = (program.buffers[n].static_bytes or 0 for numbers in bindings for n in numbers)
    return structs.replace(
        program.resources,
        weights=weights,
        arena={d: plan.arena for d, plan in layouts.items()},
        memory=sum(totals),
        largest_binding=max(bound, default=0),
    )
