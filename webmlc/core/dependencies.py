"""Note the dependencies of a build besides the file of its model: other files, and libraries.

A reader notes each dependency just before it reads it. The cache of packages records the
dependencies, and restores a package only while all of them are the same. Only readers know their
formats: no other module parses a model to find its dependencies.

    with noted_dependencies() as dependencies:
        module = read_model("model.onnx")
    dependencies.files                        # {Path("weights.bin"): FileState(...)}
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from pathlib import Path

OPERATOR_GROUP = "webmlc.operators"
"""The group of entry points by which installed packages offer operators (`programs.operators`)."""


@dataclass(frozen=True, slots=True)
class FileState:
    """The size of a file in bytes, its time in nanoseconds, and its number in the file system. At
    least one number changes when the file is written. A missing file has -1 for each.
    """

    size: int
    time: int
    number: int

    @classmethod
    def of(cls, path: Path) -> FileState:
        """The present state of a file."""
        try:
            status = path.stat()
        except OSError:
            return cls(-1, -1, -1)
        return cls(status.st_size, status.st_mtime_ns, status.st_ino)


@dataclass(slots=True)
class Dependencies:
    """The files that were read, with their states before, and the libraries that read a model."""

    files: dict[Path, FileState] = field(default_factory=dict)
    libraries: set[str] = field(default_factory=set)


_ACTIVE: ContextVar[Dependencies | None] = ContextVar("dependencies of a build", default=None)


@contextmanager
def noted_dependencies() -> Iterator[Dependencies]:
    """Collect the dependencies that readers note inside."""
    dependencies = Dependencies()
    token = _ACTIVE.set(dependencies)
    try:
        yield dependencies
    finally:
        _ACTIVE.reset(token)


def note_file(path: Path, state: FileState | None = None) -> None:
    """Note a file that is about to be read. Call it before the first byte is read, or with the
    state that the file had before.
    """
    dependencies = _ACTIVE.get()
    if dependencies is not None and path not in dependencies.files:
        dependencies.files[path] = FileState.of(path) if state is None else state


def loaded_files(module: str) -> list[Path]:
    """The files of the loaded modules of the package that a module belongs to."""
    package = module.partition(".")[0]
    files = (
        getattr(loaded, "__file__", None)
        for name, loaded in list(sys.modules.items())
        if name.partition(".")[0] == package
    )
    return sorted({Path(file).absolute() for file in files if file})


def note_library(module: str) -> None:
    """Note the library of a module, if its version decides the result of the reading."""
    dependencies = _ACTIVE.get()
    if dependencies is not None:
        dependencies.libraries.update(_distributions(module))


def installed_version(library: str) -> str:
    """The version of an installed library; "" if it is not installed."""
    try:
        return version(library)
    except PackageNotFoundError:
        return ""


def _distributions(module: str) -> list[str]:
    """The libraries that hold a module. Most are named as their module is."""
    if installed_version(module):
        return [module]
    return packages_distributions().get(module, [])
