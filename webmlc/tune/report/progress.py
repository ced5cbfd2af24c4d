"""Show a search in the terminal while it runs.

    with Progress(console, "model.onnx") as progress:
        webmlc.tune("model.onnx", on_change=progress)

A terminal shows one line for the whole search, and the kernels that take the most time below it. A
log file or a pipe gets a line every ten seconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from webmlc.tune.report.words import budget, count, duration, times
from webmlc.tune.search.outcomes import Outcome, outcomes_of
from webmlc.tune.search.search import Search, gain

REFRESHES = 8
"""Drawings per second, at most: more than a person reads, and little work for the machine that
measures."""
PLAIN_SECONDS = 10.0
"""Seconds between two lines where the output is no terminal."""
KERNELS = 10
"""Kernels in the table, at most: the table fits a terminal of 24 lines."""


class Progress:
    """The progress of a search. Call it whenever the search changes."""

    def __init__(
        self, console: Console, title: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`title` names the search. `clock` counts seconds."""
        self.console, self.title = console, title
        self._clock = clock
        self._search: Search | None = None
        self._summary, self._table = "", _table(())
        self._shown = clock() if not console.is_terminal else -PLAIN_SECONDS
        self._live = Live(console=console, get_renderable=self._view, refresh_per_second=REFRESHES)

    def __enter__(self) -> Progress:
        if self.console.is_terminal:
            self._live.start(refresh=True)
        return self

    def __exit__(self, *_: object) -> None:
        if self._search is not None:
            self._update(self._search)
        if self.console.is_terminal:
            self._live.stop()
        elif self._search is not None:
            self._print_line()

    def __call__(self, search: Search) -> None:
        """Take in the measurements of a search. The search must not change until this returns."""
        self._search = search
        pause = 1 / REFRESHES if self.console.is_terminal else PLAIN_SECONDS
        if self._clock() - self._shown < pause:
            return
        self._shown = self._clock()
        self._update(search)
        if not self.console.is_terminal:
            self._print_line()

    def _update(self, search: Search) -> None:
        """Store the figures to show, so that drawing reads nothing that another thread changes."""
        searches = search.all_searches()
        outcomes = outcomes_of(searches)
        measured = sum(s.measured for s in searches)
        self._summary = f"{count(measured, 'measurement')} · {times(gain(searches))} as fast"
        if outcomes and outcomes[0].saved_ms > 0:
            best = outcomes[0]
            self._summary += f" · best: {best.search.task.name} {times(best.gain)}"
        largest = sorted(outcomes, key=lambda o: -o.calls * o.default_ms)
        self._table = _table(largest[:KERNELS])

    def _line(self) -> Text:
        """The whole search in one line."""
        if self._search is None:
            return Text(f"{self.title}: preparing the kernels")
        left = budget(self._search.seconds_left)
        state = "confirming the winners" if self._search.is_confirming else f"{left} left"
        return Text(f"{self.title}: {state} · {self._summary}")

    def _view(self) -> RenderableType:
        """The text that the terminal shows now."""
        return Group(self._line(), self._table) if self._table.row_count else self._line()

    def _print_line(self) -> None:
        self.console.print(self._line(), soft_wrap=True)


def _table(outcomes: tuple[Outcome, ...] | list[Outcome]) -> Table:
    """A row for each kernel."""
    table = Table(box=None, pad_edge=False)
    table.add_column("kernel", overflow="ellipsis", no_wrap=True, ratio=1)
    table.add_column("rule")
    for heading in ("calls", "default", "best", "gain", "candidates"):
        table.add_column(heading, justify="right", no_wrap=True)
    for outcome in outcomes:
        task = outcome.search.task
        cells = (
            task.name,
            task.match.rule.name,
            f"{outcome.calls}",
            duration(outcome.default_ms),
            duration(outcome.tuned_ms, outcome.default_ms),
            times(outcome.gain),
            f"{outcome.search.measured}",
        )
        table.add_row(*map(Text, cells), style="green" if outcome.ratio < 1 else "")
    return table
