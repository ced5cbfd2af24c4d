"""Convert a manifest to the text of `manifest.json`.

In: a `Manifest`. Out: JSON, with one buffer, step or file per line. The keys have a fixed order, so
that equal manifests are equal bytes. Fields that can be derived are omitted; `manifest_from_json`
and `runtime_js/manifest.js` restore them:

- where a tensor begins: the first one at the `start` of its weights file, each other one at the
  next multiple of 256 bytes;
- the kind of a buffer: `constant` if it has a tensor, else `scratch`; its dtype, if it is float32;
- the name of a buffer, if its tensor has that name;
- the device of a step, if it is that of the program; its outputs, if there is one; its origin, if
  it has none.

The `tensor` of a buffer is a number: tensors are numbered through all weights files. An argument of
a step is the distance to its buffer from the first buffer that no argument uses so far: 0 for
that buffer, -1 for the one before it. The steps of equal layers are therefore equal, and equal
layers are said once (`repetitions.py`): buffers, steps and tensors. The `sizes` of a program name
the symbolic sizes that occur more than once, and later ones refer to earlier ones.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from webmlc.core.dtypes import DType
from webmlc.core.expr import Expr
from webmlc.core.machine import Device
from webmlc.core.machine_class import MachineClass
from webmlc.package.manifest import (
    FORMAT,
    VERSION,
    Bind,
    Buffer,
    Control,
    Launch,
    Manifest,
    Port,
    Program,
    Run,
    Segment,
    StatePort,
    Step,
    TunedKernel,
    WeightFile,
)
from webmlc.package.repetitions import fold
from webmlc.package.size_json import name_sizes, to_size

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
            name: _program(name, p, _tensor_numbers(manifest.weights))
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
    """Sizes as JSON. Sizes that have a name, and parts of sizes, are written as their names."""
    names = names or {}
    return [names.get(size) or to_size(size, names) for size in shape]


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
        "chunks_sha256": file.chunks_sha256,
        "start": next((begin for begin, _ in file.tensors.values()), 0),
        "tensors": fold([[name, end - begin] for name, (begin, end) in file.tensors.items()]),
    }


def _tensor_numbers(weights: Sequence[WeightFile]) -> dict[str, int]:
    names = (name for file in weights for name in file.tensors)
    return {name: number for number, name in enumerate(names)}


def _program(device: Device, program: Program, tensors: Mapping[str, int]) -> dict[str, Any]:
    resources = program.resources
    shapes = [b.shape for b in program.buffers]
    shapes += [(*(step.workgroups or ()), *step.sections) for step in program.steps]
    variants = [variant for step in program.steps for variant in step.variants.values()]
    shapes += [(*variant.workgroups, *variant.sections) for variant in variants]
    names = name_sizes(size for shape in shapes for size in shape)
    sizes = {name: to_size(size, names) for size, name in names.items()}
    steps = zip(program.steps, _arguments(program), strict=True)
    data: dict[str, Any] = {
        **({"sizes": sizes} if sizes else {}),
        "buffers": fold([_buffer(b, names, tensors) for b in program.buffers]),
        "steps": fold([_step(device, step, arguments, names) for step, arguments in steps]),
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
    if program.shaders:
        data["shaders"] = dict(program.shaders)
    if program.shader_features:
        data["shader_features"] = {v: list(f) for v, f in program.shader_features.items()}
    if program.halves is not None:
        numbers = {buffer.name: number for number, buffer in enumerate(program.buffers)}
        buffers = [numbers[name] for name in program.halves.buffers]
        data["halves"] = {"buffers": buffers, "arena": program.halves.arena}
    return data


def _arguments(program: Program) -> list[list[int]]:
    """The arguments of each step, as distances from the first buffer that none uses so far."""
    positions = {buffer.name: position for position, buffer in enumerate(program.buffers)}
    unused = 0
    arguments: list[list[int]] = []
    for step in program.steps:
        arguments.append([])
        for name in step.arguments:
            arguments[-1].append(positions[name] - unused)
            unused = max(unused, positions[name] + 1)
    return arguments


def _buffer(
    buffer: Buffer, sizes: Mapping[Expr, str], tensors: Mapping[str, int]
) -> dict[str, Any]:
    data: dict[str, Any] = {} if buffer.name == buffer.tensor else {"name": buffer.name}
    if buffer.tensor is not None:
        data["tensor"] = tensors[buffer.tensor]
    data["shape"] = _shape(buffer.shape, sizes)
    if buffer.dtype is not DType.float32:
        data["dtype"] = str(buffer.dtype)
    if buffer.kind not in ("constant", "scratch"):
        data["kind"] = buffer.kind
    return data


def _step(
    program_device: Device, step: Step, arguments: list[int], sizes: Mapping[Expr, str]
) -> dict[str, Any]:
    data: dict[str, Any] = {} if step.device == program_device else {"device": step.device}
    data |= {"kernel": step.kernel, "arguments": arguments}
    if step.outputs != 1:
        data["outputs"] = step.outputs
    if step.symbols:
        data["symbols"] = list(step.symbols)
    if step.control is not None:
        data["control"] = _control(step.control)
    if step.workgroups is not None:
        data["workgroups"] = _shape(step.workgroups, sizes)
    if step.entry:
        data["entry"] = step.entry
    if step.integers:
        data["integers"] = list(step.integers)
    if step.sections:
        data["sections"] = _shape(step.sections, sizes)
    if step.alternatives:
        data["alternatives"] = _alternatives(step.alternatives)
    if step.variants:
        data["variants"] = {
            name: {
                "workgroups": _shape(variant.workgroups, sizes),
                # Empty ones replace those of the step, too.
                **(
                    {"entry": variant.entry, "integers": list(variant.integers)}
                    if variant.entry or variant.integers or step.entry or step.integers
                    else {}
                ),
                **(
                    {"sections": _shape(variant.sections, sizes)}
                    if variant.sections or step.sections
                    else {}
                ),
                **(
                    {"alternatives": _alternatives(variant.alternatives)}
                    if variant.alternatives or step.alternatives
                    else {}
                ),
            }
            for name, variant in step.variants.items()
        }
    if step.reason:
        data["reason"] = step.reason
    return {**data, "origin": list(step.origin)} if step.origin else data


def _alternatives(launches: Mapping[int, Launch]) -> dict[str, Any]:
    return {
        str(number): {"kernel": launch.kernel, "workgroups": _shape(launch.workgroups)}
        for number, launch in launches.items()
    }


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
