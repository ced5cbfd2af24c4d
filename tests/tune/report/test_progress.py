"""The progress of a search: a table in a terminal, and a line now and then in a log."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from tests.tune.small_search import FixedWorker, small_search, small_tasks
from webmlc.tune.measure.workers import work
from webmlc.tune.report.progress import PLAIN_SECONDS, REFRESHES, Progress
from webmlc.tune.search.search import Search
from webmlc.tune.search.task_search import Options

pytestmark = pytest.mark.xdist_group("progress")  # one worker builds what the tests share


class Clock:
    """A clock that the test moves."""

    seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture(scope="module")
def search() -> Search:
    return small_search()


def test_a_log_gets_a_line_every_ten_seconds(search: Search) -> None:
    text, clock = io.StringIO(), Clock()
    with Progress(Console(file=text, width=60), "model [b]", clock) as progress:
        for second in range(25):
            clock.seconds = float(second)
            progress(search)
        lines = text.getvalue().splitlines()
    assert len(lines) == 24 // PLAIN_SECONDS
    measured = sum(s.measured for s in search.all_searches())
    assert all(line.startswith("model [b]: ") for line in lines)
    assert f"· {measured} measurements · 2.00× as fast · best: matmul 2.00×" in lines[0]
    assert len(text.getvalue().splitlines()) == len(lines) + 1  # the last state


def test_a_terminal_shows_the_largest_kernels(search: Search) -> None:
    text = io.StringIO()
    console = Console(file=text, force_terminal=True, width=90, color_system=None)
    with Progress(console, "model") as progress:
        progress(search)
    shown = text.getvalue()
    header = "kernel rule calls default best gain candidates"
    rows = [" ".join(line.split()) for line in shown.splitlines()]
    assert header in rows
    assert "matmul contraction 1 2.00 ms 1.00 ms 2.00× 8" in rows
    assert "model: preparing the kernels" in shown


def test_a_terminal_is_not_drawn_for_every_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, updates = Clock(), []
    console = Console(file=io.StringIO(), force_terminal=True, width=90)
    progress = Progress(console, "model", clock)
    monkeypatch.setattr(progress, "_update", lambda search: updates.append(clock.seconds))
    search = Search(small_tasks(), Options())
    for number in range(100):
        clock.seconds = number / 100
        progress(search)
    assert len(updates) == REFRESHES


def test_a_search_calls_it_after_each_trial() -> None:
    text, clock = io.StringIO(), Clock()
    with Progress(Console(file=text), "model", clock) as progress:
        clock.seconds = PLAIN_SECONDS
        search = Search(small_tasks(), Options("random", measurements=2), on_change=progress)
        work(search, FixedWorker())
    first, last = text.getvalue().splitlines()
    assert "0 measurements · 1.00× as fast" in first
    assert "4 measurements · 2.00× as fast" in last
