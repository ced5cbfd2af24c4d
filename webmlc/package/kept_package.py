"""Keep packages in the cache of builds, and write them again for an unchanged model.

In: the key of a build, which is a hash of the model, of all options and of the compiler. Out: the
package in its folder, as the build wrote it, and its report (`host.report.package_report`).
`webmlc.cached_build` asks before the compiler is even imported, and keeps a package after a build.

    packages = KeptPackages(cache)
    report = packages.restore(key, Path("build/model"), model.parent)
    if report is None:
        manifest = write_package(...)
        packages.keep(key, Path("build/model"), manifest, ...)

The record of a build lists the files of its package by their hashes. The cache stores the bytes of
each file under its hash. Packages with equal files, such as the weights of two builds for different
targets, share the stored bytes.

The key covers only the model's file. The record therefore also has the hashes of other files that
the reader read (external weights), and the versions of the libraries that exported a model of
another framework. A package is restored only while these hashes and versions are the same.

Restoring a package imports neither the module `manifest` nor numpy: the imports would take longer.
"""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from webmlc.core.dependencies import Dependencies, FileState, installed_version
from webmlc.core.disk_cache import LARGEST, DiskCache
from webmlc.core.errors import ModelWarning
from webmlc.core.package_files import MANIFEST, file_hash
from webmlc.package.replace_package import replaced_package

if TYPE_CHECKING:
    from webmlc.package.manifest import Manifest


class _MissingError(Exception):
    """The cache no longer has a file of the package."""


@dataclass(frozen=True, slots=True)
class RestoredPackage:
    """The text of a package's manifest, and the report of its build."""

    manifest: str
    report: dict[str, Any]


@dataclass(frozen=True, slots=True)
class KeptPackages:
    """The packages of a cache. A package larger than the largest cache entry is not kept."""

    cache: DiskCache

    def restore(
        self, key: str, out: Path, folder: Path, *, force: bool = False
    ) -> RestoredPackage | None:
        """Write the package of a build to `out`, and repeat its warnings. `folder` holds the model.
        Files in `out` that have the same bytes are linked, not written again. Returns `None` if
        there is no such package.

        Raises `PackageError` if `out` holds files that no build wrote, unless `force`.
        """
        record = self._record(key)
        if record is None or not _are_unchanged(record, folder):
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
                manifest = (staging / MANIFEST).read_text("utf-8")
        except _MissingError:
            return None
        for text in record["warnings"]:
            warnings.warn(text, ModelWarning, stacklevel=3)
        return RestoredPackage(manifest, record["report"])

    def keep(
        self,
        key: str,
        out: Path,
        manifest: Manifest,
        folder: Path,
        dependencies: Dependencies,
        texts: Sequence[str],
        report: Mapping[str, Any],
    ) -> None:
        """Keep the package in `out`, its warnings (`texts`) and its report. `dependencies` lists
        the files and libraries that the reader of the model in `folder` read. A package is not
        kept if one of these files changed during the build.
        """
        if sum(file.bytes for file in manifest.files.values()) > LARGEST:
            return
        hashes = {_relative(path, folder): file_hash(path) for path in dependencies.files}
        if any(FileState.of(path) != state for path, state in dependencies.files.items()):
            return
        files = {path: file.sha256 for path, file in manifest.files.items()}
        text = (out / MANIFEST).read_bytes()
        files[MANIFEST] = hashlib.sha256(text).hexdigest()
        for path, digest in files.items():
            self.cache.put(digest, (out / path).read_bytes(), bytes.fromhex(digest))
        record = {
            "files": files,
            "read": hashes,
            "libraries": {name: installed_version(name) for name in dependencies.libraries},
            "warnings": list(texts),
            "report": report,
        }
        self.cache.put(key, json.dumps(record).encode())

    def _record(self, key: str) -> dict[str, Any] | None:
        data = self.cache.get(key)
        if data is None:
            return None
        record: dict[str, Any] = json.loads(bytes(data))
        return record


def _are_unchanged(record: Mapping[str, Any], folder: Path) -> bool:
    """True if all files and libraries that the reader of a model read are unchanged."""
    files, libraries = record["read"], record["libraries"]
    return all(installed_version(name) == version for name, version in libraries.items()) and all(
        file_hash(folder / path) == digest for path, digest in files.items()
    )


def _relative(path: Path, folder: Path) -> str:
    """The path of a file relative to the model's folder, which may move with its weights."""
    return str(path.relative_to(folder) if path.is_relative_to(folder) else path.absolute())


def _link(old: Path, new: Path, digest: str) -> bool:
    """Link a file of the older package into the new package, if the file has the hash `digest`.
    Large weights then need not be written again. Returns `False` if the bytes differ, or if the
    system has no links.
    """
    if old.is_symlink() or file_hash(old) != digest:
        return False
    try:
        os.link(old, new)
    except OSError:
        return False
    return True
