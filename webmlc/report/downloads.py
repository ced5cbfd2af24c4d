"""List what a page downloads for a package, file by file.

In: a manifest. Out: JSON values: a row per file with its bytes, its class, and the devices that
need it. Texts and types, which no host reads, are not listed.
"""

from __future__ import annotations

from typing import Any

from webmlc.core.machine import Device
from webmlc.package.manifest import Manifest, Program, WeightFile

_TEXTS = (".wat", ".wgsl", ".ts", ".html", ".css")
_LARGEST = 40
"""The most tensors that a report lists."""


def downloads(manifest: Manifest, manifest_bytes: int) -> list[dict[str, Any]]:
    """The files, largest first."""
    weights = {file.path: file for file in manifest.weights}
    rows = [_row("manifest.json", manifest_bytes, "manifest", list(manifest.programs))]
    for path, file in manifest.files.items():
        if path.endswith(_TEXTS):
            continue
        users = [d for d, p in manifest.programs.items() if _uses(p, path, weights.get(path))]
        kind = "weights" if path in weights else _kind(path)
        if kind == "runtime":
            users = list(manifest.programs)
            if path == "webgpu_device.js":
                users = [d for d in users if d == "webgpu"]
        if kind == "other":
            users = list(manifest.programs)
        rows.append(_row(path, file.bytes, kind, users))
    return sorted(rows, key=lambda row: -int(row["bytes"]))


def tensors(manifest: Manifest) -> list[dict[str, Any]]:
    """The largest tensors of the weights, largest first."""
    sizes = {
        name: end - begin
        for file in manifest.weights
        for name, (begin, end) in file.tensors.items()
    }
    types = {
        buffer.tensor: f"{buffer.dtype}[{', '.join(map(str, buffer.shape))}]"
        for program in manifest.programs.values()
        for buffer in program.buffers
        if buffer.tensor is not None
    }
    largest = sorted(sizes, key=lambda name: -sizes[name])[:_LARGEST]
    return [{"name": n, "type": types.get(n, ""), "bytes": sizes[n]} for n in largest]


def _row(path: str, size: int, kind: str, devices: list[Device]) -> dict[str, Any]:
    return {"path": path, "bytes": size, "kind": kind, "devices": devices}


def _kind(path: str) -> str:
    """The class of a file."""
    if path.startswith(("model.", "kernels.")):
        return "code"
    return "runtime" if path.endswith(".js") else "other"


def _uses(program: Program, path: str, weights: WeightFile | None) -> bool:
    """True if a host may need the file to run the program. It needs one of the modules."""
    if weights is not None:
        return any(buffer.tensor in weights.tensors for buffer in program.buffers)
    return path == program.shaders or path in program.modules.values()
