"""Convert manifest records to JSON and back.

In: a `Manifest`. Out: the text of `manifest.json`, with one buffer, step or file per line. The keys
have a fixed order, so that equal manifests are equal bytes. Fields that can be derived are omitted,
and `runtime_js/manifest.js` restores them:

- where a tensor begins: the first one at the `start` of its weights file, each other one at the
  next multiple of 256 bytes;
- the kind of a buffer: `constant` if the weights hold its name, else `scratch`;
- the tensor of a buffer, if it equals the buffer's name; its dtype, if it is float32;
- the device of a step, if it is that of the program; its outputs, if there is one; its origin, if
  it has none.

The arguments of a step are the positions of its buffers. Equal layers are said once (`repeats.py`):
buffers, steps and tensors. The `sizes` of a program name the symbolic sizes of several dimensions
and numbers of workgroups. Reading checks every field and names the culprit:

    PackageError: manifest.json: programs.wasm.steps[3].kernel is missing
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import asdict, fields
from typing import Any, Literal, cast, get_args

from webmlc.core.dtypes import DType
from webmlc.core.errors import PackageError
from webmlc.core.expr import Const, Expr
from webmlc.core.machine import Device
from webmlc.core.machine_class import MachineClass
from webmlc.graph.ir import Check, Requirement, Rule
from webmlc.package.json_object import JsonObject
from webmlc.package.manifest import (
    FORMAT,
    VERSION,
    Bind,
    Buffer,
    BufferKind,
    Control,
    File,
    Launch,
    Manifest,
    Port,
    Program,
    Resources,
    RowWork,
    Run,
    Segment,
    StatePort,
    Step,
    Symbol,
    TunedKernel,
    WeightFile,
)
from webmlc.package.placement import align
from webmlc.package.repeats import fold, unfold
from webmlc.package.size_json import from_size, to_size
from webmlc.package.weights import ALIGNMENT
from webmlc.schedule.tuning import Tuning

LINE = 160
"""Keep a container on one line if its text has at most this many characters. Chosen by hand."""


def to_json(manifest: Manifest) -> str:
    """Convert a manifest to the text of `manifest.json`."""
    data = {
        "format": FORMAT,
        "version": VERSION,
        "name": manifest.name,
        "compiler": manifest.compiler,
        "symbols": [{"name": s.name, "input": s.input, "axis": s.axis} for s in manifest.symbols],
        "inputs": [_port(p) for p in manifest.inputs],
        "outputs": [_port(p) for p in manifest.outputs],
        **({"sequences": dict(manifest.sequences)} if manifest.sequences else {}),
        **({"typed": dict(manifest.typed)} if manifest.typed else {}),
        "requirements": [
            [r.rule, to_size(r.left), to_size(r.right), r.node] for r in manifest.requirements
        ],
        "checks": [[check.value, list(check.nodes)] for check in manifest.checks],
        **(
            {"states": list(map(_state_port, manifest.state_ports))} if manifest.state_ports else {}
        ),
        **({"tuned": list(map(_tuned, manifest.tuned))} if manifest.tuned else {}),
        **({"machines": list(map(_machine, manifest.machines))} if manifest.machines else {}),
        "weights": {
            "bytes": sum(w.bytes for w in manifest.weights),
            "files": [_weight_file(w) for w in manifest.weights],
        },
        "files": {
            path: {"bytes": f.bytes, "sha256": f.sha256}
            for path, f in sorted(manifest.files.items())
        },
        "programs": {
            name: _program(name, p, _tensors(manifest.weights))
            for name, p in manifest.programs.items()
        },
    }
    return _text(data) + "\n"


def _text(value: Any) -> str:
    """Print compact JSON, and break long containers into lines."""
    compact = json.dumps(value, separators=(",", ":"))
    if len(compact) <= LINE:
        return compact
    match value:
        case dict():
            return (
                "{\n" + ",\n".join(f"{json.dumps(k)}:{_text(v)}" for k, v in value.items()) + "\n}"
            )
        case list() if all(isinstance(item, dict) for item in value):
            return "[\n" + ",\n".join(json.dumps(v, separators=(",", ":")) for v in value) + "\n]"
    return compact


def _shape(shape: tuple[Expr, ...], names: Mapping[Expr, str] | None = None) -> list[Any]:
    """Sizes as JSON. A size that has a name is written as its name."""
    return [(names or {}).get(size) or to_size(size) for size in shape]


def _port(port: Port) -> dict[str, Any]:
    return {
        "name": port.name,
        "dtype": str(port.dtype),
        "shape": _shape(port.shape),
        "buffer": port.buffer,
    }


def _state_port(port: StatePort) -> dict[str, Any]:
    data: dict[str, Any] = {"past": _port(port.past), "present": port.present}
    if port.rows is not None and port.size is not None:
        data |= {"rows": to_size(port.rows), "size": to_size(port.size)}
    return data


def _tuned(kernel: TunedKernel) -> dict[str, Any]:
    machine = {"machine": kernel.machine} if kernel.machine else {}
    return {"kernel": kernel.kernel, "variant": kernel.variant, **machine, **asdict(kernel.tuning)}


def _machine(machine: MachineClass) -> dict[str, Any]:
    data: dict[str, Any] = {"device": machine.device, "engine": machine.engine}
    if machine.adapter:
        data["adapter"] = machine.adapter
    return {**data, "parallel": True} if machine.is_parallel else data


def _weight_file(file: WeightFile) -> dict[str, Any]:
    return {
        "path": file.path,
        "bytes": file.bytes,
        "chunk_bytes": file.chunk_bytes,
        "chunks": list(file.chunks),
        "start": next((begin for begin, _ in file.tensors.values()), 0),
        "tensors": fold([[name, end - begin] for name, (begin, end) in file.tensors.items()]),
    }


def _tensors(weights: Sequence[WeightFile]) -> frozenset[str]:
    return frozenset(name for file in weights for name in file.tensors)


def _program(device: Device, program: Program, tensors: AbstractSet[str]) -> dict[str, Any]:
    resources = program.resources
    positions = {buffer.name: position for position, buffer in enumerate(program.buffers)}
    names = _name_sizes(program)
    data: dict[str, Any] = {
        **({"sizes": {name: to_size(size) for size, name in names.items()}} if names else {}),
        "buffers": fold([_buffer(b, names, tensors) for b in program.buffers]),
        "steps": fold([_step(device, s, positions, names) for s in program.steps]),
        "segments": [_segment(s) for s in program.segments],
        "resources": {
            "weights": resources.weights,
            "arena": dict(resources.arena),
            "memory": resources.memory,
            "largest_binding": resources.largest_binding,
            "scratch_per_thread": resources.scratch_per_thread,
            "features": list(resources.features),
            **({"row": asdict(resources.row)} if resources.row is not None else {}),
        },
    }
    if program.modules:
        data["modules"] = dict(program.modules)
    if program.shaders is not None:
        data["shaders"] = program.shaders
    return data


def _name_sizes(program: Program) -> dict[Expr, str]:
    """Name the symbolic sizes that several dimensions or numbers of workgroups share. No symbol has
    such a name.
    """
    shapes = [b.shape for b in program.buffers] + [s.workgroups or () for s in program.steps]
    counts = Counter(size for shape in shapes for size in shape if not isinstance(size, Const))
    return {size: f"#{i}" for i, size in enumerate(d for d, count in counts.items() if count > 1)}


def _usual_kind(name: str, tensors: AbstractSet[str]) -> BufferKind:
    return "constant" if name in tensors else "scratch"


def _buffer(buffer: Buffer, sizes: Mapping[Expr, str], tensors: AbstractSet[str]) -> dict[str, Any]:
    data: dict[str, Any] = {"name": buffer.name, "shape": _shape(buffer.shape, sizes)}
    if buffer.dtype is not DType.float32:
        data["dtype"] = str(buffer.dtype)
    if buffer.kind != _usual_kind(buffer.name, tensors):
        data["kind"] = buffer.kind
    if buffer.tensor not in (None, buffer.name):
        data["tensor"] = buffer.tensor
    return data


def _step(
    program_device: Device, step: Step, positions: Mapping[str, int], sizes: Mapping[Expr, str]
) -> dict[str, Any]:
    data: dict[str, Any] = {} if step.device == program_device else {"device": step.device}
    data |= {"kernel": step.kernel, "arguments": [positions[a] for a in step.arguments]}
    if step.outputs != 1:
        data["outputs"] = step.outputs
    if step.symbols:
        data["symbols"] = list(step.symbols)
    if step.control is not None:
        data["control"] = _control(step.control)
    if step.workgroups is not None:
        data["workgroups"] = _shape(step.workgroups, sizes)
    if step.alternatives:
        data["alternatives"] = {
            str(number): {"kernel": launch.kernel, "workgroups": _shape(launch.workgroups)}
            for number, launch in step.alternatives.items()
        }
    if step.reason:
        data["reason"] = step.reason
    return {**data, "origin": list(step.origin)} if step.origin else data


def _control(control: Control) -> dict[str, Any]:
    data: dict[str, Any] = {"kind": control.kind, "target": control.target}
    if control.symbol:
        data["symbol"] = control.symbol
    return data if control.trips is None else {**data, "trips": to_size(control.trips)}


def _segment(segment: Segment) -> dict[str, Any]:
    match segment:
        case Run(device, first, last, module_first, module_last, once):
            module = {"module_first": module_first, "module_last": module_last}
            run = {"device": device, "first": first, "last": last}
            return {
                **run,
                **(module if device == "wasm" else {}),
                **({"once": True} if once else {}),
            }
        case Bind(buffer, symbols, elements, origin):
            data: dict[str, Any] = {"bind": buffer, "symbols": list(symbols)}
            return {**data, "elements": list(elements), "origin": list(origin)}


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
        programs=_read_programs(root, _tensors(weight_files)),
        sequences=_read_sequences(root),
        requirements=_read_requirements(root),
        checks=_read_checks(root),
        tuned=root.objects("tuned", _read_tuned) if "tuned" in root.data else (),
        machines=root.objects("machines", _read_machine) if "machines" in root.data else (),
        state_ports=root.objects("states", _read_state_port) if "states" in root.data else (),
        typed=root.mapping("typed", _read_typed) if "typed" in root.data else {},
    )
    _check(manifest)
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
        o.strings("chunks"),
        tensors,
    )


def _read_programs(root: JsonObject, tensors: AbstractSet[str]) -> Mapping[Device, Program]:
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


def _read_program(o: JsonObject, device: Device, tensors: AbstractSet[str]) -> Program:
    resources = JsonObject(o.get("resources", dict), o.path("resources"))
    o = JsonObject({**o.data, **{k: unfold(o.get(k, list)) for k in ("buffers", "steps")}}, o.where)
    sizes = o.get("sizes", dict) if "sizes" in o.data else {}
    buffers = o.objects("buffers", lambda b: _read_buffer(b, sizes, tensors))
    return Program(
        buffers=buffers,
        steps=o.objects("steps", lambda s: _read_step(s, device, buffers, sizes)),
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
        modules=cast("Mapping[str, str]", o.get("modules", dict)) if "modules" in o.data else {},
        shaders=o.get("shaders", str) if "shaders" in o.data else None,
    )


def _read_buffer(o: JsonObject, sizes: Mapping[str, Any], tensors: AbstractSet[str]) -> Buffer:
    name = o.get("name", str)
    kind = _usual_kind(name, tensors)
    if "kind" in o.data:
        kind = cast(
            "BufferKind", o.one_of("kind", ("input", "constant", "derived", "state", "scratch"))
        )
    tensor = name if "tensor" not in o.data else o.get("tensor", str)
    dtype = _read_dtype(o) if "dtype" in o.data else DType.float32
    return Buffer(
        name, dtype, o.shape("shape", sizes), kind, tensor if kind == "constant" else None
    )


def _read_device(o: JsonObject) -> Device:
    return cast("Device", o.one_of("device", ("wasm", "webgpu")))


def _read_step(
    o: JsonObject, program_device: Device, buffers: Sequence[Buffer], sizes: Mapping[str, Any]
) -> Step:
    positions = o.integers("arguments")
    if not all(0 <= position < len(buffers) for position in positions):
        raise PackageError(f"manifest.json: {o.path('arguments')} are not all buffers")
    workgroups = _read_workgroups(o, sizes) if "workgroups" in o.data else None
    return Step(
        device=_read_device(o) if "device" in o.data else program_device,
        kernel=o.get("kernel", str),
        arguments=tuple(buffers[position].name for position in positions),
        outputs=o.get("outputs", int) if "outputs" in o.data else 1,
        symbols=o.strings("symbols") if "symbols" in o.data else (),
        workgroups=workgroups,
        alternatives=_read_alternatives(o, sizes) if "alternatives" in o.data else {},
        origin=o.strings("origin") if "origin" in o.data else (),
        reason=o.get("reason", str) if "reason" in o.data else "",
        control=_read_control(o) if "control" in o.data else None,
    )


def _read_workgroups(o: JsonObject, sizes: Mapping[str, Any]) -> tuple[Expr, Expr, Expr]:
    workgroups = o.shape("workgroups", sizes)
    if len(workgroups) != 3:
        raise PackageError(f"manifest.json: {o.path('workgroups')} does not have three sizes")
    x, y, z = workgroups
    return x, y, z


def _read_alternatives(step: JsonObject, sizes: Mapping[str, Any]) -> dict[int, Launch]:
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


def _check(manifest: Manifest) -> None:
    """Check that all names in use exist, for a manifest may have been edited."""
    tensors = {name for file in manifest.weights for name in file.tensors}
    inputs = {port.name: port for port in manifest.inputs}
    outputs = {port.name for port in manifest.outputs}
    for name, parts in manifest.sequences.items():
        if unknown := sorted(set(parts or ()) - outputs):
            raise PackageError(f"manifest.json: sequence {name} has no outputs {unknown}")
    for name, kind in manifest.typed.items():
        ports = set(kind.get("values", [name]))
        if not (ports <= outputs or ports <= inputs.keys()):
            raise PackageError(f"manifest.json: typed.{name} has no ports {sorted(ports)}")
        if "labels" in kind and kind["labels"] not in manifest.files:
            raise PackageError(f"manifest.json: typed.{name} has no file {kind['labels']!r}")
    for symbol in manifest.symbols:
        if symbol.name in (manifest.length, manifest.capacity):
            continue
        if symbol.input not in inputs or symbol.axis >= len(inputs[symbol.input].shape):
            raise PackageError(f"manifest.json: symbol {symbol.name} has no axis to be bound from")
    for name, program in manifest.programs.items():
        buffers = {b.name for b in program.buffers}
        used = {*(port.buffer for port in manifest.inputs), *manifest.results}
        used |= {s.buffer for s in program.segments if isinstance(s, Bind)}
        used |= {port.past.buffer for port in manifest.state_ports}
        if unknown := sorted(used - buffers):
            raise PackageError(f"manifest.json: programs.{name} uses unknown buffers {unknown}")
        for buffer in program.buffers:
            if buffer.tensor is not None and buffer.tensor not in tensors:
                raise PackageError(f"manifest.json: no weights file holds tensor {buffer.tensor!r}")
        covered = [i for s in program.runs for i in range(s.first, s.last)]
        if covered != list(range(len(program.steps))):
            raise PackageError(f"manifest.json: the segments of programs.{name} miss steps")
