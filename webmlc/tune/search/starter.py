"""Start the searches of tasks on a platform.

    starter = SearchStarter(options, builder, database)
    searches = starter.start(tasks, platform)
    starter.model(platform)                      # the cost model that they share

A search starts with its default, its strategy, and the changes that made kernels of its rule faster
in earlier runs (`EarlierGains`). If it resumes earlier runs, it also starts with their measurements
of its task.
"""

from __future__ import annotations

import math
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from webmlc.core.errors import InternalError
from webmlc.schedule.rules.space import Leaves, Space, changes
from webmlc.tune.database import Database, Record
from webmlc.tune.measure.candidates import Candidate, Refusal
from webmlc.tune.measure.make_trials import CandidateBuilder
from webmlc.tune.measure.platforms import Platform
from webmlc.tune.search.cost_model import OnlineCostModel
from webmlc.tune.search.model_search import ModelSearch
from webmlc.tune.search.strategies import STRATEGIES, Strategy, is_small
from webmlc.tune.search.task_search import Options, TaskSearch
from webmlc.tune.tasks import Task


class EarlierGains:
    """The changes of default parameters that earlier searches on a platform have confirmed. A
    change that makes one kernel faster often helps other kernels of its rule, in any model: tiles
    that fit the platform's registers, workgroups that suit its adapter.
    """

    def __init__(self, records: Iterable[Record]) -> None:
        """`records` are the records of one platform, the oldest first: the last winner of a kernel
        counts.
        """
        defaults: defaultdict[tuple[str, str], list[Any]] = defaultdict(list)
        winners: dict[tuple[str, str], Record] = {}
        for record in records:
            kernel = record.task, record.sizes
            if record.state == "confirmed":
                winners[kernel] = record
            elif record.ratio == 1.0:
                defaults[kernel].append(record.parameters)
        saved_ms: defaultdict[tuple[str, str], float] = defaultdict(float)
        changed: dict[tuple[str, str], Leaves] = {}
        for kernel, winner in winners.items():
            values = _changes(defaults[kernel], winner.parameters)
            if values is not None:
                key = winner.rule, repr(sorted(values.items()))
                changed[key] = values
                saved_ms[key] += _saved_ms(winner)
        self._changes: defaultdict[str, list[Leaves]] = defaultdict(list)
        for key in sorted(saved_ms, key=lambda key: saved_ms[key], reverse=True):
            if saved_ms[key] > 0:
                self._changes[key[0]].append(changed[key])

    def changes(self, rule: str) -> Sequence[Leaves]:
        """The changes that made kernels of a rule faster; changes that saved most time come
        first.
        """
        return self._changes.get(rule, ())


def _changes(defaults: Iterable[Any], winner: Any) -> Leaves | None:
    """The leaves in which a winner differs from its default. Several members may be as fast as the
    default: the nearest to the winner counts as the default. `None` if its rule has other
    parameters since.
    """
    alternatives = [changes(d, winner) for d in defaults if d.keys() == winner.keys()]
    return min(alternatives, key=len, default=None)


def _saved_ms(winner: Record) -> float:
    """The milliseconds that a call of a kernel takes less than with its default."""
    if winner.milliseconds is None or winner.ratio is None:
        return 0.0
    return winner.milliseconds * (1 / winner.ratio - 1)


class SearchStarter:
    """Starts searches, and has the cost models of their platforms."""

    def __init__(
        self,
        options: Options,
        builder: CandidateBuilder,
        database: Database | None = None,
        surveyed: Iterable[TaskSearch] = (),
    ) -> None:
        """`surveyed` are searches that have measured some of the defaults."""
        self.options, self.builder, self.database = options, builder, database
        self._surveyed = {(s.task.identity, s.platform.key): s for s in surveyed}
        self._models: dict[str, OnlineCostModel] = {}
        self._gains: dict[str, EarlierGains] = {}

    def batches(self, tasks: Sequence[Task]) -> Iterator[Sequence[Task]]:
        """The tasks in batches, whose defaults are built side by side."""
        size = os.cpu_count() or 1
        return (tasks[first : first + size] for first in range(0, len(tasks), size))

    def start(self, tasks: Sequence[Task], platform: Platform) -> list[TaskSearch]:
        """The searches of some tasks. The time of their default is known if it was surveyed."""
        surveyed = [self._surveyed.get((task.identity, platform.key)) for task in tasks]
        unknown = [task for task, s in zip(tasks, surveyed, strict=True) if s is None]
        built = self.builder.build(unknown, [t.match.default() for t in unknown])
        searches = []
        for task, survey in zip(tasks, surveyed, strict=True):
            control = next(built) if survey is None else survey.control
            if isinstance(control, Refusal):
                raise InternalError(f"{task.name}: no default schedule ({control.reason})")
            search = self._search(task, platform, control)
            if survey is not None:
                search.control_ms, search.passes = survey.control_ms, survey.passes
                search.candidate_seconds = survey.candidate_seconds
            searches.append(search)
        return searches

    def has_surveyed(self, search: TaskSearch) -> bool:
        """True if a survey has measured the default of a search."""
        return (search.task.identity, search.platform.key) in self._surveyed

    def model(self, platform: Platform) -> OnlineCostModel:
        """The cost model of a platform, which begins with the platform's records in the
        database.
        """
        if platform.key not in self._models:
            examples = [
                (np.array(r.features, np.float32), r.milliseconds)
                for r in self._records(platform)
                if r.milliseconds is not None and r.features
            ]
            self._models[platform.key] = OnlineCostModel(examples, self.options.seed)
        return self._models[platform.key]

    def _earlier_gains(self, platform: Platform) -> EarlierGains:
        """The gains of earlier searches on a platform."""
        if platform.key not in self._gains:
            self._gains[platform.key] = EarlierGains(self._records(platform))
        return self._gains[platform.key]

    def _records(self, platform: Platform) -> Iterable[Record]:
        """All records of a platform, the oldest first."""
        return () if self.database is None else self.database.records(platform=platform.key)

    def _search(self, task: Task, platform: Platform, control: Candidate) -> TaskSearch:
        """The search of a task."""
        space = task.match.space().without_proofs()  # unbuildable members are disqualified
        strategy = self._strategy(space, platform, lambda: search)
        search = TaskSearch(task, platform, space, strategy, control, self.options, self.builder)
        if self.options.cold:
            (first,) = search.build([next(space.members())])
            assert first is not None
            search.retries.append([first])
            search.best = math.inf  # the default does not count
        else:
            if self.options.is_guided:
                search.strategy.tell(control.member, 1.0)
            search.ratios[control.text] = 1.0
            search.members[control.text] = control.member
            search.earlier_changes = self._earlier_gains(platform).changes(task.match.rule.name)
        for record in self._earlier(task, platform):
            search.resume(record)
        return search

    def _strategy(
        self, space: Space[Any], platform: Platform, search: Callable[[], TaskSearch]
    ) -> Strategy:
        """The strategy of a search, which is not there yet."""
        name, seed = self.options.strategy, self.options.seed
        if name == "auto":
            name = "race" if is_small(space) else "model"
        if name != "model":
            return STRATEGIES[name](space, seed)
        features = lambda members: search().features_of(members)  # noqa: E731
        return ModelSearch(space, seed, features, self.model(platform), lambda: search().is_slow)

    def _earlier(self, task: Task, platform: Platform) -> Iterable[Record]:
        """The records of earlier runs of a task."""
        if self.database is None or not self.options.resume:
            return ()
        records = self.database.records(task=task.key, platform=platform.key)
        return [record for record in records if record.sizes == task.size_bucket]
