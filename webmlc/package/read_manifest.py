"""Read the manifest of a package from its folder."""

from __future__ import annotations

from pathlib import Path

from webmlc.core.errors import PackageError
from webmlc.package.manifest import MANIFEST, Manifest
from webmlc.package.manifest_from_json import from_json


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest of the package in `folder`. Raises `PackageError` if there is none."""
    try:
        text = (folder / MANIFEST).read_text("utf-8")
    except OSError as error:
        raise PackageError(
            f"{folder}: no {MANIFEST} here; make a package with `webmlc build MODEL -o {folder}`"
        ) from error
    except UnicodeDecodeError as error:
        raise PackageError(f"{folder / MANIFEST}: not UTF-8 text") from error
    return from_json(text)
