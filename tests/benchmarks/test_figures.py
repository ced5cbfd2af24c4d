"""README and the documentation hold the figures that were measured last."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks.chart import chart
from benchmarks.figures import (
    CHART,
    DOCUMENTS,
    SECTION,
    SECTIONS,
    Figures,
    filled,
    read_figures,
)


@pytest.fixture(scope="module")
def figures() -> Figures:
    return read_figures()


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_figures_are_those_of_the_last_run(path: Path, figures: Figures) -> None:
    document = path.read_text("utf-8")
    assert filled(document, figures) == document, "run: python -m benchmarks.figures"


def test_the_chart_is_that_of_the_last_run(figures: Figures) -> None:
    assert CHART.read_text("utf-8") == chart(dict(figures.results))


def test_every_section_stands_in_one_document() -> None:
    names = [m[1] for path in DOCUMENTS for m in SECTION.finditer(path.read_text("utf-8"))]
    assert sorted(names) == sorted(SECTIONS)


def test_figures_that_changed_are_found(figures: Figures) -> None:
    (document, *_) = (path.read_text("utf-8") for path in DOCUMENTS)
    ratio = re.search(r"\| SqueezeNet \| (\d+\.\d)", document)
    assert ratio is not None
    wrong = document.replace(ratio[0], "| SqueezeNet | 99.9")
    assert filled(wrong, figures) == document != wrong


def test_figures_name_their_date_and_commit(figures: Figures) -> None:
    for section in ("summary", "models", "language", "accuracy"):
        text = SECTIONS[section](figures)
        assert re.match(r"Measured on \d{4}-\d\d-\d\d at commit [0-9a-f]{7,}\+?\b", text), section
