"""The output of the commands: tables, JSON, and the message and exit code of a failure.

A command that fails prints one message on standard error, or with `--json` an object on standard
output, whatever the command:

    {"error": {"type": "ModelError", "message": "model.onnx: ...", "nodes": []}}

`type` is the class of the exception, as in Python, or `UsageError` for a wrong command line.
`nodes` are the nodes that cannot be compiled, each with `node`, `operator` and `reason`.
`docs/command_line.md` describes this for users.
"""

from __future__ import annotations

import json
import sys
import traceback
from dataclasses import asdict, dataclass
from typing import Any

from rich import markup
from rich.console import Console
from rich.table import Table

from webmlc.core.errors import InternalError, UnsupportedError, UserError

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


USER, INTERNAL = 2, 3
"""The exit codes of a user's mistake, and of a bug of webmlc."""


@dataclass(frozen=True, slots=True)
class Failure:
    """The failure of a command: its exit code and its message."""

    code: int
    type: str
    message: str
    nodes: tuple[dict[str, Any], ...] = ()

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        """The failure that corresponds to an exception."""
        match error:
            case UnsupportedError():
                nodes = tuple(asdict(node) for node in error.nodes)
                return cls(USER, type(error).__name__, str(error), nodes)
            case UserError():
                return cls(USER, type(error).__name__, str(error))
            case OSError():
                text = f"{error.filename}: {error.strerror}" if error.filename else str(error)
                return cls(USER, "OSError", text)
            case InternalError():
                return cls(INTERNAL, "InternalError", str(error))
        if hasattr(error, "format_message"):  # an exception of the library of the command line
            return cls(USER, "UsageError", error.format_message())
        return cls(INTERNAL, "InternalError", f"{type(error).__name__}: {error}")

    def print(self, as_json: bool) -> None:
        """Print the failure."""
        if as_json:
            message = {"type": self.type, "message": self.message, "nodes": list(self.nodes)}
            print_json({"error": message})
        elif self.code == INTERNAL:
            errors.print(
                "[bold red]internal error[/] (a bug of webmlc, please report it): "
                f"{escape(self.message)}\nWEBMLC_DUMP=dir writes every stage of the build there.",
                highlight=False,
                soft_wrap=True,
            )
        else:
            text = f"[bold red]error:[/] {escape(self.message)}"
            errors.print(text, highlight=False, soft_wrap=True)


def fail(error: BaseException, as_json: bool) -> int:
    """Print a failure, and return its exit code. For an unknown exception, print its traceback."""
    failure = Failure.of(error)
    if failure.code == INTERNAL and not isinstance(error, InternalError):
        traceback.print_exception(error, file=sys.stderr)
    failure.print(as_json)
    return failure.code
