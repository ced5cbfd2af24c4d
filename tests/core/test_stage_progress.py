"""The progress line is on a terminal only, and hands each stage on."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

import webmlc
from tests.against_onnxruntime import parse
from webmlc.core.stages import Stage

RELU = "g (float[4] x) => (float[4] y) { y = Relu (x) }"


class Terminal(io.StringIO):
    """A text stream that says that it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stream", "progress", "is_shown"),
    [(Terminal, True, True), (Terminal, False, False), (io.StringIO, True, False)],
    ids=["terminal", "quiet", "file"],
)
def test_a_build_shows_its_stages(
    stream: type[io.StringIO],
    progress: bool,
    is_shown: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stages: list[Stage] = []
    errors = stream()
    monkeypatch.setattr(sys, "stderr", errors)
    monkeypatch.setenv("TERM", "xterm")
    webmlc.build(parse(RELU), tmp_path, "wasm", on_stage=stages.append, progress=progress)
    assert ("Building ModelProto" in errors.getvalue()) == is_shown
    assert is_shown or not errors.getvalue()
    assert "simplify" in {stage.title for stage in stages}
