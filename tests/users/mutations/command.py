"""Build mutants by the command line, in this process."""

from __future__ import annotations

import sys
import warnings
from functools import cache
from pathlib import Path
from unittest.mock import patch

from typer.main import get_command

from tests.users.mutations.outcome import Outcome, outcome_of_error
from webmlc.cli import main
from webmlc.core.machine import Device


def build(path: Path, package: Path, device: Device, *options: str) -> Outcome | None:
    """Build by the command line. Returns an outcome if there is no package."""
    arguments = ["webmlc", "build", str(path), "-o", str(package), "--target", device]
    with (
        patch.object(sys, "argv", [*arguments, "--jobs", "1", *options]),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        try:
            with (
                patch("webmlc.cli.atexit.register"),
                patch("sys.exit", _Exit.raised),
                patch("typer.main.get_command", _command),
            ):
                main()
        except _Exit as stop:
            if not stop.code:
                return None
            if stop.error is None:
                return Outcome("traceback", f"exit code {stop.code} without an error")
            return outcome_of_error(stop.error)
        except SystemExit as stop:
            return None if not stop.code else Outcome("refused", f"exit code {stop.code}")
    return None


_command = cache(get_command)
"""The parser of the command line. To make one takes a fifth of the time of a mutant."""


class _Exit(BaseException):
    """The end of the command, with the error that ended it."""

    def __init__(self, code: object, error: BaseException | None) -> None:
        super().__init__(code)
        self.code, self.error = code, error

    @staticmethod
    def raised(code: object = 0) -> None:
        raise _Exit(code, sys.exc_info()[1])
