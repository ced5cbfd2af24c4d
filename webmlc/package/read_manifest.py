"""Read the manifest of a package from its folder."""

from __future__ import annotations

from pathlib import Path

from webmlc.core.errors import PackageError
from webmlc.frontend.file_kinds import kind_of
from webmlc.package.manifest import MANIFEST, Manifest
from webmlc.package.manifest_json import from_json


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest of the package in `folder`. Raises `PackageError` if there is none."""
    try:
        text = (folder / MANIFEST).read_text("utf-8")
    except OSError as error:
        raise PackageError(f"{folder}: {_instead(folder)}") from error
    except UnicodeDecodeError as error:
        raise PackageError(f"{folder / MANIFEST}: not UTF-8 text") from error
    return from_json(text)


def _instead(path: Path) -> str:
    """Describe the contents of a path without a package, and say what to do."""
    kind = kind_of(path) if path.is_file() else None
    if path.is_file() and (kind is None or kind.suffix):
        out = f"build/{path.stem}"
        return (
            f"this is a model, not a package. Build it, and load the package: webmlc build {path} "
            f"-o {out}"
        )
    if kind is not None:
        return f"{kind.name}. {kind.advice}"
    return f"no {MANIFEST} here; make a package with `webmlc build MODEL -o {path}`"
