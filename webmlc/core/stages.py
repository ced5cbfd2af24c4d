"""Stages: what the pipeline shows while it runs.

A `Stage` is one step's result, printed only if somebody looks: `webmlc inspect` looks at all of
them, `WEBMLC_DUMP=dir` writes them as numbered files, the progress bar counts them.

    watcher(Stage("fuse", lambda: print_function(function)))
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from webmlc.core.flags import dump_folder


@dataclass(frozen=True, slots=True)
class Stage:
    """One step's result: `text()` prints it; `kernel` says which kernel it is of, where it is of
    one.
    """

    title: str
    text: Callable[[], str]
    kernel: str | None = None


Watcher = Callable[[Stage], None]


def ignore(stage: Stage) -> None:
    """A watcher that does not look."""


@dataclass(slots=True)
class Dump:
    """A watcher that writes stages as `001-frontend.txt`, `002-...` into a folder."""

    folder: Path
    titles: dict[str, int] = field(default_factory=dict)

    def __call__(self, stage: Stage) -> None:
        number = self.titles.setdefault(stage.title, len(self.titles) + 1)
        self.folder.mkdir(parents=True, exist_ok=True)
        parts = [f"{number:03}", stage.title, *([stage.kernel] if stage.kernel else [])]
        name = re.sub(r"[^\w.-]+", "-", "-".join(parts))
        (self.folder / f"{name}.txt").write_text(stage.text() + "\n", "utf-8")


def watcher(also: Watcher | None = None) -> Watcher:
    """`also`, and the dump that `WEBMLC_DUMP` asks for."""
    folder = dump_folder()
    watchers = [w for w in (also, Dump(folder) if folder else None) if w is not None]

    def watch(stage: Stage) -> None:
        for one in watchers:
            one(stage)

    return watch if watchers else ignore
