"""Write a file whole, or not at all.

    replace_file(Path("report.html"), text.encode())

The bytes go to a new file in the same folder, which is renamed at the end. At any time, also after
a crash or when the disk is full, readers see either the older file or the new file.
"""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from pathlib import Path

from webmlc.core.errors import UserError


def replace_file(path: Path, data: bytes) -> None:
    """Write a file, and make its folder if the folder is missing. A link stays a link: the file
    that it names is written. A device such as `/dev/stdout` is written to.

    Raises `UserError` if the file cannot be written.
    """
    try:
        if path.exists() and not path.is_file() and not path.is_dir():
            path.write_bytes(data)
            return
        target = path.resolve()
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
        try:
            with open(handle, "wb") as file:
                file.write(data)
            os.chmod(name, _mode(target))
            os.replace(name, target)
        except BaseException:
            with suppress(OSError):
                os.unlink(name)
            raise
    except OSError as error:
        raise UserError(
            f"{path}: cannot write this file ({error.strerror or error}). Choose another place."
        ) from error


def _mode(target: Path) -> int:
    """The permissions of the older file, or of a new file: `mkstemp` lets only its owner read."""
    with suppress(OSError):
        return target.stat().st_mode & 0o777
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask
