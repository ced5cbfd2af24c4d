"""Search the schedules of a model's tasks: choose the next trial, and take in its measurement.

    search = Search(tasks, options, database)
    job = search.next_job(platform)             # a trial for a worker; None: nothing left to do
    search.finish(job, measurement)             # or give_back(job), or fail(job, reason)

A worker asks for jobs until there are none (see `workers`). Many workers may ask at once, from any
thread. Workers of one platform share a search of each task; another platform starts its own. Tasks
take turns, as `priorities` decides.

The budget (`budget.Budget`) is spent in four phases. First, the defaults are built and measured.
Then come trials of candidates. Then a trial with more rounds confirms the winner of each task.
Last, a trial of the whole model compares the winners with the defaults (see `comparison`): if the
model does not gain, it keeps its defaults. Tasks come in the order of the list. A task keeps its
default if the default was not measured in time, or if no winner was confirmed.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import median

from webmlc.schedule.rules.space import plain
from webmlc.tune.database import Database, Record, State
from webmlc.tune.measure.candidates import Candidate
from webmlc.tune.measure.make_trials import CandidateBuilder
from webmlc.tune.measure.platforms import Platform
from webmlc.tune.measure.trial import PROTOCOL, Measurement, Trial
from webmlc.tune.search.budget import Budget
from webmlc.tune.search.comparison import Comparison, WinnerComparison, compare_winners
from webmlc.tune.search.priorities import Priorities, hints, saved_ms
from webmlc.tune.search.starter import SearchStarter
from webmlc.tune.search.task_search import Options, TaskSearch, is_faster, relative_time
from webmlc.tune.tasks import Task

CONFIRMATION = replace(PROTOCOL, rounds=30, fewest=12, limit_ms=4000.0, hopeless=1e9)
"""How the last trial of a search is measured: no candidate drops out."""
BUILD_SHARE = 0.3
"""No further default is built after this share of the budget that remains when the first worker
joins (chosen by hand)."""
DEFAULT_SHARE = 0.5
"""No further default is measured after this share of the same budget, except by a survey, which
measures nothing else (chosen by hand)."""
CONFIRMATION_SHARE = 0.3
"""The share of the budget that confirming the winners takes, at most (chosen by hand)."""
TRIAL_SHARE = 0.1
"""The largest share of the budget that a trial of several candidates takes (chosen by hand)."""
WAIT_SECONDS = 0.05
"""Seconds after which a worker asks again, while it waits for other workers' trials."""


@dataclass(frozen=True, slots=True)
class Job:
    """A trial for a worker of one platform. `title` is the text that a person who watches the
    search reads. `expected_ms` is the time of one call of the control, NaN if unknown.
    """

    number: int
    trial: Trial
    title: str
    expected_ms: float


@dataclass(frozen=True, slots=True)
class TaskJob(Job):
    """A trial of one task, handed out when the search had spent `began` seconds. Candidate 0 is the
    control.
    """

    search: TaskSearch
    began: float
    candidates: tuple[Candidate, ...]
    confirms: bool


@dataclass(frozen=True, slots=True)
class ModelJob(Job):
    """A trial of a whole model, or of a layer."""

    comparison: Comparison


