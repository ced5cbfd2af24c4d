"""An entry of the cache is what its key decides, or it is no entry."""

from __future__ import annotations

import errno
import hashlib
import os
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

from webmlc.core.disk_cache import DiskCache

ENTRIES = {"aa1": b"sine", "aa2": b"cosine", "bb3": b"tangent"}


@pytest.fixture
def cache(tmp_path: Path) -> DiskCache:
    cache = DiskCache(tmp_path)
    for key, content in ENTRIES.items():
        cache.put(key, content, hashlib.sha256(content).digest() if key == "aa2" else None)
    return cache


def file_of(cache: DiskCache, key: str) -> Path:
    return cache.folder / key[:2] / key[2:]


def test_an_entry_of_another_key_is_none(cache: DiskCache) -> None:
    assert {key: cache.get(key) for key in ENTRIES} == ENTRIES
    files = {key: file_of(cache, key).read_bytes() for key in ENTRIES}
    for key, other in permutations(ENTRIES, 2):
        file_of(cache, key).write_bytes(files[other])
        assert cache.get(key) is None
        file_of(cache, key).write_bytes(files[key])
        assert cache.get(key) == ENTRIES[key]


def test_a_wrong_hash_of_the_caller_makes_no_entry(cache: DiskCache) -> None:
    cache.put("cc4", b"sine", hashlib.sha256(b"cosine").digest())
    assert cache.get("cc4") is None


@pytest.mark.parametrize("content", [b"", b"short", bytes(32), b"sine"])
def test_a_file_that_no_cache_wrote_is_no_entry(cache: DiskCache, content: bytes) -> None:
    file_of(cache, "aa1").write_bytes(content)
    assert cache.get("aa1") is None


def test_a_full_disk_leaves_no_files(cache: DiskCache, monkeypatch: pytest.MonkeyPatch) -> None:
    before = sorted(cache.folder.rglob("*"))

    def fail(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    cache.put("aa4", b"secant")
    assert cache.get("aa4") is None
    assert sorted(cache.folder.rglob("*")) == before
