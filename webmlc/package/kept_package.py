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
share them. The record also has what the reader of the model read besides the model's file, which
the key does not cover: the hashes of files (external weights) and the versions of libraries (those
that export the models of other frameworks). A package is restored only while all are the same.

To write a package again imports neither the module `manifest` nor numpy, which would take longer.
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
    """A file of the package is not in the cache any more."""


@dataclass(frozen=True, slots=True)
class RestoredPackage:
    """The text of a package's manifest, and the report of its build."""

    manifest: str
    report: dict[str, Any]


@dataclass(frozen=True, slots=True)
class KeptPackages:
    """The packages of a cache. One that is larger than an entry of the cache may be is not kept."""

    cache: DiskCache

    def restore(
        self, key: str, out: Path, folder: Path, *, force: bool = False
    ) -> RestoredPackage | None:
        """Write the package of a build to `out`, and repeat its warnings. `folder` is that of the
        model. Files in `out` that have the same bytes stay. Returns `None` if there is no such
        package.

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
        """Keep the package in `out`, its warnings (`texts`) and its report, and what the reader of
        its model in `folder` read. A package whose model changed while it was built is not kept.
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
    """True if all that the reader of a model read is the same now."""
    files, libraries = record["read"], record["libraries"]
    return all(installed_version(name) == version for name, version in libraries.items()) and all(
        file_hash(folder / path) == digest for path, digest in files.items()
    )


def _relative(path: Path, folder: Path) -> str:
    """The path of a file from the folder of the model, which may move with its weights."""
    return str(path.relative_to(folder) if path.is_relative_to(folder) else path.absolute())


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
