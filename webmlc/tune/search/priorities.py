"""Decide where a search spends its time: on which kernel, and on which of its members first.

    priorities = Priorities()
    search = priorities.first(waiting, searches)     # the kernel that could save most
    search.propose(hints(search, searches))          # changes that helped other kernels first

A kernel could save the part of its share of the model's time by which it is slower than the limit
(`outcomes.Limit`). Each trial it had lowers its priority.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from heapq import nlargest
from typing import Any

from webmlc.loops.count_work import count_work
from webmlc.schedule.rules.space import leaves_of
from webmlc.target.kernel_work import KernelWork, least_bytes
from webmlc.tune.search.outcomes import Limit, Outcome, limit_of, work_of
from webmlc.tune.search.task_search import HINTS, WORTHWHILE, TaskSearch
from webmlc.tune.tasks import Task

LEAST_HEADROOM = 0.1
"""The share of a kernel's time that a search can always hope to save: another kernel of the model
sets the limit, which may not be the machine's (chosen by hand)."""
FLOPS_PER_BYTE = 4
"""Operations that take as long as moving a byte, roughly: 30 operations and 8 bytes per ns."""
MOST_SOURCES = 2 * HINTS
"""The most kernels of this run, and the most changes of earlier runs, that are tried on another
kernel: some do not fit its space."""


_NO_PRIORITY = -1, math.nan, Limit(0.0, 0.0, False), 0.0
"""Stands for a value that is not computed yet."""


class Priorities:
    """The order in which the kernels of a model are searched."""

    def __init__(self) -> None:
        self._works: dict[int, KernelWork] = {}  # by the id of a task, which the search keeps
        self._limits: dict[tuple[str, int], Limit] = {}
        self._priorities: dict[int, tuple[int, float, Limit, float]] = {}  # by the id of a search

    def prepare(self, searches: Iterable[TaskSearch]) -> None:
        """Count the work of kernels before a worker waits for its first trial."""
        for search in searches:
            self._work(search)

    def first(self, waiting: Iterable[TaskSearch], searches: Sequence[TaskSearch]) -> TaskSearch:
        """The search that comes next, among the searches that wait for a trial."""
        limit = self._limit(searches)
        return max(waiting, key=lambda s: self._priority(s, limit))

    def _priority(self, search: TaskSearch, limit: Limit) -> float:
        """How soon a search is to come. It changes with a trial, or with the limit. A cluster asks
        for the priorities of all searches before each trial.
        """
        trials, control_ms, earlier, priority = self._priorities.get(id(search), _NO_PRIORITY)
        if trials != search.trials or control_ms != search.control_ms or earlier is not limit:
            priority = self._headroom(search, limit) / (1 + search.trials) ** 2
            self._priorities[id(search)] = search.trials, search.control_ms, limit, priority
        return priority

    def _limit(self, searches: Sequence[TaskSearch]) -> Limit:
        """The limit of a platform, of the kernels that were measured so far. A cluster asks for it
        thousands of times.
        """
        platform = searches[0].platform.key
        if all_measured := self._limits.get((platform, len(searches))):
            return all_measured
        measured = [s for s in searches if not math.isnan(s.control_ms)]
        key = platform, len(measured)
        if key not in self._limits:
            outcomes = [Outcome(s, s.control_ms, 1.0, s.control.member) for s in measured]
            self._limits[key] = limit_of([(o, self._work(o.search)) for o in outcomes])
        return self._limits[key]

    def _headroom(self, search: TaskSearch, limit: Limit) -> float:
        """The milliseconds that a run of the model could save in a kernel."""
        if math.isnan(search.control_ms) or not limit.gigabytes:
            return search.share
        reached = limit.share(self._work(search), search.control_ms * search.best)
        return search.share * max(LEAST_HEADROOM, 1 - reached)

    def _work(self, search: TaskSearch) -> KernelWork:
        """The operations and bytes of a kernel, which take long to count."""
        key = id(search.task)
        if key not in self._works:
            self._works[key] = work_of(search)
        return self._works[key]


def heaviest_first(tasks: Iterable[Task]) -> list[Task]:
    """The tasks, in the order of the time that a run of the model may spend in them, before any was
    measured.
    """
    return sorted(tasks, key=expected_cost, reverse=True)


def expected_cost(task: Task) -> int:
    """The operations of all calls of a kernel. A byte that it must move counts as some."""
    function, sizes = task.match.function, task.all_sizes
    moved = FLOPS_PER_BYTE * least_bytes(function, sizes)
    return task.calls * max(count_work(function, sizes).flops, moved)


def hints(search: TaskSearch, searches: Iterable[TaskSearch]) -> Iterator[Any]:
    """Members that a search has not built, with changes that made other kernels of its rule faster.
    The changes that save a run of the model most come first, the changes of earlier runs last. A
    search takes a few members.
    """
    rule = search.task.match.rule.name
    faster = [s for s in searches if s.best < WORTHWHILE and s is not search]
    sources = [s for s in faster if s.task.match.rule.name == rule]
    improvements = [source.improvement for source in nlargest(MOST_SOURCES, sources, key=saved_ms)]
    for changed in (*improvements, *search.earlier_changes[:MOST_SOURCES]):
        if changed:
            member = search.space.at({**leaves_of(search.control.member), **changed})
            if member is not None and member not in search.built and member in search.space:
                yield member


def saved_ms(search: TaskSearch) -> float:
    """The milliseconds that a run of the model saves in a kernel, as far as known."""
    saved = search.task.calls * search.control_ms * (1 - search.best)
    return 0.0 if math.isnan(saved) else saved
