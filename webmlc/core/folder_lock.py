"""Hold the lock of a folder, so that builds into one folder wait for each other.

    with locked_folder(Path("build/digits")):
        ...                                     # no other build writes there

The system frees the lock when a process ends, however it ends. On Linux and macOS, the folder
itself is locked (`flock`). Windows has no lock of folders, so a temporary file is locked there.
"""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

RETRY_SECONDS = 0.05
"""The seconds to wait before the next try, on a system that cannot wait for a lock by itself."""


@contextmanager
def locked_folder(folder: Path) -> Iterator[None]:
    """Make the folder if it is missing, and hold its lock. Where a file system has no locks, this
    does not wait for anybody.

    Raises `OSError` if there can be no such folder.
    """
    handle = _open_locked(folder)
    try:
        yield
    finally:
        os.close(handle)


def _open_locked(folder: Path) -> int:
    """A file descriptor that holds the lock of the folder which the path names now: while this
    process waited, another may have removed the folder and made it again.
    """
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        handle = -1
        with suppress(FileNotFoundError):
            handle = _open(folder)
            _lock(handle)
            if sys.platform == "win32" or os.path.samestat(os.fstat(handle), os.stat(folder)):
                return handle
        if handle >= 0:
            os.close(handle)


if sys.platform == "win32":
    import msvcrt

    def _open(folder: Path) -> int:
        name = hashlib.sha256(str(folder.resolve()).casefold().encode()).hexdigest()[:16]
        return os.open(Path(tempfile.gettempdir()) / f"webmlc-{name}.lock", os.O_CREAT | os.O_RDWR)

    def _lock(handle: int) -> None:
        while True:
            with suppress(OSError):
                msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
                return
            time.sleep(RETRY_SECONDS)

else:
    import fcntl

    def _open(folder: Path) -> int:
        return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def _lock(handle: int) -> None:
        with suppress(OSError):  # some network file systems have no locks
            fcntl.flock(handle, fcntl.LOCK_EX)
