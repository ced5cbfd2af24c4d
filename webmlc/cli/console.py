"""What the commands print: tables, JSON, and a progress line."""

from __future__ import annotations

import json
import time
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from webmlc.core.stages import Stage

console = Console()
errors = Console(stderr=True)
REFRESH = 0.1
"""The least time between two states of a progress line, in seconds: the default of `rich`."""


class StageProgress:
    """A progress line that shows the current stage, unless `quiet` or not on a terminal."""

    def __init__(self, title: str, *, quiet: bool) -> None:
        self.progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(pulse_style="cyan"),
            TextColumn("[dim]{task.fields[stage]}"),
            TimeElapsedColumn(),
            console=errors,
            transient=True,
            auto_refresh=False,  # needs a thread, and a process with threads cannot fork
            disable=quiet or not errors.is_terminal,
        )
        self.task = self.progress.add_task(title, total=None, stage="")
        self.next_refresh = 0.0

    def __enter__(self) -> StageProgress:
        self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()

    def __call__(self, stage: Stage) -> None:
        self.progress.update(self.task, stage=f"{stage.title} {stage.kernel or ''}")
        if time.monotonic() > self.next_refresh:
            self.next_refresh = time.monotonic() + REFRESH
            self.progress.refresh()


def escape(text: str) -> str:
    """Text that rich prints as it is."""
    return text.replace("[", r"\[")


def number(value: int | None) -> str:
    """A number of bytes, or that it depends on symbols."""
    return "depends on the input's size" if value is None else f"{value:,}"


def print_json(value: Any) -> None:
    """Print a value as JSON."""
    print(json.dumps(value, indent=2))


def print_table(title: str, rows: list[dict[str, Any]]) -> None:
    """Print rows, whose keys are the headings."""
    table = Table(title=title, title_justify="left")
    for column in rows[0] if rows else ():
        table.add_column(column, justify="left" if isinstance(rows[0][column], str) else "right")
    for row in rows:
        table.add_row(*(f"{v:.4g}" if isinstance(v, float) else str(v) for v in row.values()))
    console.print(table)
