"""Refuse a program whose run does not fit into 32-bit memory.

In: the bytes that a run needs, and the program's buffers. Out: nothing, or a `UserError` that names
the largest buffer, its size and its ONNX nodes. Shape inference refuses a single value that is too
large, and the hosts refuse sizes that are known only at run time.
"""

from __future__ import annotations

from collections.abc import Iterable

from webmlc.core.errors import UserError
from webmlc.core.machine import ADDRESSABLE_BYTES
from webmlc.package.manifest import Buffer, Step


def check_total(total: int, buffers: Iterable[Buffer], steps: Iterable[Step]) -> None:
    """Raise `UserError` if a run needs `total` bytes and memory cannot hold them."""
    if total <= ADDRESSABLE_BYTES:
        return
    largest = max(buffers, key=_bytes, default=None)
    reason = "" if largest is None else f" (the largest buffer: {_describe(largest, steps)})"
    raise UserError(
        f"the model cannot be built: a run needs {total:,} bytes{reason}, more than the 4 GiB that "
        "WebAssembly addresses; make the model's sizes smaller, or split it into two models"
    )


def _bytes(buffer: Buffer) -> int:
    """The bytes of a buffer, or 0 if they depend on a symbol."""
    return buffer.static_bytes or 0


def _describe(buffer: Buffer, steps: Iterable[Step]) -> str:
    shape = ", ".join(map(str, buffer.shape))
    text = f"{buffer.name!r}, {buffer.dtype}[{shape}] of {_bytes(buffer):,} bytes"
    origin = next((step.origin for step in steps if buffer.name in step.written), ())
    return f"{text}, made by node {', '.join(map(repr, origin))}" if origin else text
