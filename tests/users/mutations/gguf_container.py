"""GGUF files as records that can be damaged: any key, type, count or offset may be wrong.

    container = parse(path.read_bytes())
    container.entries[0].kind = 99
    container.tensors[3].offset += 1
    damaged = container.data()

The layout is that of `docs/gguf.md` in ggml.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

SCALARS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
"""The formats of scalars in the module `struct`, by kind."""
STRING, ARRAY = 8, 9
"""The kinds of values that have a length."""
WORDS = 1 << 64
"""The first number that is too large for 64 bits."""
ALIGNMENT = 32
"""The multiple of bytes at which tensors begin."""


@dataclass
class Entry:
    """A key of the metadata. `payload` is the value behind its kind."""

    key: bytes
    kind: int
    payload: bytes


@dataclass
class TensorInfo:
    """The place of a tensor. `sizes` begin with the innermost one."""

    name: bytes
    sizes: list[int]
    kind: int
    offset: int


@dataclass
class Container:
    """A whole file. The counts are those that the header states."""

    magic: bytes
    version: int
    tensor_count: int
    entry_count: int
    entries: list[Entry]
    tensors: list[TensorInfo]
    weights: bytearray

    def data(self) -> bytes:
        """The bytes of the file."""
        counts = (self.tensor_count % WORDS, self.entry_count % WORDS)
        head = self.magic + struct.pack("<IQQ", self.version, *counts)
        for entry in self.entries:
            head += text(entry.key) + struct.pack("<I", entry.kind) + entry.payload
        for tensor in self.tensors:
            sizes = [size % WORDS for size in tensor.sizes]
            head += text(tensor.name) + struct.pack(f"<I{len(sizes)}Q", len(sizes), *sizes)
            head += struct.pack("<IQ", tensor.kind, tensor.offset % WORDS)
        return head + bytes(-len(head) % ALIGNMENT) + bytes(self.weights)


def text(value: bytes) -> bytes:
    """A string with its length before it."""
    return struct.pack("<Q", len(value)) + value


def parse(data: bytes) -> Container:
    """The records of a file that is whole."""
    version, tensor_count, entry_count = struct.unpack_from("<IQQ", data, 4)
    position = 24

    def read_text() -> bytes:
        nonlocal position
        (length,) = struct.unpack_from("<Q", data, position)
        position += 8 + length
        return data[position - length : position]

    def skip(kind: int) -> None:
        nonlocal position
        if kind == STRING:
            read_text()
        elif kind == ARRAY:
            inner, count = struct.unpack_from("<IQ", data, position)
            position += 12
            for _ in range(count):
                skip(inner)
        else:
            position += struct.calcsize(SCALARS[kind])

    entries = []
    for _ in range(entry_count):
        key = read_text()
        (kind,) = struct.unpack_from("<I", data, position)
        position += 4
        start = position
        skip(kind)
        entries.append(Entry(key, kind, data[start:position]))
    tensors = []
    for _ in range(tensor_count):
        name = read_text()
        (rank,) = struct.unpack_from("<I", data, position)
        *sizes, tensor_kind, low, high = struct.unpack_from(f"<{rank}QIII", data, position + 4)
        position += 4 + 8 * rank + 12
        tensors.append(TensorInfo(name, sizes, tensor_kind, low | high << 32))
    position += -position % ALIGNMENT
    weights = bytearray(data[position:])
    return Container(data[:4], version, tensor_count, entry_count, entries, tensors, weights)
