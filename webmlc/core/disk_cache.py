"""A folder that keeps the results of builds, so that a later build need not compute them again.

In: a key, which is a hash of everything that decides a result. Out: the bytes of the result, or
`None`. An entry is a file that begins with its seal: the hash of its key and of its bytes. A file
that is damaged, that a killed build left incomplete, or that belongs to another key is therefore no
entry.

    cache = user_cache()
    data = cache.get(key)

The environment variable `WEBMLC_CACHE` names another folder than the user's own. With `off` or `0`
there is no cache. Keys contain `compiler_key`, a hash of the sources of webmlc. An entry of
another version, or from before an edit of the compiler, therefore never matches.
"""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from webmlc.core.dependencies import installed_version

LIMIT = 2 << 30
"""The most bytes that a cache keeps. Chosen by hand: some twenty models with their weights."""
LARGEST = LIMIT // 8
"""The most bytes of one entry, so that no model displaces all others. Chosen by hand."""
LIBRARIES = ("ml_dtypes", "numpy", "onnx", "protobuf", "wasmtime")
"""The packages whose code decides the results of a build."""

_DIGEST = hashlib.sha256().digest_size
_START_TIME = time.time()


@dataclass(frozen=True, slots=True)
class DiskCache:
    """The cache in `folder`. It is never an error that the folder cannot be read or written."""

    folder: Path
    limit: int = LIMIT

    def get(self, key: str) -> memoryview | None:
        """The bytes of an entry, which counts as used now; `None` if there is no such entry."""
        path = self._path(key)
        try:
            data = path.read_bytes()
            os.utime(path)
        except OSError:
            return None
        content = memoryview(data)[_DIGEST:]  # without a copy: weights are large
        seal = _seal(key, hashlib.sha256(content).digest())
        return content if data[:_DIGEST] == seal else None

    def use(self, key: str) -> None:
        """Count an entry as used now, if there is one."""
        with suppress(OSError):
            os.utime(self._path(key))

    def put(self, key: str, content: bytes, digest: bytes | None = None) -> None:
        """Keep the bytes of an entry, whose hash is `digest` if the caller knows it. Other
        processes see all of it or nothing.
        """
        if len(content) > min(LARGEST, self.limit):
            return
        path = self._path(key)
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=path.parent, suffix=".new")
            try:
                with open(handle, "wb") as file:
                    file.write(_seal(key, digest or hashlib.sha256(content).digest()))
                    file.write(content)  # not joined to the seal, which copies large weights
                os.replace(name, path)
            except OSError:  # the disk is full
                os.unlink(name)

    def evict(self) -> None:
        """Remove the entries that were not used for the longest time, down to the limit."""
        entries = sorted(self._entries())
        excess = sum(size for _, size, _ in entries) - self.limit
        for _, size, path in entries:
            if excess <= 0:
                return
            with suppress(OSError):
                path.unlink()
            excess -= size

    def clear(self) -> None:
        """Remove all entries."""
        for _, _, path in self._entries():
            with suppress(OSError):
                path.unlink()

    def size(self) -> tuple[int, int]:
        """The number of entries, and their bytes."""
        sizes = [size for _, size, _ in self._entries()]
        return len(sizes), sum(sizes)

    def _path(self, key: str) -> Path:
        return self.folder / key[:2] / key[2:]

    def _entries(self) -> Iterator[tuple[float, int, Path]]:
        """The time of the last use, the size, and the path of each entry."""
        with suppress(OSError):
            for path in self.folder.glob("??/*"):
                with suppress(OSError):
                    status = path.stat()
                    yield status.st_mtime, status.st_size, path


def _seal(key: str, digest: bytes) -> bytes:
    """The seal of an entry, which binds its bytes, by their hash, to its key."""
    return hashlib.sha256(key.encode() + digest).digest()


_ACTIVE: ContextVar[DiskCache | None] = ContextVar("active cache", default=None)


def active_cache() -> DiskCache | None:
    """The cache that the build of this thread uses for its kernels; `None` outside `use_cache`."""
    return _ACTIVE.get()


@contextmanager
def use_cache(cache: DiskCache | None) -> Iterator[None]:
    """Use a cache for the kernels that are compiled inside; with `None`, use no cache."""
    token = _ACTIVE.set(cache)
    try:
        yield
    finally:
        _ACTIVE.reset(token)


def user_cache() -> DiskCache | None:
    """The cache that `WEBMLC_CACHE` names, or the user's cache; `None` if the cache is off."""
    setting = os.environ.get("WEBMLC_CACHE", "")
    if setting in ("0", "off") or not compiler_key():
        return None
    try:
        return DiskCache(Path(setting) if setting else user_folder() / "builds")
    except RuntimeError:  # a user without a home, as in some containers
        return None


def user_folder() -> Path:
    """The folder for files that webmlc can make again, where the system keeps a user's caches.

    Raises `RuntimeError` if the user has no home, and no variable names another folder.
    """
    if sys.platform == "win32":
        local = os.environ.get("LOCALAPPDATA")
        return Path(local or Path.home() / "AppData" / "Local") / "webmlc"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "webmlc"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "webmlc"


@cache
def compiler_key() -> str:
    """A hash of the sources of the compiler and the runtime, and of the versions of libraries.

    The key is "" if a source was edited after this process began, because the process may have
    loaded the older source.
    """
    package = Path(__file__).parents[1]
    versions = map(installed_version, LIBRARIES)
    digest = hashlib.sha256(repr((sys.version_info[:2], *versions)).encode())
    for folder in (package, package.parent / "runtime_js"):
        for path in _source_files(str(folder)):
            with open(path, "rb") as file:
                if os.fstat(file.fileno()).st_mtime > _START_TIME:
                    return ""
                content = file.read()
            name = path.removeprefix(str(folder))
            digest.update(f"{name} {len(content)}\n".encode() + content)
    return digest.hexdigest()


def _source_files(folder: str) -> Iterator[str]:
    """The files under a folder, in order, without the files that Python compiled. It does not use
    `pathlib`, which takes three times as long: each command lists some hundred files.
    """
    for root, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        yield from (os.path.join(root, name) for name in sorted(names) if "." in name)
