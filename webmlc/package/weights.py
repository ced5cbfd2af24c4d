"""Write constants as safetensors files, and read them.

In: named arrays. Out: `.safetensors` files, which any safetensors library can read, and a
`WeightFile` with spans and hashes for each. Every tensor starts at a multiple of 256 bytes, so that
a host can copy it directly to its final place. No file exceeds a size limit.

    >>> import numpy as np, tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> [file] = write_weights(folder, "weights", {"b": np.zeros(8, "float32")})
    >>> file.path, file.tensors
    ('weights.safetensors', {'b': (256, 288)})

The format allows no gap between tensors, so the padding consists of additional tensors (`__pad_0`,
...). The header is padded with spaces, as the format permits.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from webmlc.core.dtypes import DType
from webmlc.core.errors import PackageError
from webmlc.package.manifest import WeightFile
from webmlc.package.memory_plan import CONSTANT_ALIGNMENT
from webmlc.package.placement import align

SHARD_BYTES = 512 << 20
"""The largest amount of data in one weights file, in bytes.

Constants beyond it go to further files. Chosen by hand.
"""
CHUNK_BYTES = 7 << 17
"""The number of bytes that one hash covers, and that a host hashes at once.

Browsers' allocators reuse blocks of less than a megabyte. Measured in Chromium, which copies the
data to hash it: a chunk of 1 MiB took 1.2 ms, and a chunk of 896 KiB took 0.7 ms.
"""

CODES: Mapping[DType, str] = {
    DType.bool: "BOOL",
    DType.int8: "I8",
    DType.uint8: "U8",
    DType.int16: "I16",
    DType.uint16: "U16",
    DType.int32: "I32",
    DType.uint32: "U32",
    DType.int64: "I64",
    DType.uint64: "U64",
    DType.float16: "F16",
    DType.bfloat16: "BF16",
    DType.float32: "F32",
    DType.float64: "F64",
    DType.float8_e4m3fn: "F8_E4M3",
    DType.float8_e4m3fnuz: "F8_E4M3FNUZ",
    DType.float8_e5m2: "F8_E5M2",
    DType.float8_e5m2fnuz: "F8_E5M2FNUZ",
    DType.float8_e8m0fnu: "F8_E8M0",
}
"""The name of each element type in safetensors. Types of less than a byte are stored as bytes."""

Array = NDArray[Any]


def write_weights(
    folder: Path, stem: str, tensors: Mapping[str, Array], limit: int = SHARD_BYTES
) -> tuple[WeightFile, ...]:
    """Write `tensors`, in order, as `<stem>.safetensors` or as numbered shards.

    Each shard has at most `limit` bytes of data. A tensor is never split: a larger tensor has a
    separate shard.
    """
    shards: list[dict[str, Array]] = []
    size = limit + 1
    for name, array in tensors.items():
        bytes_ = align(array.nbytes, CONSTANT_ALIGNMENT)
        if size + bytes_ > limit:
            shards.append({})
            size = 0
        shards[-1][name] = array
        size += bytes_
    count = len(shards)
    return tuple(
        _write_file(
            folder,
            f"{stem}.safetensors" if count == 1 else f"{stem}-{i + 1:05}-of-{count:05}.safetensors",
            shard,
        )
        for i, shard in enumerate(shards)
    )


def _write_file(folder: Path, path: str, tensors: Mapping[str, Array]) -> WeightFile:
    entries: dict[str, Any] = {}
    position = pads = 0
    for index, (name, array) in enumerate(tensors.items()):
        begin, position = position, position + array.nbytes
        entries[name] = {
            "dtype": CODES.get(DType.of(array.dtype), "U8"),
            "shape": list(array.shape),
            "data_offsets": [begin, position],
        }
        padded_end = align(position, CONSTANT_ALIGNMENT)
        if padded_end > position and index + 1 < len(tensors):
            pad = {
                "dtype": "U8",
                "shape": [padded_end - position],
                "data_offsets": [position, padded_end],
            }
            entries[f"__pad_{pads}"] = pad
            pads, position = pads + 1, padded_end
    header = json.dumps(entries, separators=(",", ":")).encode()
    header += b" " * (align(8 + len(header), CONSTANT_ALIGNMENT) - 8 - len(header))
    start = 8 + len(header)
    file_hash, chunk_hashes = hashlib.sha256(), _Chunks()
    # Hashing takes the most time, and lets another thread run meanwhile.
    with (folder / path).open("wb") as file, ThreadPoolExecutor(1) as thread:
        for piece in _pieces(header, tensors, entries):
            chunks = thread.submit(chunk_hashes.update, piece)
            file.write(piece)
            file_hash.update(piece)
            chunks.result()
    spans = {
        name: (start + entries[name]["data_offsets"][0], start + entries[name]["data_offsets"][1])
        for name in tensors
    }
    return WeightFile(
        path, start + position, file_hash.hexdigest(), CHUNK_BYTES, chunk_hashes.hexdigest(), spans
    )


def _pieces(
    header: bytes, tensors: Mapping[str, Array], entries: Any
) -> Iterator[bytes | memoryview]:
    """Yield the bytes of the file in order. Padding entries are zeros."""
    yield len(header).to_bytes(8, "little")
    yield header
    for name, entry in entries.items():
        if name in tensors:
            array = np.ascontiguousarray(tensors[name]).reshape(-1)
            yield array.astype(array.dtype.newbyteorder("<"), copy=False).view(np.uint8).data
        else:
            yield bytes(entry["shape"][0])


class _Chunks:
    """The SHA-256 hash of the hashes of consecutive chunks of `CHUNK_BYTES` of a stream."""

    def __init__(self) -> None:
        self.hashes = hashlib.sha256()
        self.current = hashlib.sha256()
        self.room = CHUNK_BYTES

    def update(self, data: bytes | memoryview) -> None:
        view = memoryview(data)
        while view:
            self.current.update(view[: self.room])
            length = min(self.room, len(view))
            view, self.room = view[length:], self.room - length
            if self.room == 0:
                self.hashes.update(self.current.digest())
                self.current, self.room = hashlib.sha256(), CHUNK_BYTES

    def hexdigest(self) -> str:
        """The hash, after the last update."""
        if self.room < CHUNK_BYTES:
            self.hashes.update(self.current.digest())
        return self.hashes.hexdigest()


def read_weights(folder: Path, files: tuple[WeightFile, ...]) -> dict[str, memoryview]:
    """Read the bytes of every tensor.

    Raises `PackageError` if a file is missing, incomplete or altered.
    """
    tensors: dict[str, memoryview] = {}
    for file in files:
        data = memoryview(read_file(folder, file.path, file.bytes, file.sha256))
        for name, (begin, end) in file.tensors.items():
            tensors[name] = data[begin:end]
    return tensors


def read_file(folder: Path, path: str, size: int, sha256: str) -> bytes:
    """Read and verify a file of a package.

    Raises `PackageError` if the file is missing, has another size or is altered.
    """
    file = folder / path
    if not file.resolve().is_relative_to(folder.resolve()):
        raise PackageError(f"{path}: outside the package's folder")
    try:
        data = file.read_bytes()
    except OSError as error:
        raise PackageError(
            f"{path}: cannot be read ({error.strerror}); build the package again"
        ) from error
    if len(data) != size:
        raise PackageError(f"{path}: has {len(data)} bytes, expected {size}: incomplete or altered")
    if hashlib.sha256(data).hexdigest() != sha256:
        raise PackageError(f"{path}: its SHA-256 differs from the manifest's: corrupted or altered")
    return data
