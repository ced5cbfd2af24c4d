"""Write the package of `webmlc build --single-file` as one script."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import typer

from webmlc.cli.console import console, number


def temporary_folder(command: typer.Context) -> Path:
    """A folder for the package, which exists until the command ends."""
    return Path(command.with_resource(TemporaryDirectory()))


def write_script(folder: Path, out: Path, *, force: bool) -> dict[str, Any]:
    """Write the package in `folder` as the script `out`. Return its entries of the report."""
    from webmlc.package.single_file import write_single_file

    length = write_single_file(folder, out, force=force)
    return {"folder": None, "file": str(out), "bytes": length}


def print_use(out: Path, length: int) -> None:
    """Print the code that imports the script."""
    console.print(f"{out} has {number(length)} bytes. Import it in a page, in a worker or in Node:")
    console.print(f'  [bold]import {{ load }} from "./{out.name}";[/]', highlight=False)
