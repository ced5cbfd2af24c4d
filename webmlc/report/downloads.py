"""List the files that a page downloads for a package, and the largest tensors of the weights.

In: a manifest. Out: JSON values. A row of a file has its bytes, its kind, and the devices whose
programs may need it. A page downloads only one module and one file of shaders. Files that only
people and their tools read are not listed: the emitted code as text, types, and the package's page.
"""

from __future__ import annotations

from typing import Any

from webmlc.core.machine import Device
from webmlc.package.manifest import Manifest, Program, WeightFile
from webmlc.package.sizes import shape_text

_TEXTS = (".wat", ".wgsl", ".ts", ".html", ".css")
"""The suffixes of files that are not listed. The shaders that a page downloads are deflated."""
_MOST_TENSORS = 40
"""The most tensors that a report lists. Chosen by hand: nobody reads a longer list."""
_GPU_RUNTIME = "webgpu_device.js"
"""The only file of the runtime that the CPU does not need."""


def downloads(manifest: Manifest, manifest_bytes: int) -> list[dict[str, Any]]:
    """The files and the manifest, which does not list itself, largest first."""
    weights = {file.path: file for file in manifest.weights}
    rows = [_row("manifest.json", manifest_bytes, "manifest", list(manifest.programs))]
    for path, file in manifest.files.items():
        if path.endswith(_TEXTS):
            continue
        kind = "weights" if path in weights else _kind(path)
        users = list(manifest.programs)
        if kind in ("weights", "code"):
            uses = manifest.programs.items()
            users = [device for device, p in uses if _uses(p, path, weights.get(path))]
        elif path == _GPU_RUNTIME:
            users = [device for device in users if device == "webgpu"]
        rows.append(_row(path, file.bytes, kind, users))
    return sorted(rows, key=lambda row: row["bytes"], reverse=True)


def tensors(manifest: Manifest) -> list[dict[str, Any]]:
    """The largest tensors of the weights, largest first."""
    sizes = {
        name: end - begin
        for file in manifest.weights
        for name, (begin, end) in file.tensors.items()
    }
    types = {
        buffer.tensor: f"{buffer.dtype}{shape_text(program.shape(buffer))}"
        for program in manifest.programs.values()
        for buffer in program.buffers
        if buffer.tensor is not None
    }
    largest = sorted(sizes, key=lambda name: -sizes[name])[:_MOST_TENSORS]
    return [{"name": n, "type": types.get(n, ""), "bytes": sizes[n]} for n in largest]


def _row(path: str, size: int, kind: str, devices: list[Device]) -> dict[str, Any]:
    return {"path": path, "bytes": size, "kind": kind, "devices": devices}


def _kind(path: str) -> str:
    """The kind of a file that holds no weights: "code" (modules and shaders), "runtime" or "other"
    (such as a tokenizer).
    """
    if path.startswith(("model.", "kernels.")):
        return "code"
    return "runtime" if path.endswith(".js") else "other"


def _uses(program: Program, path: str, weights: WeightFile | None) -> bool:
    """True if a host may need a file of weights or code to run the program."""
    if weights is not None:
        return any(buffer.tensor in weights.tensors for buffer in program.buffers)
    return path in (*program.shaders.values(), *program.modules.values())
