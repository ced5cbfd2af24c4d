"""Report the contents of a package: its files, its resources, and the device of its nodes.

In: the manifest of a package. Out: plain values, to print as tables or as JSON.

    report = package_report(manifest, Path("build/digits"))
    report["programs"]["wasm"]["arena bytes"]
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from webmlc.core.machine import Device
from webmlc.host.model_port import ModelPort
from webmlc.package.manifest import AnyPort, Manifest, Program, RowWork
from webmlc.package.sizes import shape_text

_RUNTIME_SUFFIXES = (".js", ".html", ".css")


def package_report(manifest: Manifest, folder: Path) -> dict[str, Any]:
    """Build the report of the package in `folder`. Another build may have replaced it since, so
    that its manifest is not read again.
    """
    return {
        "name": manifest.name,
        "folder": str(folder),
        "inputs": {p.name: type_text(p) for p in manifest.model_inputs},
        "outputs": {p.name: type_text(p) for p in manifest.model_outputs},
        "programs": {
            device: _program(manifest, device, program)
            for device, program in manifest.programs.items()
        },
        "operators": operator_rows(manifest),
        "tuned": [
            {
                "kernel": kernel.kernel,
                "variant": kernel.variant,
                "gain": f"{1 / kernel.tuning.ratio:.2f}×",
                "measured on": kernel.tuning.platform,
                "runs on": _machine(manifest, kernel.machine),
            }
            for kernel in manifest.tuned
        ],
        "files": {path: file.bytes for path, file in manifest.files.items()},
    }


def operator_rows(manifest: Manifest) -> list[dict[str, Any]]:
    """A row for each operator that people defined."""
    return [
        {"operator": f"{o.domain}.{o.name}", "nodes": o.nodes, "from": o.origin}
        for o in manifest.operators
    ]


def type_text(port: AnyPort) -> str:
    return f"{ModelPort.of(port).dtype}{shape_text(port.shape)}"


def _machine(manifest: Manifest, number: int) -> str:
    """The name of a class of machines."""
    if number == 0:
        return "all other machines" if manifest.machines else "all machines"
    machine = manifest.machines[number - 1]
    threads = ["several threads"] if machine.is_parallel else []
    return ", ".join(filter(None, (machine.engine, machine.adapter, *threads)))


def _row_work(row: RowWork | None) -> dict[str, Any]:
    """The sizes of a run that appends one row: a token of a language model."""
    if row is None:
        return {}
    return {
        "steps per token": row.steps,
        "bytes per token": row.bytes,
        "bytes per token and token of context": row.bytes_per_row,
    }


def _program(manifest: Manifest, device: Device, program: Program) -> dict[str, Any]:
    used = {b.tensor for b in program.buffers if b.tensor is not None}
    weights = sum(f.bytes for f in manifest.weights if used & f.tensors.keys())
    code = [program.modules["relaxed"]] if "relaxed" in program.modules else []
    code += list(program.shaders.values())[:1]
    runtime = [p for p in manifest.files if p.endswith(_RUNTIME_SUFFIXES)]
    on_cpu = [s for s in program.steps if s.device == "wasm"]
    return {
        "kernels": len({s.kernel for s in program.steps}),
        "steps": len(program.steps),
        "steps on the cpu": len(on_cpu),
        "cpu nodes": {o: s.reason for s in on_cpu for o in s.origin} if device == "webgpu" else {},
        "weights bytes": weights,
        "code bytes": sum(manifest.files[p].bytes for p in code),
        "runtime bytes": sum(manifest.files[p].bytes for p in runtime),
        "arena bytes": dict(program.resources.arena),
        "memory bytes": program.resources.memory,
        "largest binding bytes": program.resources.largest_binding,
        **_row_work(program.resources.row),
    }
