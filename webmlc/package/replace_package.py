"""Write a package into its folder, replacing only an older package.

In: the folder, and code that writes the files of the new package. Out: the folder holds the new
package; files that belong to no package stay.

    with replaced_package(Path("build/digits")) as staging:
        (staging / "manifest.json").write_text(...)

The new files are written into a folder inside the package's folder, and renamed at the end. A lock
on the package's folder makes concurrent builds wait for each other, so the package of the last
build is complete. An error leaves the older package in place, and so does a build that is killed
before it renames files. If it is killed while renaming, hosts refuse the mixed files, and the next
build first restores the older package:

    build/digits/.webmlc-build-x1/new/     the new files, which move up
                                  old/     the files that they replace
                                  names    the names of the new files, while files move

A file belongs to the older package if that package's manifest names it with its present hash. Any
other file may be a user's: it is not removed, and only `force` replaces it.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from webmlc.core.errors import PackageError
from webmlc.core.folder_lock import locked_folder
from webmlc.core.package_files import FORMAT, MANIFEST, file_hash

STAGING = ".webmlc-build-"
"""The prefix of the folders, inside a package's folder, into which builds write."""


@contextmanager
def replaced_package(out: Path, *, force: bool = False) -> Iterator[Path]:
    """Provide a folder for the files of the new package, which move to `out` at the end.

    Raises `PackageError` if `out` cannot be written, or if it has a file of the same name that no
    build wrote. With `force`, such a file is replaced.
    """
    try:
        missing = [folder for folder in (out, *out.parents) if not folder.exists()]
        with locked_folder(out):
            try:
                for interrupted in out.glob(f"{STAGING}*"):
                    _undo(interrupted, out)
                    shutil.rmtree(interrupted, ignore_errors=True)
                with _staging(out) as staging:
                    yield staging / "new"
                    _install(staging, out, force)
            finally:
                with suppress(OSError):  # the folder has files now
                    for folder in missing:
                        folder.rmdir()
    except OSError as error:
        raise PackageError(
            f"{out}: cannot write a package here ({error.strerror or error}). Choose another "
            "folder, or make room in this one."
        ) from error


@contextmanager
def _staging(out: Path) -> Iterator[Path]:
    """Provide a new folder for this build, and remove it at the end."""
    staging = Path(tempfile.mkdtemp(prefix=STAGING, dir=out))
    try:
        for name in ("new", "old"):
            (staging / name).mkdir()
        yield staging
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _install(staging: Path, out: Path, force: bool) -> None:
    """Move the new files up, and the older package aside. All files move, or none does."""
    names = sorted(path.name for path in (staging / "new").iterdir())
    for name in names:
        if (out / name).is_dir() and not (out / name).is_symlink():
            raise PackageError(f"{out / name} is a folder, and a package has a file of that name")
    hashes = packaged_files(out)
    existing_names = {name for name in {*names, *hashes} if os.path.lexists(out / name)}
    older = {name for name in existing_names if _is_packaged(out / name, hashes.get(name))}
    foreign = [
        name
        for name in names
        if name in existing_names
        and name not in older
        and not _is_same(out / name, staging / "new" / name)
    ]
    if foreign and not force:
        files = ", ".join(foreign[:3]) + (", ..." if len(foreign) > 3 else "")
        raise PackageError(
            f"{out} has files that no build of webmlc wrote ({files}), or that were changed since, "
            "and a package would replace them; choose another folder, or replace them with --force "
            "(force=True in Python)"
        )
    (staging / "names").write_text(json.dumps(names), "utf-8")
    try:
        for name in sorted(older | existing_names.intersection(names)):
            _set_aside(out / name, staging / "old" / name)
        for name in (MANIFEST, *(name for name in names if name != MANIFEST)):
            (staging / "new" / name).replace(out / name)
        for name in older.difference(names):
            (out / name).unlink(missing_ok=True)
    except BaseException:
        _undo(staging, out)
        raise
    (staging / "names").unlink()


def _undo(staging: Path, out: Path) -> None:
    """Put the older package back, if an installation of the files in `staging` was interrupted."""
    with suppress(OSError, ValueError):
        for name in json.loads((staging / "names").read_text("utf-8")):
            if not (staging / "new" / name).exists() and not (out / name).is_dir():
                (out / name).unlink(missing_ok=True)
        for path in (staging / "old").iterdir():
            path.replace(out / path.name)


def _set_aside(path: Path, copy: Path) -> None:
    """Keep a file under the name `copy`. If the system has links and the file is no symbolic link,
    it also stays at `path`, so that hosts can still read it.
    """
    if not path.is_symlink():
        with suppress(OSError):
            os.link(path, copy)
            return
    path.rename(copy)


def _is_packaged(path: Path, digest: str | None) -> bool:
    """True if a file is as a build wrote it. A manifest has no hash: its digest is ""."""
    return digest is not None and path.is_file() and digest in ("", file_hash(path))


def _is_same(path: Path, new: Path) -> bool:
    """True if a file has the bytes of the new one already."""
    return path.is_file() and not path.is_symlink() and file_hash(path) == file_hash(new)


def packaged_files(folder: Path) -> Mapping[str, str]:
    """The files of the package in a folder, of any version, with their hashes at build time. The
    hash of the manifest is "".

    The result is empty if the manifest is missing, or is not a manifest of webmlc.
    """
    try:
        manifest: Any = json.loads((folder / MANIFEST).read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        return {}
    files = manifest.get("files")
    return {MANIFEST: ""} | {
        name: file["sha256"]
        for name, file in (files.items() if isinstance(files, dict) else ())
        if _is_name(name) and isinstance(file, dict) and isinstance(file.get("sha256"), str)
        if file["sha256"]
    }


def _is_name(name: str) -> bool:
    """True for the name of a file in the folder itself."""
    return name not in ("", ".", "..", MANIFEST) and not set(name) & set("/\\\0:")
