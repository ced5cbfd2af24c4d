"""The lesson of the course that needs PyTorch runs. `make docs` runs the other lessons."""

from __future__ import annotations

from pathlib import Path

import pytest

from docs.site.lessons import lessons, needs_torch, run_lesson

LESSONS = [lesson for lesson in lessons() if needs_torch(lesson)]


def test_a_lesson_needs_pytorch() -> None:
    assert [lesson.name[:2] for lesson in LESSONS] == ["05"]


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda lesson: lesson.stem)
def test_a_lesson_runs(lesson: Path) -> None:
    run_lesson(lesson)
