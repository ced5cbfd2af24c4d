"""Compile every WGSL text that a test emits with naga and with Tint.

In: the texts that `emit_shaders` returns, in any test of the session (`watch` is called once per
process). Out: nothing, or an AssertionError in the test that emitted the text; it shows the line,
the kernel and the ONNX nodes.

    naga refuses a shader, line 12: no definition in scope for identifier: `n`
      kernel matmul, of ONNX node /dense/MatMul
          c0 = c0 + in0_0[n];
                          ^

naga is the compiler of wgpu-py. Tint is the compiler of Chromium: one process of Dawn for Node
(`tint.mjs`) answers as long as this process lives. Each text is compiled once per process.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from webmlc.host.webgpu_adapter import for_naga
from webmlc.target.webgpu import emit_shaders

ROOT = Path(__file__).parents[1]
_POSITION = re.compile(r"wgsl:(\d+):(\d+)")
_FIRST_LINE = re.compile(r"Shader '\w*' parsing error: (.*)|^ *error: (.*)", re.MULTILINE)

compiled: set[str] = set()
"""The SHA-256 digests of the texts that both compilers accepted."""


@dataclass(frozen=True, slots=True)
class Message:
    """A compiler's message. Lines and columns count from 1; line 0 is the whole text."""

    text: str
    line: int
    column: int


class CompiledShaders(emit_shaders.Shaders):
    """`Shaders` whose text both compilers accept."""

    def __init__(
        self,
        text: str,
        entries: Mapping[str, emit_shaders.Entry],
        lines: Mapping[str, range] | None = None,
        features: tuple[str, ...] = (),
    ) -> None:
        super().__init__(text, entries, lines or {}, features)
        compile_shaders(text)


def watch() -> None:
    """Have `emit_shaders` compile every text before it returns it, in this process."""
    emit_shaders.Shaders = CompiledShaders  # type: ignore[misc]


def compile_shaders(text: str) -> None:
    """Compile a WGSL text with both compilers.

    Raises AssertionError where one refuses it, RuntimeError where one is not installed.
    """
    digest = hashlib.sha256(text.encode()).hexdigest()
    if digest in compiled:
        return
    for name, messages in (("naga", naga(text)), ("Tint", tint(text))):
        if messages:
            raise AssertionError("\n".join(describe(name, text, m) for m in messages))
    compiled.add(digest)


def naga(text: str) -> list[Message]:
    """The errors of naga."""
    import wgpu  # type: ignore[import-untyped]

    try:
        _wgpu_device().create_shader_module(code=for_naga(text))
    except wgpu.GPUValidationError as error:
        whole = str(error)
        reason = _FIRST_LINE.search(whole)
        position = _POSITION.search(whole)
        line, column = (int(position[1]), int(position[2])) if position else (0, 0)
        return [Message(next(filter(None, reason.groups())) if reason else whole, line, column)]
    return []


def tint(text: str) -> list[Message]:
    """The errors and warnings of Tint."""
    process = _tint_process()
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(json.dumps(text) + "\n")
    process.stdin.flush()
    answer = process.stdout.readline()
    if not answer:
        raise RuntimeError(f"the Tint process ended with exit code {process.wait()}")
    return [Message(**message) for message in json.loads(answer)]


def describe(compiler: str, text: str, message: Message) -> str:
    """A message with the line that it is about, and the kernel and nodes that the line is of."""
    head = f"{compiler} refuses a shader, line {message.line}: {message.text}"
    lines = text.splitlines()[: message.line]
    if not lines:
        return head
    remarks = [line for line in lines if line.startswith("// ")]
    kernel, _, nodes = (remarks or ["// (none)"])[-1].removeprefix("// ").partition(": ")
    culprit = lines[-1]
    before = culprit[: message.column - 1]
    pointer = " " * len(before) + "^"
    return f"{head}\n  kernel {kernel}, of ONNX node {nodes}\n    {culprit}\n    {pointer}"


@cache
def _wgpu_device() -> Any:
    """A device with the default limits of WebGPU, and the features that shaders may use."""
    from tests.target.webgpu import gpu

    return gpu.device()


@cache
def _tint_process() -> subprocess.Popen[str]:
    if not (ROOT / "node_modules" / "webgpu").is_dir():
        raise RuntimeError("Tint is missing: run `npm ci` (make test does)")
    return subprocess.Popen(
        ["node", str(Path(__file__).with_name("tint.mjs"))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "NODE_PATH": str(ROOT / "node_modules")},
    )
