"""Compare sets of kernels in one trial, before a build takes them: a kernel that is faster alone
may not be faster among others.

    comparison = WinnerComparison(searches)
    trial = builder.model_trial(comparison.sets)
    comparison.take_in(measurement)
    comparison.ratio           # the time of the model with the kernels it keeps, over before

`WinnerComparison` compares the winners of all tasks of a model with their defaults, and
`LayerComparison` the kernels of two algorithms of a layer. A set is kept if it takes less time in
three rounds of four.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from webmlc.core.machine import DEVICES
from webmlc.tune.measure.candidates import Candidate
from webmlc.tune.measure.make_trials import Scheduled
from webmlc.tune.measure.trial import Measurement
from webmlc.tune.search.task_search import TaskSearch, is_faster, relative_time

STRONG = 0.95
"""A winner that takes less than this share of the default's time is also in a smaller set. The
smaller set is compared, too, because small gains may be noise, or cost the same time elsewhere."""


class Comparison:
    """Sets of kernels. The first set is the control.

    `ms` is the time of the control, as far as known. `ratio` is the time of the kept set over the
    control's; NaN if there was no trial, and `reason` says why. `is_optional`: there is no trial
    after the end of the budget.
    """

    is_optional = False

    def __init__(self, sets: Sequence[Sequence[Scheduled]], ms: float, title: str) -> None:
        """`title` names the comparison."""
        self.sets, self.ms, self.title = sets, ms, title
        self.is_over = self.is_in_flight = False
        self.reason = ""
        self.ratio = math.nan

    def take_in(self, measurement: Measurement) -> list[TaskSearch]:
        """Take in the measurement of the sets. Returns the searches whose winners are rejected."""
        self.is_over, self.is_in_flight, self.ratio = True, False, 1.0
        return []

    def fail(self, reason: str) -> None:
        """Note that the sets cannot be measured."""
        self.is_over, self.is_in_flight, self.reason = True, False, reason


class WinnerComparison(Comparison):
    """The defaults of a model, all winners, and the winners that gained much. Without a trial, the
    winners stay.
    """

    def __init__(self, searches: Sequence[TaskSearch]) -> None:
        """Every search has a confirmed winner. Winners are not compared if their kernels cannot run
        here, or run on a GPU, whose trials hold one kernel only.
        """
        measured = [s for s in searches if not math.isnan(s.control_ms) and not s.failure]
        winners = [s for s in measured if _ratio(s) < 1]
        strong = [s for s in winners if _ratio(s) < STRONG]
        self.choices = [winners, strong] if 0 < len(strong) < len(winners) else [winners]
        is_compared = bool(winners) and all(DEVICES[s.task.device].runs_steps for s in measured)
        choices = ([], *self.choices) if is_compared else ()
        sets = [[(s.task, _candidate(s, s in choice)) for s in measured] for choice in choices]
        super().__init__(sets, sum(s.task.calls * s.control_ms for s in measured), "the model")
        self.is_over = not is_compared

    def take_in(self, measurement: Measurement) -> list[TaskSearch]:
        """See `Comparison`."""
        super().take_in(measurement)
        winners: list[TaskSearch] = []
        control, *rows = measurement.milliseconds
        for times, choice in zip(rows, self.choices, strict=True):
            if times and is_faster(times, control, 1.0):
                ratio = relative_time(times, control)
                if ratio < self.ratio:
                    self.ratio, winners = ratio, choice
        return [s for s in self.choices[0] if s not in winners]


class LayerComparison(Comparison):
    """The kernels of a layer with its default algorithm, and with another algorithm. Without a
    trial, the layer keeps its default.
    """

    is_optional = True

    def __init__(
        self,
        layer: str,
        algorithm: str,
        sets: Sequence[Sequence[Scheduled]],
        ms: float,
        worthwhile: float,
    ) -> None:
        """`worthwhile` is the share of the default's time below which the other algorithm is
        kept.
        """
        super().__init__(sets, ms, layer)
        self.layer, self.algorithm, self.worthwhile = layer, algorithm, worthwhile

    def take_in(self, measurement: Measurement) -> list[TaskSearch]:
        """See `Comparison`."""
        super().take_in(measurement)
        control, times = measurement.milliseconds
        if times and is_faster(times, control, self.worthwhile):
            self.ratio = relative_time(times, control)
        return []


def compare_winners(searches: Sequence[TaskSearch]) -> list[Comparison]:
    """The comparisons of a search when all its tasks have winners."""
    return [WinnerComparison(searches)]


def _ratio(search: TaskSearch) -> float:
    """The relative time of a winner."""
    return 1.0 if search.confirmed is None else search.confirmed[1]


def _candidate(search: TaskSearch, is_winner: bool) -> Candidate:
    """The code of a task's winner, or of its default."""
    if not is_winner or search.confirmed is None:
        return search.control
    (built,) = search.build([search.confirmed[0]])
    return search.control if built is None else built
