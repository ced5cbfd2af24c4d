"""Write a package into its folder, replacing only an older package.

In: the folder, and code that writes the files of the new package. Out: the folder holds the new
package; files that belong to no package stay. The new files are written into a folder inside it,
and renamed at the end. A build that is killed therefore leaves the old package, or an incomplete
one, which hosts refuse and the next build replaces.

    with replaced_package(Path("build/digits")) as staging:
        (staging / "manifest.json").write_text(...)
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from webmlc.core.errors import PackageError
from webmlc.package.file_names import FORMAT, MANIFEST

STAGING = ".webmlc-build"
"""The folder, inside that of the package, into which a running build writes."""


@contextmanager
def replaced_package(out: Path, *, force: bool = False) -> Iterator[Path]:
    """Provide a folder for the files of the new package, which move to `out` at the end.

    Raises `PackageError` if `out` has a file of the same name that no build wrote. With `force`,
    such a file is replaced.
    """
    staging, is_new = out / STAGING, not out.exists()
    shutil.rmtree(staging, ignore_errors=True)  # a killed build may have left it
    staging.mkdir(parents=True)
    try:
        yield staging
        _install(staging, out, force)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
        if is_new and not any(out.iterdir()):
            out.rmdir()


def _install(staging: Path, out: Path, force: bool) -> None:
    """Move the files. The manifest is first, so that it names every file at any time."""
    names = sorted(path.name for path in staging.iterdir())
    previous = packaged_files(out)
    foreign = [name for name in names if (out / name).exists() and name not in previous]
    if foreign and not force:
        files = ", ".join(foreign[:3]) + (", ..." if len(foreign) > 3 else "")
        raise PackageError(
            f"{out} has files that no build of webmlc wrote ({files}), and a package would replace "
            "them; choose another folder, or replace them with --force (force=True in Python)"
        )
    for name in previous.difference(names):
        if (out / name).resolve().is_relative_to(out.resolve()):
            (out / name).unlink(missing_ok=True)
    for name in (MANIFEST, *(name for name in names if name != MANIFEST)):
        (staging / name).replace(out / name)


def packaged_files(folder: Path) -> set[str]:
    """The files of the package in a folder, of any version.

    There are none if the manifest is missing or is not one of webmlc.
    """
    try:
        manifest: Any = json.loads((folder / MANIFEST).read_text("utf-8"))
    except (OSError, ValueError):
        return set()
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        return set()
    files = manifest.get("files", {})
    return {MANIFEST, *files} if isinstance(files, dict) else {MANIFEST}
