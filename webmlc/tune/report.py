"""Write the page of a search: curves, gains by kernel, and the whole model's time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from webmlc.tune.search import Options, TaskSearch


def write_report(path: Path, searches: Sequence[TaskSearch], options: Options) -> Path:
    """Write the page of some searches to `path`, and return that."""
    path.write_text("", "utf-8")
    return path
