"""Run the command line in this process, as a user does.

result = run(monkeypatch, capsys, "build", "model.onnx")
assert result.code == 0
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

import pytest

from webmlc.cli import main


@dataclass(frozen=True, slots=True)
class Result:
    """The exit code, and what was printed."""

    code: int
    out: str
    err: str


def run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: object
) -> Result:
    """Run `webmlc` with these arguments."""
    monkeypatch.setattr(sys, "argv", ["webmlc", *map(str, arguments)])
    code = 0
    try:
        main()
    except SystemExit as stop:
        code = int(stop.code or 0)
    printed = capsys.readouterr()
    return Result(code, printed.out, printed.err)
