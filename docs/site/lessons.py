"""The lessons of the course: the scripts in `docs/course/`, and the tests that solve exercises."""

from __future__ import annotations

import re
import runpy
import sys
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "course"


def lessons() -> list[Path]:
    """The scripts of the lessons, in order."""
    return sorted(FOLDER.glob("[0-9][0-9]_*.py"))


def needs_torch(lesson: Path) -> bool:
    """Whether a lesson runs in `.venv-doors`, which has PyTorch, and not in `.venv`."""
    return re.search(r"^import torch\b", lesson.read_text("utf-8"), re.MULTILINE) is not None


def run_lesson(lesson: Path) -> dict[str, Any]:
    """The names of a lesson and their values. The lesson runs as a plain script in this process,
    without its output, so its own checks pass first.
    """
    sys.path.insert(0, str(FOLDER))
    try:
        with redirect_stdout(StringIO()):
            return runpy.run_path(str(lesson))
    finally:
        sys.path.remove(str(FOLDER))


def solutions_of(lesson: Path) -> Path:
    """The tests that solve the exercises of a lesson."""
    folder = "doors" if needs_torch(lesson) else "docs/course"
    return ROOT / "tests" / folder / f"test_{lesson.stem}.py"


def link_lessons(page: str) -> str:
    """A page whose links to scripts of lessons lead to their pages."""
    return re.sub(r"\]\(((?:[\w.]+/)*\d\d_\w+)\.py\)", r"](\1.md)", page)
