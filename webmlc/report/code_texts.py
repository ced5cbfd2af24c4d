"""Find the emitted code of a package, and the lines of its kernels.

A build knows the lines of each kernel (`target.line_ranges`). A package on disk holds only the
texts, so its texts are searched for the beginnings of functions. In both cases, the text is
searched for the lines that call kernels.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from pathlib import Path

from webmlc.package.compression import inflate
from webmlc.package.manifest import Manifest
from webmlc.report.programs import VARIANT

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
