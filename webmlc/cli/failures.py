"""The message and the exit code of a command that fails.

In: an exception. Out: one message on standard error, or with `--json` an object on standard output,
whatever the command:

    {"error": {"type": "ModelError", "message": "model.onnx: ...", "nodes": []}}

`type` is the class of the exception, as in Python, or `UsageError` for a wrong command line.
`nodes` are the nodes that cannot be compiled, each with `node`, `operator` and `reason`.
`docs/command_line.md` describes this for users.
"""

from __future__ import annotations

import sys
import traceback
from dataclasses import asdict, dataclass
from typing import Any

from webmlc.cli.console import errors, escape, print_json
from webmlc.core.errors import InternalError, UnsupportedError, UserError

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
