"""List the files that a page downloads for a package, and find the kernels in its code.

In: a manifest. Out: JSON values. A row of a file has its bytes, its kind, and the devices whose
programs may need it. A page downloads only one module and one file of shaders. Files that only
people and their tools read are not listed: the emitted code as text, types, and the package's page.

A build knows the lines of each kernel (`target.line_ranges`). A package on disk holds only the
texts, so its texts are searched for the beginnings of functions. In both cases, the text is
searched for the lines that call kernels.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from webmlc.core.machine import Device
from webmlc.package.compression import inflate
from webmlc.package.manifest import Manifest, Program, WeightFile
from webmlc.package.sizes import shape_text
from webmlc.report.programs import VARIANT

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


_FUNCTION = re.compile(r"^(?:fn (\w+)\(|\(func \$([^\s()]+))", re.MULTILINE)
"""The beginning of a function in WGSL and in WAT."""
_STEP = re.compile(
    r"  \(if \(i32\.le_s \(local\.get \$last\) \(i32\.const (\d+)\)\) \(then \(return\)\)\)"
)
"""The line before the lines of a step in a module's program (`target/wasm/emit_module.py`)."""


def package_texts(folder: Path, manifest: Manifest) -> dict[str, str]:
    """The code of a package by variant: the shaders, and the WebAssembly text if the package
    contains it.
    """
    texts = {}
    wat = folder / f"model.{VARIANT}.wat"
    if wat.is_file():
        texts[VARIANT] = wat.read_text("utf-8")
    for program in manifest.programs.values():
        for variant, path in program.shaders.items():
            texts[variant] = inflate(path, (folder / path).read_bytes()).decode()
    return texts


def distinct(texts: Mapping[str, str]) -> dict[str, str]:
    """The distinct texts: a text that equals an earlier text is left out."""
    first: dict[str, str] = {}
    for name, text in texts.items():
        first.setdefault(text, name)
    return {name: text for text, name in first.items()}


def function_lines(text: str, names: Collection[str]) -> dict[str, range]:
    """The lines of functions. A function begins with the comments above it, and ends before the
    comments of the next function.
    """
    lines = text.split("\n")
    starts: list[tuple[str, int]] = []
    for match in _FUNCTION.finditer(text):
        name = match[1] or match[2]
        if name in names:
            starts.append((name, _head(lines, text.count("\n", 0, match.start()))))
    ends = [start for _, start in starts[1:]] + [len(lines)]
    return {name: range(start, end) for (name, start), end in zip(starts, ends, strict=True)}


def step_lines(text: str) -> dict[int, range]:
    """The lines of a module's program that run each step, by the step's number in the module."""
    lines = text.split("\n")
    ranges = {}
    for number, line in enumerate(lines):
        if match := _STEP.fullmatch(line):
            first = end = number + 1
            while end < len(lines) and lines[end].startswith("  "):
                end += 1
            ranges[int(match[1])] = range(first, end)
    return ranges


def _head(lines: list[str], line: int) -> int:
    """The first line of the comments and declarations directly above a function."""
    while line > 0 and lines[line - 1].startswith(("//", ";;", "@", "var<")):
        line -= 1
    return line
