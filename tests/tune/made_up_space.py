"""A made-up space whose members take known times: what strategies are judged by.

No kernel is built and nothing is measured, so that a search of some hundred members takes
milliseconds. `text_of` says which members are the same code.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from msgspec import Struct

from tests.schedule.rules import kernels
from webmlc.core.machine import RELAXED
from webmlc.schedule.rules.rule import Match, Rule
from webmlc.schedule.rules.space import Product, Space, leaves_of
from webmlc.target.wasm.printer import Printed
from webmlc.tune.measure.candidates import Candidate
from webmlc.tune.measure.make_trials import CandidateBuilder, Scheduled
from webmlc.tune.measure.platforms import Platform
from webmlc.tune.measure.trial import Measurement, Protocol, Trial
from webmlc.tune.tasks import Task

PLATFORM = Platform("an engine", "1", "a CPU", "x86_64")
CONTROL_MS = 1.0
"""The time of the default member."""
FAILS = "failed: it does not run"


class Tiles(Struct, frozen=True):
    """Parameters."""

    rows: int = 0
    columns: int = 0
    is_packed: bool = False


SPACE = Space.of(Tiles, rows=range(8), columns=range(8), is_packed=(False, True))
"""All combinations of some parameters."""


def made_up_task(space: Product[Any], default: Any) -> Task:
    """A task with this space and this default."""
    rule: Rule[Any, Any, Any] = Rule(
        "made up",
        match=lambda function, machine: (),
        space=lambda facts, machine: space,
        default=lambda facts, machine: default,
        build=lambda schedule, facts, chosen: None,
    )
    match = Match(kernels.matmul(8, 8, 8), rule, (), RELAXED)
    return Task("a key", "a kernel", match, (), frozenset(), {}, 1, 0)


@dataclass(slots=True)
class MadeUp(CandidateBuilder):
    """A builder and a worker of such tasks. `ms_of` gives the time of a member, or None if it does
    not run, `text_of` its code, or None if it cannot be built. `measured` counts the times that
    each code was measured before the winners were confirmed.
    """

    ms_of: Callable[[Any], float | None]
    text_of: Callable[[Any], str | None]
    platform: Platform = PLATFORM
    measured: Counter[str] = field(default_factory=Counter)
    threads: int = 1
    kernel: Any = None

    def build(self, tasks: Iterable[Task], members: Iterable[Any]) -> Iterator[Candidate | None]:
        """Members as code without a kernel. Their features are their position."""
        for task, member in zip(tasks, members, strict=False):
            text = self.text_of(member)
            leaves = leaves_of(member)
            space: Space[Any] = task.match.rule.space((), RELAXED)
            row = [float(v.index(leaves[p])) if p in leaves else -1.0 for p, v in space.leaves()]
            if text is None:
                yield None
            else:
                code = Printed(text, 0, 2, 0)
                yield Candidate(member, task.match.function, code, np.array(row, np.float32))

    def trial(self, task: Task, candidates: Sequence[Candidate], protocol: Protocol) -> Trial:
        """A trial that holds the times of its candidates, as text."""
        times = tuple(repr(self.ms_of(candidate.member)) for candidate in candidates)
        if protocol.hopeless < 1e3:  # it does not confirm
            self.measured.update(candidate.text for candidate in candidates[1:])
        return Trial("wasm", (), (), 0, 1, len(candidates), protocol=protocol, entries=times)

    def model_trial(self, sets: Sequence[Sequence[Scheduled]]) -> Trial | None:
        """A trial of the sets, whose times are those of their kernels together."""
        sums = [sum(self.ms_of(c.member) or 0.0 for _, c in kernels) for kernels in sets]
        return replace(
            Trial("wasm", (), (), 0, 1, len(sets), entries=tuple(map(repr, sums))),
            protocol=replace(Protocol(), rounds=30),
        )

    def measure(self, trial: Trial, seconds: float) -> Measurement:
        """The times of a trial's candidates in each round."""
        rounds = trial.protocol.rounds
        times = [None if text == "None" else float(text) for text in trial.entries]
        reasons = tuple(FAILS if ms is None else "" for ms in times)
        return Measurement(tuple(() if ms is None else (ms,) * rounds for ms in times), reasons)

    def stop(self) -> None:
        """There is nothing to stop."""
