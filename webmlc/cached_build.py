"""Write a package again that an earlier build wrote, instead of building it.

In: the model and the options of `compile.build_package`, which calls this module. Out: the package,
or nothing. A build is a function of the name and the bytes of the model's file, of the files that
it refers to (`package.kept_package` compares them), of the deciding options and of the compiler.
These are the key of its package in the cache (`core.disk_cache`).

The command line looks for a package before it imports the compiler, because that takes longer than
to write a package again. It passes the `CachedBuild` on to `compile.build`: to hash a large model
takes time, too.

Callers ask for no package of a model in memory or of another framework, of one with typed inputs or
outputs (labels and the like are files that the key does not cover), or with schedules that somebody
chooses.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from webmlc.build_options import BuildOptions
from webmlc.core.disk_cache import DiskCache, compiler_key, user_cache
from webmlc.core.errors import ModelWarning
from webmlc.core.flags import dump_folder, verify_level
from webmlc.package.kept_package import KeptPackages, file_hash

if TYPE_CHECKING:
    from webmlc.package.manifest import Manifest


def usable_cache() -> DiskCache | None:
    """The user's cache, unless an environment variable asks to see or to check each stage."""
    return None if dump_folder() or verify_level() > 1 else user_cache()


@dataclass(slots=True)
class CachedBuild:
    """One build of the model in a file. `texts` are the warnings of the build."""

    cache: DiskCache
    model: Path
    options: BuildOptions
    key: str = field(init=False)
    texts: list[str] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        digest = hashlib.sha256(f"package {compiler_key()} {self.model.stem}".encode())
        digest.update(file_hash(self.model).encode())
        for name, value in sorted(self.options.deciding().items()):
            digest.update(f"\n{name} ".encode() + _bytes(value))
        self.key = digest.hexdigest()

    @classmethod
    def of(cls, model: Path, options: BuildOptions) -> CachedBuild | None:
        """The build of the model in a file. It is `None` if nothing is kept, or if there is no such
        file.
        """
        cache = usable_cache()
        return None if cache is None or not model.is_file() else cls(cache, model, options)

    def restore(self, out: Path, force: bool) -> dict[str, Any] | None:
        """Write the package of an earlier build, and return its report (`host.report`); `None` if
        there is none.
        """
        packages = KeptPackages(self.cache)
        report = packages.restore(self.key, out, self.model.parent, force=force)
        return None if report is None else report | {"folder": str(out)}  # it was another then

    @contextmanager
    def warnings_noted(self) -> Iterator[None]:
        """Note the warnings of a build, to repeat them whenever its package is restored."""
        with warnings.catch_warnings(record=True) as records:
            warnings.simplefilter("always")
            yield
        for record in records:
            if issubclass(record.category, ModelWarning):
                self.texts.append(str(record.message))
        for record in records:
            warnings.warn_explicit(record.message, record.category, record.filename, record.lineno)

    def keep(self, out: Path, manifest: Manifest) -> None:
        """Keep the package in `out`, and remove what was not used for long."""
        from webmlc.frontend.external_data import external_files
        from webmlc.host.report import package_report

        data = self.model.read_bytes()
        read = [] if data.startswith(b"GGUF") else external_files(data)
        folder = self.model.parent
        report = package_report(out)
        KeptPackages(self.cache).keep(self.key, out, manifest, folder, read, self.texts, report)
        self.cache.evict()


def _bytes(value: Any) -> bytes:
    """The bytes of an option: of arrays their elements, of a path those of the file."""
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
