"""Assemble WAT text into the bytes of a module.

In: the text of a module. Out: its binary without custom sections. Names serve people who read the
text, and would only make the download larger.

    >>> assemble("(module)")
    b'\\x00asm\\x01\\x00\\x00\\x00'
"""

from __future__ import annotations

import os
from functools import cache

import wasmtime

from webmlc.core.errors import InternalError

_HEADER = 8
"""The bytes of the magic number and the version."""
_CUSTOM_SECTION = 0
"""The id of a custom section."""


def assemble(text: str) -> bytes:
    """Assemble a WAT module, and validate it. Raises `InternalError` if it is not valid."""
    try:
        binary = bytes(wasmtime.wat2wasm(text))
        wasmtime.Module.validate(wasmtime.Engine(engine_config()), binary)
    except wasmtime.WasmtimeError as error:
        raise InternalError(f"wasm: the emitted text does not assemble: {error}") from error
    return strip_custom_sections(binary)


def engine_config() -> wasmtime.Config:
    """The features of WebAssembly that emitted modules use.

    A process uses one thread if it was forked after its parent had compiled: it has no copy of the
    threads of wasmtime's compiler, and would wait for them.
    """
    config = wasmtime.Config()
    config.wasm_simd = True
    config.wasm_relaxed_simd = True
    config.wasm_threads = True
    config.shared_memory = True
    config.parallel_compilation = os.getpid() == _compiler_process()
    return config


@cache
def _compiler_process() -> int:
    """The process in which wasmtime's compiler was first configured."""
    return os.getpid()


def strip_custom_sections(binary: bytes) -> bytes:
    """Return `binary` without its custom sections (names, producers)."""
    sections = [binary[:_HEADER]]
    position = _HEADER
    while position < len(binary):
        start, section_id = position, binary[position]
        size, position = _read_unsigned(binary, position + 1)
        position += size
        if section_id != _CUSTOM_SECTION:
            sections.append(binary[start:position])
    return b"".join(sections)


def _read_unsigned(data: bytes, position: int) -> tuple[int, int]:
    """An unsigned LEB128 number and the position after it."""
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, position
