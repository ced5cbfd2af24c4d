"""Read the records of a `manifest.json`.

In: the text. Out: a `Manifest`, with the fields that `manifest_to_json` omits. Reading checks every
field and names the culprit:

    PackageError: manifest.json: programs.wasm.steps[3].kernel is missing
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, cast, get_args

from webmlc.core.dtypes import DType
from webmlc.core.errors import PackageError
from webmlc.core.expr import Expr
from webmlc.core.machine import Device
from webmlc.core.machine_class import MachineClass
from webmlc.graph.ir import Check, Requirement, Rule
from webmlc.package.check_manifest import check_manifest
from webmlc.package.json_object import JsonObject
from webmlc.package.manifest import (
    FORMAT,
    VERSION,
    Bind,
    Buffer,
    BufferKind,
    Control,
    File,
    Halves,
    Launch,
    Manifest,
    Port,
    Program,
    Run,
    Segment,
    StatePort,
    Step,
    StepVariant,
    Symbol,
    TunedKernel,
    WeightFile,
)
from webmlc.package.placement import align
from webmlc.package.repetitions import unfold
from webmlc.package.resources import Resources, RowWork
from webmlc.package.size_json import from_size, from_sizes
from webmlc.package.weights import ALIGNMENT
from webmlc.schedule.tuning import Tuning


def from_json(text: str) -> Manifest:
    """Parse the records of a `manifest.json`.

    Raises `PackageError` if it is malformed or of another version.
    """
    try:
        data = json.loads(text)
    except ValueError as error:
        raise PackageError(f"manifest.json is not JSON: {error}") from error
    root = JsonObject(data, "")
    if root.data.get("format") != FORMAT:
        raise PackageError("manifest.json: not a webmlc package")
    if root.get("version", int) != VERSION:
        raise PackageError(
            f"manifest.json: package version {root.data['version']}, this webmlc reads {VERSION}: "
            "rebuild it"
        )
    weights = JsonObject(root.get("weights", dict), "weights")
    files = root.mapping("files", lambda o: File(o.get("bytes", int), o.get("sha256", str)))
    weight_files = weights.objects("files", lambda o: _read_weight_file(o, files))
    manifest = Manifest(
        name=root.get("name", str),
        compiler=root.get("compiler", str),
        symbols=root.objects("symbols", _read_symbol),
        inputs=root.objects("inputs", _read_port),
        outputs=root.objects("outputs", _read_port),
        weights=weight_files,
        files=files,
        programs=_read_programs(root, [name for file in weight_files for name in file.tensors]),
        sequences=_read_sequences(root),
        requirements=_read_requirements(root),
        checks=_read_checks(root),
        tuned=root.objects("tuned", _read_tuned) if "tuned" in root.data else (),
        machines=root.objects("machines", _read_machine) if "machines" in root.data else (),
        state_ports=root.objects("states", _read_state_port) if "states" in root.data else (),
        typed=root.mapping("typed", _read_typed) if "typed" in root.data else {},
    )
    check_manifest(manifest)
    return manifest


def _read_symbol(o: JsonObject) -> Symbol:
    return Symbol(o.get("name", str), o.get("input", str), o.get("axis", int))


def _read_tuned(o: JsonObject) -> TunedKernel:
    tuning = Tuning(o.get("changes", dict), o.get("platform", str), o.get("ratio", float))
    machine = o.get("machine", int) if "machine" in o.data else 0
    return TunedKernel(o.get("kernel", str), o.get("variant", str), tuning, machine)


def _read_machine(o: JsonObject) -> MachineClass:
    adapter = o.get("adapter", str) if "adapter" in o.data else ""
    is_parallel = o.data.get("parallel") is True
    return MachineClass(_read_device(o), o.get("engine", str), adapter, is_parallel)


def _read_typed(o: JsonObject) -> dict[str, Any]:
    o.get("kind", str)
    return o.data


def _read_sequences(root: JsonObject) -> dict[str, tuple[str, ...] | None]:
    if "sequences" not in root.data:
        return {}
    o = JsonObject(root.data["sequences"], "sequences")
    return {name: None if o.data[name] is None else o.strings(name) for name in o.data}


def _read_requirements(root: JsonObject) -> tuple[Requirement, ...]:
    requirements: list[Requirement] = []
    for item in root.get("requirements", list):
        match item:
            case [str(rule), left, right, str(node)] if rule in get_args(Rule):
                requirements.append(
                    Requirement(cast(Rule, rule), from_size(left), from_size(right), node)
                )
            case _:
                raise PackageError(f"manifest.json: {item!r} is not a requirement")
    return tuple(requirements)


def _read_checks(root: JsonObject) -> tuple[Check, ...]:
    checks: list[Check] = []
    for item in root.get("checks", list):
        match item:
            case [str(value), [*nodes]] if all(isinstance(node, str) for node in nodes):
                checks.append(Check(value, tuple(nodes)))
            case _:
                raise PackageError(f"manifest.json: {item!r} is not a check")
    return tuple(checks)


def _read_dtype(o: JsonObject) -> DType:
    return DType(o.one_of("dtype", tuple(str(d) for d in DType)))


def _read_port(o: JsonObject) -> Port:
    return Port(o.get("name", str), _read_dtype(o), o.shape("shape"), o.get("buffer", str))


def _read_state_port(o: JsonObject) -> StatePort:
    past = JsonObject(o.get("past", dict), o.path("past"))
    rows, size = (from_size(o.data[key]) if key in o.data else None for key in ("rows", "size"))
    return StatePort(_read_port(past), o.get("present", str), rows, size)


def _read_weight_file(o: JsonObject, files: Mapping[str, File]) -> WeightFile:
    tensors: dict[str, tuple[int, int]] = {}
    end = o.get("start", int)
    for index, item in enumerate(unfold(o.get("tensors", list))):
        match item:
            case [str(name), int(length)]:
                begin = align(end, ALIGNMENT)
                tensors[name] = begin, (end := begin + length)
            case _:
                path = f"{o.path('tensors')}[{index}]"
                raise PackageError(f"manifest.json: {path} is not a pair [name, length]")
    path = o.get("path", str)
    if path not in files:
        raise PackageError(f"manifest.json: {path} has no hash")
    return WeightFile(
        path,
        o.get("bytes", int),
        files[path].sha256,
        o.get("chunk_bytes", int),
        o.get("chunks_sha256", str),
        tensors,
    )


def _read_programs(root: JsonObject, tensors: Sequence[str]) -> Mapping[Device, Program]:
    devices: tuple[Device, ...] = ("wasm", "webgpu")
    programs = root.get("programs", dict)
    for name in programs.keys() - set(devices):
        raise PackageError(f"manifest.json: programs.{name} is for an unknown device")
    return {
        device: _read_program(JsonObject(programs[device], f"programs.{device}"), device, tensors)
        for device in devices
        if device in programs
    }


def _read_row_work(resources: JsonObject) -> RowWork | None:
    if "row" not in resources.data:
        return None
    row = JsonObject(resources.get("row", dict), resources.path("row"))
    return RowWork(*(row.get(field.name, int) for field in fields(RowWork)))


def _read_program(o: JsonObject, device: Device, tensors: Sequence[str]) -> Program:
    resources = JsonObject(o.get("resources", dict), o.path("resources"))
    o = JsonObject({**o.data, **{k: unfold(o.get(k, list)) for k in ("buffers", "steps")}}, o.where)
    sizes = from_sizes(o.get("sizes", dict)) if "sizes" in o.data else {}
    buffers = o.objects("buffers", lambda b: _read_buffer(b, sizes, tensors))
    arguments = _Arguments(buffers)
    return Program(
        buffers=buffers,
        steps=o.objects("steps", lambda s: _read_step(s, device, arguments, sizes)),
        segments=o.objects("segments", _read_segment),
        resources=Resources(
            weights=resources.get("weights", int),
            arena=cast("Mapping[str, int | None]", resources.get("arena", dict)),
            memory=resources.size("memory"),
            largest_binding=resources.size("largest_binding"),
            scratch_per_thread=resources.get("scratch_per_thread", int),
            features=resources.strings("features"),
            row=_read_row_work(resources),
        ),
        modules=_read_paths(o, "modules"),
        shaders=_read_paths(o, "shaders"),
        shader_features=_read_features(o),
        halves=_read_halves(o, buffers),
    )


def _read_paths(o: JsonObject, key: str) -> Mapping[str, str]:
    """Files by variant."""
    return cast("Mapping[str, str]", o.get(key, dict)) if key in o.data else {}


def _read_features(o: JsonObject) -> Mapping[str, tuple[str, ...]]:
    """The features that variants of the shaders need."""
    if "shader_features" not in o.data:
        return {}
    features = JsonObject(o.get("shader_features", dict), o.path("shader_features"))
    return {variant: features.strings(variant) for variant in features.data}


def _read_halves(o: JsonObject, buffers: Sequence[Buffer]) -> Halves | None:
    """The buffers that variants with `shader-f16` store as halves."""
    if "halves" not in o.data:
        return None
    halves = JsonObject(o.get("halves", dict), o.path("halves"))
    numbers = halves.get("buffers", list)
    if not all(isinstance(number, int) and 0 <= number < len(buffers) for number in numbers):
        raise PackageError(f"manifest.json: {halves.path('buffers')} are no numbers of buffers")
    return Halves(tuple(buffers[number].name for number in numbers), halves.size("arena"))


def _read_buffer(o: JsonObject, sizes: Mapping[str, Expr], tensors: Sequence[str]) -> Buffer:
    tensor: str | None = None
    kind: BufferKind = "scratch"
    if "tensor" in o.data:
        number = o.get("tensor", int)
        if not 0 <= number < len(tensors):
            raise PackageError(
                f"manifest.json: {o.path('tensor')} is {number}, but the weights files hold "
                f"{len(tensors)} tensors"
            )
        tensor, kind = tensors[number], "constant"
    elif "kind" in o.data:
        kind = cast("BufferKind", o.one_of("kind", ("input", "derived", "state")))
    name = tensor if tensor is not None and "name" not in o.data else o.get("name", str)
    dtype = _read_dtype(o) if "dtype" in o.data else DType.float32
    return Buffer(name, dtype, o.shape("shape", sizes), kind, tensor)


def _read_device(o: JsonObject) -> Device:
    return cast("Device", o.one_of("device", ("wasm", "webgpu")))


@dataclass(slots=True)
class _Arguments:
    """Reads the arguments of steps, in order. `unused` is the first buffer that none uses yet."""

    buffers: Sequence[Buffer]
    unused: int = 0

    def read(self, step: JsonObject) -> tuple[str, ...]:
        """The names of the buffers."""
        names: list[str] = []
        for distance in step.integers("arguments"):
            position = self.unused + distance
            if not 0 <= position < len(self.buffers):
                raise PackageError(f"manifest.json: {step.path('arguments')} are not all buffers")
            self.unused = max(self.unused, position + 1)
            names.append(self.buffers[position].name)
        return tuple(names)


def _read_step(
    o: JsonObject, program_device: Device, arguments: _Arguments, sizes: Mapping[str, Expr]
) -> Step:
    workgroups = _read_workgroups(o, sizes) if "workgroups" in o.data else None
    entry, integers, sections = _read_entry(o, sizes)
    return Step(
        device=_read_device(o) if "device" in o.data else program_device,
        kernel=o.get("kernel", str),
        arguments=arguments.read(o),
        outputs=o.get("outputs", int) if "outputs" in o.data else 1,
        symbols=o.strings("symbols") if "symbols" in o.data else (),
        workgroups=workgroups,
        alternatives=_read_alternatives(o, sizes),
        variants=(
            o.mapping("variants", lambda v: _read_step_variant(v, sizes))
            if "variants" in o.data
            else {}
        ),
        origin=o.strings("origin") if "origin" in o.data else (),
        reason=o.get("reason", str) if "reason" in o.data else "",
        control=_read_control(o) if "control" in o.data else None,
        entry=entry,
        integers=integers,
        sections=sections,
    )


def _read_workgroups(o: JsonObject, sizes: Mapping[str, Expr]) -> tuple[Expr, Expr, Expr]:
    workgroups = o.shape("workgroups", sizes)
    if len(workgroups) != 3:
        raise PackageError(f"manifest.json: {o.path('workgroups')} does not have three sizes")
    x, y, z = workgroups
    return x, y, z


def _read_step_variant(o: JsonObject, sizes: Mapping[str, Expr]) -> StepVariant:
    return StepVariant(
        _read_workgroups(o, sizes), _read_alternatives(o, sizes), *_read_entry(o, sizes)
    )


def _read_entry(
    o: JsonObject, sizes: Mapping[str, Expr]
) -> tuple[str, tuple[int, ...], tuple[Expr, ...]]:
    """The entry point of a step, its integers, and the workgroups of its optional sections."""
    entry = o.get("entry", str) if "entry" in o.data else ""
    integers = o.integers("integers") if "integers" in o.data else ()
    return entry, integers, o.shape("sections", sizes) if "sections" in o.data else ()


def _read_alternatives(step: JsonObject, sizes: Mapping[str, Expr]) -> dict[int, Launch]:
    if "alternatives" not in step.data:
        return {}
    launches = step.mapping(
        "alternatives", lambda o: Launch(o.get("kernel", str), _read_workgroups(o, sizes))
    )
    if not all(number.isdecimal() for number in launches):
        raise PackageError(f"manifest.json: {step.path('alternatives')} are not of numbers")
    return {int(number): launch for number, launch in launches.items()}


def _read_control(step: JsonObject) -> Control:
    o = JsonObject(step.data["control"], step.path("control"))
    return Control(
        cast("Literal['if']", o.one_of("kind", ("if", "else", "loop", "next"))),
        o.get("target", int),
        o.get("symbol", str) if "symbol" in o.data else "",
        from_size(o.data["trips"]) if "trips" in o.data else None,
    )


def _read_segment(o: JsonObject) -> Segment:
    if "bind" in o.data:
        buffer, symbols = o.get("bind", str), o.strings("symbols")
        elements = o.integers("elements")
        if len(elements) != len(symbols):
            raise PackageError(f"manifest.json: {o.where} does not have one element per symbol")
        return Bind(buffer, symbols, elements, o.strings("origin"))
    wasm = "module_first" in o.data
    return Run(
        _read_device(o),
        o.get("first", int),
        o.get("last", int),
        o.get("module_first", int) if wasm else 0,
        o.get("module_last", int) if wasm else 0,
        o.data.get("once") is True,
    )
