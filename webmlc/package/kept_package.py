"""Keep packages in the cache of builds, and write them again for an unchanged model.

In: the key of a build, which is a hash of the model, of all options and of the compiler. Out: the
package in its folder, as the build wrote it, and its report (`host.report.package_report`).
`webmlc.cached_build` asks before the compiler is even imported, and keeps a package after a build.

    packages = KeptPackages(cache)
    report = packages.restore(key, Path("build/model"), model.parent)
    if report is None:
        manifest = write_package(...)
        packages.keep(key, Path("build/model"), manifest, ...)

The record of a build lists the files of its package by their hashes, under which the cache has
their bytes. Packages with equal files, such as the weights of two builds for different targets,
share them. The record also has the hashes of the files that the model refers to (its external
weights), whose bytes the key does not cover: a package is restored only while they are unchanged.

To write a package again imports neither the module `manifest` nor numpy, which would take longer.
"""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from webmlc.core.disk_cache import LARGEST, DiskCache
from webmlc.core.errors import ModelWarning
from webmlc.package.file_names import MANIFEST
from webmlc.package.replace_package import replaced_package

if TYPE_CHECKING:
    from webmlc.package.manifest import Manifest


class _MissingError(Exception):
    """A file of the package is not in the cache any more."""


@dataclass(frozen=True, slots=True)
class KeptPackages:
    """The packages of a cache. One that is larger than an entry of the cache may be is not kept."""

    cache: DiskCache

    def restore(
        self, key: str, out: Path, folder: Path, *, force: bool = False
    ) -> dict[str, Any] | None:
        """Write the package of a build to `out`, repeat its warnings, and return its report.
        `folder` is that of the model. Files in `out` that have the same bytes stay. Returns `None`
        if there is no such package.

        Raises `PackageError` if `out` holds files that no build wrote, unless `force`.
        """
        record = self._record(key)
        if record is None or any(
            file_hash(folder / path) != digest for path, digest in record["read"].items()
        ):
            return None
        try:
            with replaced_package(out, force=force) as staging:
                for path, digest in record["files"].items():
                    if _link(out / path, staging / path, digest):
                        self.cache.use(digest)
                        continue
                    data = self.cache.get(digest)
                    if data is None:
                        raise _MissingError
                    (staging / path).write_bytes(data)
        except _MissingError:
            return None
        for text in record["warnings"]:
            warnings.warn(text, ModelWarning, stacklevel=3)
        report: dict[str, Any] = record["report"]
        return report

    def keep(
        self,
        key: str,
        out: Path,
        manifest: Manifest,
        folder: Path,
        read: Iterable[str],
        texts: Sequence[str],
        report: Mapping[str, Any],
    ) -> None:
        """Keep the package in `out`, its warnings (`texts`) and its report, and the hashes of the
        files that its model in `folder` refers to (`read`).
        """
        if sum(file.bytes for file in manifest.files.values()) > LARGEST:
            return
        files = {path: file.sha256 for path, file in manifest.files.items()}
        text = (out / MANIFEST).read_bytes()
        files[MANIFEST] = hashlib.sha256(text).hexdigest()
        for path, digest in files.items():
            self.cache.put(digest, (out / path).read_bytes(), bytes.fromhex(digest))
        hashes = {path: file_hash(folder / path) for path in read}
        record = {"files": files, "read": hashes, "warnings": list(texts), "report": report}
        self.cache.put(key, json.dumps(record).encode())

    def _record(self, key: str) -> dict[str, Any] | None:
        data = self.cache.get(key)
        if data is None:
            return None
        record: dict[str, Any] = json.loads(bytes(data))
        return record


def _link(old: Path, new: Path, digest: str) -> bool:
    """Make a file of the package in the folder one of the new package, if it has the same bytes.
    Large weights need not be written again. Returns `False` if it has others, or the system has no
    links.
    """
    if old.is_symlink() or file_hash(old) != digest:
        return False
    try:
        os.link(old, new)
    except OSError:
        return False
    return True


def file_hash(path: Path) -> str:
    """The hash of a file; "" if it cannot be read, which is unlike any hash."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return ""
