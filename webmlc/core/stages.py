"""Stages: the intermediate results that the pipeline shows while it runs.

A `Stage` is the result of one step, which prints only on demand. `webmlc inspect` shows all stages,
`WEBMLC_DUMP=dir` writes them as numbered files, and the progress bar counts them.

    watcher(Stage("fuse", lambda: print_function(function)))
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from webmlc.core.errors import UserError
from webmlc.core.flags import dump_folder


@dataclass(frozen=True, slots=True)
class Stage:
    """The result of one step: `text()` prints it; `kernel` names its kernel, if it has one.

    `text` prints `result`: a module of the graph, a loop function, or emitted code. Core does not
    know these types, so a watcher that reads `result` asks for the type that it expects.
    """

    title: str
    text: Callable[[], str]
    kernel: str | None = None
    result: object = None


Watcher = Callable[[Stage], None]


def ignore(stage: Stage) -> None:
    """A watcher that ignores all stages."""


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


@dataclass(slots=True)
class Listing:
    """A watcher that collects the stages, to print the stages that changed something."""

    stages: list[Stage] = field(default_factory=list)

    def __call__(self, stage: Stage) -> None:
        self.stages.append(stage)

    @property
    def kernels(self) -> tuple[str, ...]:
        """The names of the kernels that stages belong to."""
        return tuple(dict.fromkeys(stage.kernel for stage in self.stages if stage.kernel))

    def lines(self, titles: Sequence[str] = (), kernel: str | None = None) -> Iterator[str]:
        """List the stages by number, then print each stage that differs from its predecessor.

        The predecessor is the last stage of the same kernel on the same device. If `titles` are
        given, only stages whose title contains a given title are printed. If `kernel` is given,
        only its stages are printed. Raises `UserError` if there are none.
        """
        numbers: dict[str, int] = {}
        for stage in self.stages:
            numbers.setdefault(stage.title, len(numbers) + 1)
        kernels = self.kernels
        for title in titles:
            if not any(title in stage_title for stage_title in numbers):
                raise UserError(f"no stage is named {title!r}; there are: {', '.join(numbers)}")
        if kernel is not None and kernel not in kernels:
            raise UserError(f"no kernel is named {kernel!r}; there are: {', '.join(kernels)}")
        yield from (f"{number:02} {title}" for title, number in numbers.items())
        for stage, text in self._changes():
            if titles and not any(title in stage.title for title in titles):
                continue
            if kernel is None or stage.kernel == kernel:
                suffix = f" · {stage.kernel}" if stage.kernel else ""
                yield f"── {numbers[stage.title]:02} {stage.title}{suffix} ".ljust(100, "─")
                yield text

    def _changes(self) -> Iterator[tuple[Stage, str]]:
        """Yield the stages that changed something, with their texts."""
        previous: dict[tuple[str, str | None], str] = {}
        for stage in self.stages:
            device = stage.title.partition(": ")[0] if ": " in stage.title else ""
            text = stage.text()
            before = previous.get((device, stage.kernel), previous.get(("", stage.kernel)))
            previous[device, stage.kernel] = text
            if text != before:
                yield stage, text


def watcher(also: Watcher | None = None) -> Watcher:
    """Combine the watcher `also` with the dump that `WEBMLC_DUMP` asks for."""
    folder = dump_folder()
    watchers = [w for w in (also, Dump(folder) if folder else None) if w is not None]

    def watch(stage: Stage) -> None:
        for receive in watchers:
            receive(stage)

    return watch if watchers else ignore
