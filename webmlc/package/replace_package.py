"""Put a package into its folder, in the place of an older one and of nothing else.

In: the folder, and a function that writes the new package's files. Out: the folder holds the new
package; files that are not a package's stay. The new files are written into a folder inside it and
renamed at the end, so a build that is killed leaves the old package, or one that its hosts refuse
and the next build replaces.

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
from webmlc.package.manifest import FORMAT, MANIFEST

STAGING = ".webmlc-build"
"""The folder inside a package's that a running build writes into."""


@contextmanager
def replaced_package(out: Path, *, force: bool = False) -> Iterator[Path]:
    """A folder to write the new package's files into; they move to `out` at the end.

    Raises `PackageError` where a file of the same name is there that no build of ours wrote, unless
    `force`: then it is replaced.
    """
    staging, is_new = out / STAGING, not out.exists()
    shutil.rmtree(staging, ignore_errors=True)  # of a build that was killed
    staging.mkdir(parents=True)
    try:
        yield staging
        _install(staging, out, force)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
        if is_new and not any(out.iterdir()):
            out.rmdir()


def _install(staging: Path, out: Path, force: bool) -> None:
    """Move the files: the manifest first, so that it names every file of ours at any time."""
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
    """The files of the package that a folder holds, of any version of ours; none where its
    manifest is missing or somebody else's.
    """
    try:
        manifest: Any = json.loads((folder / MANIFEST).read_text("utf-8"))
    except (OSError, ValueError):
        return set()
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        return set()
    files = manifest.get("files", {})
    return {MANIFEST, *files} if isinstance(files, dict) else {MANIFEST}
