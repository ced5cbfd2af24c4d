"""Compare the winners of all tasks with the defaults, as the whole model runs them.

In: the searches of a platform, each with a confirmed winner. Out: which of them keep their
winners: all, those that gained much, or none. A set of schedules is kept if the model takes less
time than with its defaults in three rounds of four.

    comparison = Comparison(searches)
    trial = builder.model_trial(comparison.tasks, comparison.sets)
    rejected = comparison.decide(measurement)    # searches whose tasks keep their defaults
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from webmlc.tune.candidates import Candidate
from webmlc.tune.task_search import TaskSearch, is_faster, relative_time
from webmlc.tune.tasks import Task
from webmlc.tune.trial import Measurement

STRONG = 0.95
"""A winner that takes less than this share of the default's time is in the smaller set, which is
compared, too: it may gain where small gains are noise, or cost elsewhere what they gain."""


class Comparison:
    """The comparison of one platform. `reason` says why there was none. `ratio` is the time of the
    model with the schedules it keeps, relative to that with its defaults.
    """

    def __init__(self, searches: Sequence[TaskSearch]) -> None:
        """Every search has a confirmed winner. Those of kernels that cannot run here, and of GPUs,
        whose trials hold one kernel only, are not compared.
        """
        self.searches = [s for s in searches if not math.isnan(s.control_ms) and not s.failure]
        winners = [s for s in self.searches if _ratio(s) < 1]
        strong = [s for s in winners if _ratio(s) < STRONG]
        self.choices = [winners, strong] if 0 < len(strong) < len(winners) else [winners]
        is_on_cpu = all(s.task.device == "wasm" for s in self.searches)
        self.is_over = not winners or not is_on_cpu
        self.is_in_flight = False
        self.reason = ""
        self.ratio = math.nan

    @property
    def tasks(self) -> list[Task]:
        """The tasks that run in the trial."""
        return [search.task for search in self.searches]

    @property
    def sets(self) -> list[list[Candidate]]:
        """The sets of schedules: the defaults, and those of each choice."""
        return [
            [_candidate(s, s in choice) for s in self.searches] for choice in ([], *self.choices)
        ]

    @property
    def ms(self) -> float:
        """The milliseconds of the model's kernels with their defaults."""
        return sum(s.task.calls * s.control_ms for s in self.searches)

    def decide(self, measurement: Measurement) -> list[TaskSearch]:
        """Take in the measurement of the sets. Returns the searches whose winners are rejected."""
        self.is_over, self.is_in_flight = True, False
        self.ratio, kept = 1.0, []
        control, *others = measurement.milliseconds
        for times, choice in zip(others, self.choices, strict=True):
            if times and is_faster(times, control, 1.0):
                ratio = relative_time(times, control)
                if ratio < self.ratio:
                    self.ratio, kept = ratio, choice
        return [s for s in self.choices[0] if s not in kept]

    def fail(self, reason: str) -> None:
        """Note that the sets cannot be measured: the winners stay."""
        self.is_over, self.is_in_flight, self.reason = True, False, reason


def _ratio(search: TaskSearch) -> float:
    """The relative time of a winner."""
    return 1.0 if search.confirmed is None else search.confirmed[1]


def _candidate(search: TaskSearch, is_winner: bool) -> Candidate:
    """The code of a task's winner, or of its default."""
    if not is_winner or search.confirmed is None:
        return search.control
    (built,) = search.build([search.confirmed[0]])
    return search.control if built is None else built