class Search:
    """The searches of all tasks on all platforms. Safe to use from several threads."""

    def __init__(
        self,
        tasks: Sequence[Task],
        options: Options,
        database: Database | None = None,
        builder: CandidateBuilder | None = None,
        on_change: Callable[[Search], None] | None = None,
        compare: Callable[[Sequence[TaskSearch]], Sequence[Comparison]] = compare_winners,
        budget: Budget | None = None,
        surveyed: Iterable[TaskSearch] = (),
    ) -> None:
        """`on_change` is called after each trial, with the lock held. `compare` gives the
        comparisons to run when the tasks of a platform have winners. `budget` starts with the first
        job; by default, it is the budget of the options. `surveyed` are searches that have measured
        some of the defaults.
        """
        self.tasks, self.options, self.database = list(tasks), options, database
        self.builder = builder or CandidateBuilder()
        self.searches: dict[str, list[TaskSearch]] = {}
        self.comparisons: dict[str, Sequence[Comparison]] = {}
        self._compare = compare
        self.jobs: dict[int, Job] = {}
        self.budget = budget or Budget(options.seconds)
        self._rest = self.budget
        self.count = 0
        self.is_cancelled = self.is_confirming = False
        self._priorities = Priorities()
        self._on_change = on_change
        self._starter = SearchStarter(options, self.builder, database, surveyed)
        self._lock = threading.RLock()

    @property
    def threads(self) -> int:
        """The threads that run a kernel."""
        return self.builder.threads

    @property
    def seconds_left(self) -> float:
        """The rest of the budget."""
        return self.budget.seconds_left

    @property
    def is_done(self) -> bool:
        """True if no platform that joined has jobs left."""
        is_settled = bool(self.searches) and all(map(self._is_settled, self.searches))
        return self.is_cancelled or is_settled

    def all_searches(self) -> list[TaskSearch]:
        """The searches of every platform."""
        return [search for searches in self.searches.values() for search in searches]

    @property
    def model_gains(self) -> dict[str, float]:
        """The speedup of the whole model: its time with the defaults over its time with the
        schedules that it keeps, by the key of each platform that measured both.
        """
        return {
            key: 1 / comparison.ratio
            for key, comparisons in self.comparisons.items()
            for comparison in comparisons
            if isinstance(comparison, WinnerComparison) and not math.isnan(comparison.ratio)
        }

    def join(self, platform: Platform) -> list[TaskSearch]:
        """The searches of a platform, which begin when its first worker joins."""
        with self._lock:
            if platform.key not in self.searches:
                if not self.searches:
                    self._rest = self.budget.rest()
                searches = self._start_all(platform)
                self._add(s.control_record() for s in searches if self._starter.has_surveyed(s))
                self._priorities.prepare(searches)
                self.searches[platform.key] = searches
            return self.searches[platform.key]

    def next_job(self, platform: Platform) -> Job | float | None:
        """A job for a worker of this platform, or the seconds to wait for a job; `None` if no more
        jobs will come.
        """
        with self._lock:
            if self.is_cancelled:
                return None
            self.budget.start()
            searches = self.join(platform)
            job = self._first_job(searches) or self._next_trial(searches)
            if job is None:
                job = self._confirmation(searches)
            if job is not None:
                return job
            if any(s.confirmed is None for s in searches):
                return WAIT_SECONDS
            return self._comparison_job(platform)

    def finish(self, job: Job, measurement: Measurement) -> None:
        """Take in the measurement of a worker."""
        with self._lock:
            if self.jobs.pop(job.number, None) is None:
                return  # it was given back, and another worker has it
            if isinstance(job, TaskJob):
                records = self._take_in(job, measurement)
            else:
                assert isinstance(job, ModelJob)
                records = self._take_in_comparison(job.comparison, measurement)
            self._add(records)
            self._changed()

    def give_back(self, job: Job) -> None:
        """Return a job whose worker was lost: another worker measures it."""
        with self._lock:
            if self.jobs.pop(job.number, None) is None:
                return
            if isinstance(job, ModelJob):
                job.comparison.is_in_flight = False
            if isinstance(job, TaskJob):
                job.search.in_flight -= 1
                if not job.confirms and len(job.candidates) > 1:
                    job.search.retries.append(list(job.candidates[1:]))

    def fail(self, job: Job, reason: str) -> None:
        """Note that a trial crashed its engine, or never ended. Its candidates are tried one by
        one: a candidate that fails alone is disqualified.
        """
        with self._lock:
            if self.jobs.pop(job.number, None) is None:
                return
            if isinstance(job, ModelJob):
                job.comparison.fail(reason)
            if isinstance(job, TaskJob):
                self._fail_trial(job, reason)
            self._changed()

    def end_budget(self) -> None:
        """Measure no more candidates; the winners so far are still confirmed."""
        self.is_confirming = True
        self.budget.shorten(CONFIRMATION_SHARE * self.budget.seconds)

    def cancel(self) -> None:
        """Hand out no more jobs. All measurements are in the database."""
        self.is_cancelled = True

    @property
    def is_idle(self) -> bool:
        """True if no worker has a job."""
        return not self.jobs

    def _first_job(self, searches: Sequence[TaskSearch]) -> Job | None:
        """A trial of a task's default, if the default was not measured yet, or not often enough."""
        share = DEFAULT_SHARE if self.options.measurements else 1.0
        if self.is_confirming or not self._rest.part(share).seconds_left:
            return None
        waiting = [
            s
            for s in searches
            if not s.in_flight and s.passes < self.options.passes and not s.failure
        ]
        if not waiting:
            return None
        return self._job(min(waiting, key=lambda s: s.passes), [], confirms=False)

    def _next_trial(self, searches: Sequence[TaskSearch]) -> Job | None:
        """A trial of candidates, while the budget leaves enough time to confirm the winners."""
        while not self._begins_to_confirm(searches):
            waiting = [s for s in searches if s.in_flight == 0 and s.is_open and s.is_measured]
            if not waiting:
                break
            search = self._priorities.first(waiting, searches)
            seconds = TRIAL_SHARE * self.budget.seconds
            candidates = search.propose(hints(search, searches), seconds)
            if candidates:
                return self._job(search, candidates, confirms=False)
        return None

    def _begins_to_confirm(self, searches: Sequence[TaskSearch]) -> bool:
        """True from the time on when the rest of the budget is needed to confirm the winners."""
        needed = sum(s.confirmation_seconds for s in searches if s.confirmed is None)
        if self.seconds_left <= min(needed, CONFIRMATION_SHARE * self.budget.seconds):
            self.is_confirming = True
        return self.is_confirming

    def _confirmation(self, searches: Sequence[TaskSearch]) -> Job | None:
        """The last trial of a task whose search is over. Tasks that save the most time come
        first.
        """
        for search in sorted(searches, key=saved_ms, reverse=True):
            if search.confirmed is not None or search.in_flight > 0:
                continue
            if not search.is_open or not search.is_measured or self.is_confirming:
                if search.earlier_winner is not None and not search.trials:  # nothing is new
                    search.confirmed = search.earlier_winner
                    continue
                finalists = search.finalists() if self.seconds_left > 0 else []
                if finalists:
                    return self._job(search, finalists, confirms=True)
                search.confirmed = (search.control.member, 1.0)
        return None

    def _comparison_job(self, platform: Platform) -> Job | float | None:
        """A trial that compares the winners of a platform's tasks with the defaults."""
        waits = False
        key = platform.key
        if key not in self.comparisons:
            self.comparisons[key] = self._compare(self.searches[key])
        for comparison in self.comparisons[key]:
            if comparison.is_over:
                continue
            if comparison.is_in_flight:
                waits = True
                continue
            if comparison.is_optional and self.seconds_left == 0:
                comparison.fail("the budget is spent")
                continue
            trial = self.builder.model_trial(comparison.sets)
            if trial is None:
                comparison.fail("it needs more memory than a trial may have")
                continue
            comparison.is_in_flight = True
            number, title, ms = self.count + 1, comparison.title, comparison.ms
            return self._started(ModelJob(number, trial, title, ms, comparison))
        return WAIT_SECONDS if waits else None

    def _is_settled(self, key: str) -> bool:
        """True if a platform has nothing left to measure."""
        comparisons = self.comparisons.get(key)
        return comparisons is not None and all(comparison.is_over for comparison in comparisons)

    def _take_in(self, job: TaskJob, measurement: Measurement) -> list[Record]:
        """Take in a trial of a task, and return its records."""
        search = job.search
        search.in_flight -= 1
        search.trials += len(job.candidates) > 1
        search.candidate_seconds = (self.budget.seconds_spent - job.began) / len(job.candidates)
        control = measurement.milliseconds[0]
        search.control_ms, search.passes = median(control), search.passes + 1
        search.least_ms = min(search.least_ms, *control)
        state: State = "confirmed" if job.confirms else "measured"
        records = [search.record(search.control, state, control, 1.0)]
        best = (search.control.member, 1.0)
        for number, built in enumerate(job.candidates[1:], 1):
            times, reason = measurement.milliseconds[number], measurement.reasons[number]
            ratio = relative_time(times, control) if times else None
            if not job.confirms:
                search.learn(built, ratio)
            elif ratio is not None and ratio < best[1] and is_faster(times, control):
                best = (built.member, ratio)
            if times:
                self._starter.model(search.platform).learn(built.features, median(times))
            if ratio is None:
                search.reasons[built.text] = reason
            failure: State = "wrong" if reason.startswith("wrong") else "failed"
            outcome = failure if ratio is None else state
            records.append(search.record(built, outcome, times, ratio, reason))
        if job.confirms:
            simple = search.simplified(best[0])
            search.confirmed = (simple, best[1])
            records = [r for r in records if r.parameters == plain(best[0])]
            records = [replace(r, parameters=plain(simple)) for r in records]
        return records

    def _take_in_comparison(self, comparison: Comparison, measurement: Measurement) -> list[Record]:
        """Take in the trial of the whole model. Tasks whose winners are rejected keep their
        defaults, and records confirm these defaults.
        """
        records = []
        for search in comparison.take_in(measurement):
            search.confirmed = (search.control.member, 1.0)
            times = (search.control_ms,)
            records.append(search.record(search.control, "confirmed", times, 1.0))
        return records

    def _fail_trial(self, job: TaskJob, reason: str) -> None:
        """Note that a trial of a task failed."""
        search = job.search
        search.in_flight -= 1
        suspects = job.candidates[1:]
        if job.confirms or not suspects:  # not even the default runs here
            search.confirmed = (search.control.member, 1.0)
            search.is_exhausted = True
            search.failure = "" if suspects else reason
        elif len(suspects) > 1:
            search.retries += [[suspect] for suspect in suspects]
        elif self.seconds_left > 0:  # after that, a trial has less time than it may need
            (suspect,) = suspects
            search.learn(suspect, None)
            search.reasons[suspect.text] = f"failed: {reason}"
            record = search.record(suspect, "failed", (), None, f"failed: {reason}")
            self._add([record])

    def _start_all(self, platform: Platform) -> list[TaskSearch]:
        """Begin the searches of a platform whose defaults are built in time, but at least a few."""
        searches: list[TaskSearch] = []
        for tasks in self._starter.batches(self.tasks):
            if searches and not self._rest.part(BUILD_SHARE).seconds_left:
                break
            searches += self._starter.start(tasks, platform)
        return searches

    def _add(self, records: Iterable[Record]) -> None:
        """Add records to the database, if there is one."""
        if self.database is not None:
            self.database.add(records)

    def _job(self, search: TaskSearch, candidates: list[Candidate], confirms: bool) -> Job:
        everything = (search.control, *candidates)
        protocol = CONFIRMATION if confirms else self.options.protocol
        trial = self.builder.trial(search.task, everything, protocol)
        title, expected, began = search.task.name, search.control_ms, self.budget.seconds_spent
        search.in_flight += 1
        return self._started(
            TaskJob(self.count + 1, trial, title, expected, search, began, everything, confirms)
        )

    def _started(self, job: Job) -> Job:
        """Note a job that a worker takes."""
        self.count += 1
        self.jobs[job.number] = job
        return job

    def _changed(self) -> None:
        if self._on_change is not None:
            self._on_change(self)


def gain(searches: Iterable[TaskSearch]) -> float:
    """The time of the searched kernels with their defaults, over that with their winners."""
    default = tuned = 0.0
    for search in searches:
        if search.is_measured:
            milliseconds = search.task.calls * search.control_ms
            default += milliseconds
            tuned += milliseconds * (search.confirmed[1] if search.confirmed else search.best)
    return default / tuned if tuned else 1.0
