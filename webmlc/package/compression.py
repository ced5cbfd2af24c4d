"""Compress the files of a package that its runtime reads, and not the browser.

In: the bytes of a file. Out: these bytes in the zlib format (RFC 1950), which browsers decompress
natively. The name of a compressed file ends in `SUFFIX`. Many web servers take `.gz` for a transfer
encoding; no web server does so with `SUFFIX`.

    >>> inflate("a.deflate", deflate(b"aaaa", b"bb"))
    b'aaaabb'
    >>> inflate("a.txt", b"aaaa")
    b'aaaa'
"""

from __future__ import annotations

import zlib

from webmlc.core.errors import PackageError

SUFFIX = ".deflate"
"""The end of the name of a compressed file."""

SETTINGS = (
    (zlib.Z_DEFAULT_STRATEGY, 9),
    (zlib.Z_DEFAULT_STRATEGY, 6),
    (zlib.Z_FILTERED, 6),
    (zlib.Z_HUFFMAN_ONLY, 7),
)
"""The strategies and memory levels to try. Text and code need the first two settings. The merges of
a tokeniser repeat few strings, and the other settings make the merges 7 % smaller.
"""


HEADER = b"\x78\xda"
"""The first bytes of the format: a window of 32 KB, and the slowest compression."""


def deflate(*parts: bytes) -> bytes:
    """Compress the parts, which have little in common, each with its best setting."""
    modes = [zlib.Z_FULL_FLUSH] * (len(parts) - 1) + [zlib.Z_FINISH]
    blocks = [_blocks(part, mode) for part, mode in zip(parts, modes, strict=True)]
    checksum = zlib.adler32(b"".join(parts)).to_bytes(4, "big")
    return b"".join((HEADER, *blocks, checksum))


def _blocks(part: bytes, mode: int) -> bytes:
    """The shortest blocks of a part. `mode` is the flush mode at their end (`zlib.Z_FINISH`: no
    part follows).
    """
    results = []
    for strategy, memory in SETTINGS:
        compressor = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS, memory, strategy)
        results.append(compressor.compress(part) + compressor.flush(mode))
    return min(results, key=len)


def inflate(path: str, data: bytes) -> bytes:
    """The contents of a file with this name. Raises `PackageError` if it cannot be decompressed."""
    if not path.endswith(SUFFIX):
        return data
    try:
        return zlib.decompress(data)
    except zlib.error as error:
        raise PackageError(f"{path}: cannot be decompressed ({error})") from error
