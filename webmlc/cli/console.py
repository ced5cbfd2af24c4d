"""The output of the commands: tables and JSON."""

from __future__ import annotations

import json
from typing import Any

from rich import markup
from rich.console import Console
from rich.table import Table

console = Console()
errors = Console(stderr=True)


def escape(text: str) -> str:
    """Text that rich prints as it is."""
    return markup.escape(text)


def number(value: int | None) -> str:
    """A number of bytes, or the words that it depends on symbols."""
    return "depends on the input's size" if value is None else f"{value:,}"


def print_json(value: Any) -> None:
    """Print a value as JSON."""
    print(json.dumps(value, indent=2))


def print_table(title: str, rows: list[dict[str, Any]]) -> None:
    """Print rows, whose keys are the headings."""
    table = Table(title=escape(title), title_justify="left")
    for column in rows[0] if rows else ():
        table.add_column(column, justify="left" if isinstance(rows[0][column], str) else "right")
    for row in rows:
        texts = (f"{v:.4g}" if isinstance(v, float) else str(v) for v in row.values())
        table.add_row(*map(escape, texts))
    console.print(table)
