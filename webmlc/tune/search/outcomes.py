"""Outcomes: the gain of each task's search, in the figures that people read.

In: the searches of some tasks. Out: an `Outcome` for each that measured anything, and the speed to
compare kernels with.

    for outcome in outcomes_of(searches):
        print(outcome.search.task.name, outcome.default_ms, outcome.tuned_ms, outcome.gain)
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from webmlc.schedule.rules.space import Value, changes, leaves_of
from webmlc.target.kernel_work import Kernel, KernelWork, kernel_work
from webmlc.tune.search.task_search import TaskSearch

PER_MILLISECOND = 1e6
"""Operations, or bytes, of a millisecond at one giga-operation, or gigabyte, per second."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The default schedule of a kernel beside the fastest one. Milliseconds are of one call."""

    search: TaskSearch
    default_ms: float
    ratio: float
    member: Any

    @property
    def tuned_ms(self) -> float:
        """The milliseconds of a call with the fastest schedule."""
        return self.default_ms * self.ratio

    @property
    def gain(self) -> float:
        """The time of the default schedule over the time of the fastest schedule."""
        return 1 / self.ratio

    @property
    def calls(self) -> int:
        """The calls of the kernel in a run of the model."""
        return self.search.task.calls

    @property
    def saved_ms(self) -> float:
        """The milliseconds that a run of the model takes less with the fastest schedule."""
        return self.calls * (self.default_ms - self.tuned_ms)

    @property
    def changes(self) -> dict[str, tuple[Value, Value]]:
        """The default and the chosen value of each parameter that differs."""
        return changed_pairs(self.search.control.member, self.member)


@dataclass(frozen=True, slots=True)
class Limit:
    """The speed that kernels are compared with: the most operations and bytes per second.

    `is_measured`: a benchmark of the machine measured the operations. Otherwise the fastest kernel
    of the search sets them. The bytes always come from the kernel that moves its bytes fastest.
    """

    gflops: float
    gigabytes: float
    is_measured: bool

    def share(self, work: KernelWork, milliseconds: float) -> float:
        """The share of the limit that a kernel reaches: the time it would take at the limit, over
        the time it takes.
        """
        return max(self._least_times(work)) / milliseconds

    def is_arithmetic(self, work: KernelWork) -> bool:
        """True for a kernel that operations limit, False for one that bytes limit."""
        operations_ms, bytes_ms = self._least_times(work)
        return operations_ms >= bytes_ms

    def _least_times(self, work: KernelWork) -> tuple[float, float]:
        """The milliseconds that operations and bytes take at the limit."""
        operations = work.flops / self.gflops if self.gflops else 0.0
        return operations / PER_MILLISECOND, work.least / self.gigabytes / PER_MILLISECOND


def outcomes_of(searches: Iterable[TaskSearch]) -> list[Outcome]:
    """The outcomes of the searches whose default was measured. The outcomes that save the most time
    of a run come first; outcomes that save none are sorted by the time they take.
    """
    measured = [s for s in searches if not math.isnan(s.control_ms)]
    outcomes = [Outcome(s, s.control_ms, *_fastest(s)) for s in measured]
    return sorted(outcomes, key=lambda o: (-o.saved_ms, -o.calls * o.default_ms))


def limit_of(
    works: Sequence[tuple[Outcome, KernelWork]], measured_gflops: float | None = None
) -> Limit:
    """The limit of some kernels on one platform."""
    speeds = [(w.flops / o.tuned_ms, w.least / o.tuned_ms) for o, w in works]
    gflops = max((flops for flops, _ in speeds), default=0.0) / PER_MILLISECOND
    gigabytes = max((moved for _, moved in speeds), default=0.0) / PER_MILLISECOND
    return Limit(measured_gflops or gflops, gigabytes, measured_gflops is not None)


def work_of(search: TaskSearch) -> KernelWork:
    """The operations of one call of a kernel, and the bytes that it must move."""
    task = search.task
    return kernel_work(Kernel(task.match.function, lambda: search.control.kernel), task.all_sizes)


def changed_pairs(default: Any, member: Any) -> dict[str, tuple[Value, Value]]:
    """The default and the other value of each leaf in which a member differs from the default, by
    path. A leaf that the default does not have is `None` there.
    """
    leaves = leaves_of(default)
    return {path: (leaves.get(path), value) for path, value in changes(default, member).items()}


def run_ms(outcomes: Iterable[Outcome]) -> tuple[float, float]:
    """The milliseconds of all calls in one run: with the default schedules, and with the fastest
    schedules.
    """
    pairs = [(o.calls * o.default_ms, o.calls * o.tuned_ms) for o in outcomes]
    return sum(default for default, _ in pairs), sum(tuned for _, tuned in pairs)


def _fastest(search: TaskSearch) -> tuple[float, Any]:
    """The relative time and the parameters of the confirmed winner, or of the best candidate of a
    search that was interrupted before it confirmed one.
    """
    if search.confirmed is not None:
        member, ratio = search.confirmed
        return ratio, member
    times = ((ratio, text) for text, ratio in search.ratios.items() if ratio is not None)
    ratio, text = min(times, default=(1.0, search.control.text))
    return ratio, search.members[text]
