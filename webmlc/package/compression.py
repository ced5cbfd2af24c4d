"""Compress the files of a package that its runtime reads, and not the browser.

In: the bytes of a file. Out: the same in the format of zlib (RFC 1950), which browsers decompress
natively. The name of a compressed file ends in `SUFFIX`, which no web server takes for an encoding
of the transfer, as many do with `.gz`.

    >>> inflate("a.deflate", deflate(b"aaaa"))
    b'aaaa'
    >>> inflate("a.txt", b"aaaa")
    b'aaaa'
"""

from __future__ import annotations

import zlib

from webmlc.core.errors import PackageError

SUFFIX = ".deflate"
"""The end of the name of a compressed file."""

SETTINGS = ((zlib.Z_DEFAULT_STRATEGY, 9), (zlib.Z_DEFAULT_STRATEGY, 6), (zlib.Z_FILTERED, 6))
"""The strategies and memory levels to try. Text and code need the first two. The merges of a
tokeniser repeat no strings, and the last one makes them 5 % smaller.
"""


def deflate(data: bytes) -> bytes:
    """Compress data with each of the settings, and return the shortest result."""
    results = []
    for strategy, memory in SETTINGS:
        compressor = zlib.compressobj(9, zlib.DEFLATED, zlib.MAX_WBITS, memory, strategy)
        results.append(compressor.compress(data) + compressor.flush())
    return min(results, key=len)


def inflate(path: str, data: bytes) -> bytes:
    """The contents of a file with this name. Raises `PackageError` if it cannot be decompressed."""
    if not path.endswith(SUFFIX):
        return data
    try:
        return zlib.decompress(data)
    except zlib.error as error:
        raise PackageError(f"{path}: cannot be decompressed ({error})") from error
