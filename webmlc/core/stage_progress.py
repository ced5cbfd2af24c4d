"""A progress line on the terminal, which shows the stage that the compiler is in.

with StageProgress("Building model.onnx", quiet=False) as watch:
    watch(Stage("fuse", text))
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from webmlc.core.stages import Stage, Watcher, ignore

if TYPE_CHECKING:
    from rich.progress import Progress

REFRESH = 0.1
"""The least time between two states of a progress line, in seconds: the default of `rich`."""


class StageProgress:
    """A watcher that shows the current stage on standard error, unless `quiet` or not on a
    terminal. The watcher `also` receives each stage, too.
    """

    def __init__(self, title: str, *, quiet: bool, also: Watcher = ignore) -> None:
        self.also = also
        self.progress = None if quiet or not sys.stderr.isatty() else _line(title)
        self.next_refresh = 0.0

    def __enter__(self) -> StageProgress:
        if self.progress is not None:
            self.progress.start()
            self.progress.refresh()
        return self

    def __exit__(self, *_: object) -> None:
        if self.progress is not None:
            self.progress.stop()

    def __call__(self, stage: Stage) -> None:
        self.also(stage)
        if self.progress is None:
            return
        task = self.progress.task_ids[0]
        self.progress.update(task, stage=f"{stage.title} {stage.kernel or ''}")
        if time.monotonic() > self.next_refresh:
            self.next_refresh = time.monotonic() + REFRESH
            self.progress.refresh()


def _line(title: str) -> Progress:
    """A progress line of rich, which takes 0.1 s to import."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    line = Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(pulse_style="cyan"),
        TextColumn("[dim]{task.fields[stage]}"),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
        auto_refresh=False,  # needs a thread, and a process with threads cannot fork
    )
    line.add_task(title, total=None, stage="")
    return line
