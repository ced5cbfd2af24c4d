"""The command `webmlc cache`: what builds have kept, and how to remove it."""

from __future__ import annotations

from typing import Annotated

import typer

from webmlc.cli.console import console, number, print_json
from webmlc.cli.options import AsJson


def cache(
    clear: Annotated[bool, typer.Option("--clear", help="Remove everything.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show where builds keep packages and kernels for later builds, and how much they keep.

    WEBMLC_CACHE=DIR keeps them elsewhere, and WEBMLC_CACHE=off keeps nothing.
    """
    from webmlc.core.disk_cache import LIMIT, user_cache

    disk = user_cache()
    if disk is None:
        print_json(None) if as_json else console.print("The cache is off.")
        return
    if clear:
        disk.clear()
    entries, size = disk.size()
    if as_json:
        print_json({"folder": str(disk.folder), "entries": entries, "bytes": size, "limit": LIMIT})
        return
    console.print(f"{disk.folder}", highlight=False, soft_wrap=True)
    console.print(f"{entries} entries, {number(size)} of at most {number(LIMIT)} bytes")
