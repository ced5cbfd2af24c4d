"""The lessons of the course: the scripts in `docs/course/`, and the tests that solve exercises."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "course"


def lessons() -> list[Path]:
    """The scripts of the lessons, in order."""
    return sorted(FOLDER.glob("[0-9][0-9]_*.py"))


def needs_torch(lesson: Path) -> bool:
    """Whether a lesson runs in `.venv-doors`, which has PyTorch, and not in `.venv`."""
    return re.search(r"^import torch\b", lesson.read_text("utf-8"), re.MULTILINE) is not None


def run_lesson(lesson: Path) -> None:
    """Run a lesson as a plain script, in this environment. Raises `RuntimeError` if it fails."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(lesson)]
    result = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True)
    if result.returncode != 0:
        raise RuntimeError(f"{lesson.name} fails:\n{result.stderr}")


def solutions_of(lesson: Path) -> Path:
    """The tests that solve the exercises of a lesson."""
    folder = "doors" if needs_torch(lesson) else "docs/course"
    return ROOT / "tests" / folder / f"test_{lesson.stem}.py"


def link_lessons(page: str) -> str:
    """A page whose links to scripts of lessons lead to their pages."""
    return re.sub(r"\]\(((?:[\w.]+/)*\d\d_\w+)\.py\)", r"](\1.md)", page)
