"""Restore a package that an earlier build wrote, instead of building it again.

In: the model and the options of `compile.build_package`, which calls this module. Out: the package,
or nothing. The key of a package in the cache (`core.disk_cache`) is a hash of the name and the
bytes of the model's file, of the deciding options, and of the compiler. A build also depends on
other files and libraries that the model's reader uses: `package.kept_package` compares these.

The command line looks for a package before it imports the compiler, because the import takes longer
than restoring a package. It passes the `CachedBuild` on to `compile.build`, so that a large model
is hashed only once.

Callers do not look for the package of a model in memory or in a folder, or if a function chooses
the schedules. They do not look for a package with typed inputs or outputs either, because the key
does not cover files such as labels.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any

from webmlc.build_options import BuildOptions
from webmlc.core.dependencies import (
    OPERATOR_GROUP,
    Dependencies,
    FileState,
    noted_dependencies,
)
from webmlc.core.disk_cache import DiskCache, compiler_key, user_cache
from webmlc.core.errors import ModelWarning
from webmlc.core.flags import dump_folder, verify_level
from webmlc.core.package_files import file_hash, model_name
from webmlc.package.kept_package import KeptPackages, RestoredPackage

if TYPE_CHECKING:
    from webmlc.package.manifest import Manifest


def usable_cache() -> DiskCache | None:
    """The user's cache, unless an environment variable asks to see or to check each stage."""
    return None if dump_folder() or verify_level() > 1 else user_cache()


@dataclass(slots=True)
class CachedBuild:
    """One build of the model in a file. `state` is the state of the file before it was hashed.
    `dependencies` are the files and libraries that its readers used. `texts` are the warnings of
    the build.
    """

    cache: DiskCache
    model: Path
    options: BuildOptions
    key: str = field(init=False)
    state: FileState = field(init=False)
    dependencies: Dependencies = field(init=False, default_factory=Dependencies)
    texts: list[str] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        self.state = FileState.of(self.model)
        digest = hashlib.sha256(f"package {compiler_key()} {model_name(self.model)}".encode())
        digest.update(file_hash(self.model).encode())
        digest.update(repr(installed_operators()).encode())
        for name, value in sorted(self.options.deciding().items()):
            digest.update(f"\n{name} ".encode() + _bytes(value))
        self.key = digest.hexdigest()

    @classmethod
    def of(cls, model: Path, options: BuildOptions) -> CachedBuild | None:
        """The build of the model in a file, or `None` if there is no cache or no such file."""
        cache = usable_cache()
        return None if cache is None or not model.is_file() else cls(cache, model, options)

    def restore(self, out: Path, force: bool) -> RestoredPackage | None:
        """Write the package of an earlier build; `None` if there is none."""
        packages = KeptPackages(self.cache)
        restored = packages.restore(self.key, out, self.model.parent, force=force)
        if restored is None:
            return None
        return replace(restored, report=restored.report | {"folder": str(out)})

    @contextmanager
    def recorded(self) -> Iterator[None]:
        """Note the files and libraries that the readers of the model use, and the warnings of the
        build. The warnings are repeated whenever its package is restored.
        """
        with noted_dependencies() as self.dependencies, warnings.catch_warnings(record=True) as log:
            self.dependencies.files[self.model] = self.state
            warnings.simplefilter("always")
            yield
        for record in log:
            if issubclass(record.category, ModelWarning):
                self.texts.append(str(record.message))
        for record in log:
            warnings.warn_explicit(record.message, record.category, record.filename, record.lineno)

    def keep(self, package: Path, manifest: Manifest) -> None:
        """Keep the package in a folder, and remove entries that were not used for long."""
        from webmlc.host.report import package_report

        KeptPackages(self.cache).keep(
            self.key,
            package,
            manifest,
            self.model.parent,
            self.dependencies,
            self.texts,
            package_report(manifest, package),
        )
        self.cache.evict()


def installed_operators() -> list[tuple[str, str]]:
    """The names and versions of the installed packages that offer operators."""
    points = entry_points(group=OPERATOR_GROUP)
    return sorted({(p.dist.name, p.dist.version) for p in points if p.dist is not None})


def _bytes(value: Any) -> bytes:
    """The bytes of an option. An array gives its elements, and a path the bytes of its file."""
    match value:
        case Mapping():
            items = sorted(value.items())
            return b"{" + b",".join(_bytes(k) + b":" + _bytes(v) for k, v in items) + b"}"
        case Path():
            return file_hash(value).encode()
        case str() | int() | None:
            return repr(value).encode()
    import numpy as np

    array = np.asarray(value)
    return f"{array.dtype} {array.shape} ".encode() + array.tobytes()
