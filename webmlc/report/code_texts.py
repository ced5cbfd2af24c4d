"""Find the emitted code of a package, and the lines of its kernels.

A build knows the lines of each kernel (`target.line_ranges`). A package on disk holds only the
texts, so they are searched for the beginnings of functions.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path

from webmlc.package.compression import inflate
from webmlc.package.manifest import Manifest

_FUNCTION = re.compile(r"^(?:fn (\w+)\(|\(func \$([^\s()]+))", re.MULTILINE)
"""The beginning of a function in WGSL and in WAT."""


def package_texts(folder: Path, manifest: Manifest) -> dict[str, str]:
    """The code of a package by the name that kernels give: the shaders, and the WebAssembly text if
    the package was built with it.
    """
    texts = {}
    wat = folder / "model.relaxed.wat"
    if wat.is_file():
        texts["relaxed"] = wat.read_text("utf-8")
    for program in manifest.programs.values():
        if program.shaders is not None:
            data = (folder / program.shaders).read_bytes()
            texts["webgpu"] = inflate(program.shaders, data).decode()
    return texts


def function_lines(text: str, names: Collection[str]) -> dict[str, range]:
    """The lines of functions, from the comments above each to those above the next one."""
    lines = text.split("\n")
    starts: list[tuple[str, int]] = []
    for match in _FUNCTION.finditer(text):
        name = match[1] or match[2]
        if name in names:
            starts.append((name, _head(lines, text.count("\n", 0, match.start()))))
    ends = [start for _, start in starts[1:]] + [len(lines)]
    return {name: range(start, end) for (name, start), end in zip(starts, ends, strict=True)}


def _head(lines: list[str], line: int) -> int:
    """The first line of the comments and declarations directly above a function."""
    while line > 0 and lines[line - 1].startswith(("//", ";;", "@", "var<")):
        line -= 1
    return line
