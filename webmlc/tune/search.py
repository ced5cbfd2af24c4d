"""Search the schedules of a model's tasks: which trial to measure next, and what it showed.

    search = Search(tasks, options, database)
    job = search.next_job(platform)             # a trial for a worker; None: nothing left to do
    search.finish(job, measurement)             # or give_back(job), or fail(job, reason)

A worker asks for jobs until there are none (see `workers`). Many workers may ask at once, from any
thread. Workers of one platform share a search of each task; another platform starts its own. Tasks
take turns: the one whose share of the model's time, divided by the square of the trials it had, is
largest comes next. When the budget is spent, a trial with more rounds confirms each task's winner.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import repeat
from statistics import median

import numpy as np
from numpy.typing import NDArray

from webmlc.schedule.rules.space import Values, changes, values_of
from webmlc.tune.candidates import Candidate, candidate, make_trial, try_candidate
from webmlc.tune.database import Database, Record, State
from webmlc.tune.model_search import ModelSearch
from webmlc.tune.platforms import Platform
from webmlc.tune.strategies import STRATEGIES, Strategy, identity, is_small
from webmlc.tune.tasks import Task
from webmlc.tune.trial import PROTOCOL, Measurement, Protocol, Trial
from webmlc.version import VERSION

BATCH = 8
"""Candidates of a trial besides the control (chosen by hand: enough to share the trial's start)."""
PROPOSALS = 12
"""How often a strategy is asked for code that was not measured yet, before its search counts as
exhausted (chosen by hand: a population that has converged proposes much of the same)."""
CONFIRMED = 3
"""The fastest candidates of a search that take part in its last trial."""
CONFIRMATION = replace(PROTOCOL, rounds=30, hopeless=1e9)
"""How the last trial of a search is measured: nobody drops out."""
WORTHWHILE = 0.98
"""A candidate replaces the default if it takes less than this share of its time in three rounds of
four: less is noise."""


@dataclass(frozen=True, slots=True)
class Options:
    """How to search.

    - `strategy`: "auto" races small spaces, and uses the cost model for others.
    - `seconds`: the budget of the whole search; winners are confirmed after it.
    - `resume`: go on with what the database has of the tasks.
    - `measurements`: the most candidates of a task that are measured.
    - `cold`: start from the first point of each space instead of the default (to judge strategies).
    """

    strategy: str = "auto"
    seconds: float = 600.0
    measurements: int = 200
    seed: int = 0
    model: str = ""
    resume: bool = False
    cold: bool = False
    protocol: Protocol = PROTOCOL


@dataclass(frozen=True, slots=True)
class Job:
    """A trial of one task for a worker of one platform. Candidate 0 is the control."""

    number: int
    search: TaskSearch
    candidates: tuple[Candidate, ...]
    trial: Trial
    confirms: bool

    @property
    def title(self) -> str:
        """What a person who watches the worker reads."""
        return self.search.task.name


@dataclass(slots=True)
class TaskSearch:
    """The search of one task on one platform: what was tried, and how fast it was.

    `ratios` holds the relative time of each text of code (`None`: disqualified), `reasons` why a
    text is disqualified. `best` is the lowest ratio, and `curve` what it was after each
    measurement. `builders` build candidates side by side. `failure` says why not even the default
    schedule could be measured.
    """

    task: Task
    platform: Platform
    strategy: Strategy
    control: Candidate
    options: Options
    builders: Executor | None = None
    built: dict[str, Candidate | None] = field(default_factory=dict)
    ratios: dict[str, float | None] = field(default_factory=dict)
    members: dict[str, Values] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    retries: list[list[Candidate]] = field(default_factory=list)
    best: float = 1.0
    curve: list[float] = field(default_factory=list)
    trials: int = 0
    in_flight: int = 0
    control_ms: float = math.nan
    is_exhausted: bool = False
    failure: str = ""
    confirmed: tuple[Values, float] | None = None

    @property
    def measured(self) -> int:
        """The candidates measured so far."""
        return len(self.curve)

    @property
    def share(self) -> float:
        """The milliseconds that a run of the model spends in this kernel, as far as known."""
        if math.isnan(self.control_ms):
            return math.inf
        return self.task.calls * self.control_ms * self.best

    @property
    def is_open(self) -> bool:
        """True if something remains to be proposed."""
        is_full = self.is_exhausted or self.measured >= self.options.measurements
        return self.confirmed is None and (bool(self.retries) or not is_full)

    def propose(self) -> list[Candidate]:
        """The candidates of the next trial: code that was not measured yet."""
        if self.retries:
            return self.retries.pop()
        count = min(BATCH, self.options.measurements - self.measured)
        fresh: dict[str, Candidate] = {}
        for _ in range(PROPOSALS):
            members = self.strategy.ask(count - len(fresh))
            self.is_exhausted = not members
            self.build(members)
            for values in members:
                built = self.built[identity(values)]
                if built is None:
                    self.strategy.tell(values, None)
                elif built.text in self.ratios:
                    self.strategy.tell(values, self.ratios[built.text])
                elif built.text in fresh:
                    self.strategy.tell(values, 1.0)
                else:
                    fresh[built.text] = built
            if len(fresh) >= count or not members:
                break
        if not fresh:
            self.is_exhausted = True
        return list(fresh.values())

    def build(self, members: Iterable[Values]) -> list[Candidate | None]:
        """The candidates of some members, `None` for one that cannot be built."""
        keys = {identity(values): values for values in members}
        missing = [(key, values) for key, values in keys.items() if key not in self.built]
        tasks = repeat(self.task, len(missing))
        build = map if self.builders is None else self.builders.map
        candidates = build(try_candidate, tasks, [values for _, values in missing])
        for (key, _), built in zip(missing, candidates, strict=True):
            self.built[key] = built
        return [self.built[key] for key in keys]

    def features_of(self, members: Sequence[Values]) -> list[NDArray[np.float32] | None]:
        """The features of some members' code, `None` for code that was measured before."""
        return [
            None if built is None or built.text in self.ratios else built.features
            for built in self.build(members)
        ]

    def learn(self, built: Candidate, ratio: float | None, milliseconds: float | None) -> None:
        """Note the time of a candidate, relative to the control's."""
        if ratio is not None:
            self.best = min(self.best, ratio)
        self.ratios[built.text] = ratio
        self.members[built.text] = built.values
        self.strategy.tell(built.values, ratio)
        if milliseconds is not None and isinstance(self.strategy, ModelSearch):
            self.strategy.learn(built.features, milliseconds)
        self.curve.append(self.best)

    def simplified(self, values: Values) -> Values:
        """The same code from fewer changes: parameters that do not matter are the default ones."""
        (target,) = self.build([values])
        default = self.control.values

        def is_same(built: Candidate | None) -> bool:
            return built is not None and target is not None and built.text == target.text

        changed = changes(default, values)
        without = [{**values, name: default[name]} for name in changed]
        builds = zip(changed, self.build(without), strict=True)
        simple = {**values, **{name: default[name] for name, built in builds if is_same(built)}}
        (built,) = self.build([simple])
        return simple if is_same(built) and simple in self.task.match.space() else values

    def finalists(self) -> list[Candidate]:
        """The fastest candidates, the fastest first."""
        ranked = sorted((r, text) for text, r in self.ratios.items() if r is not None)
        members = [self.members[text] for r, text in ranked if r < 1.0]
        built = self.build(members[:CONFIRMED])
        return [b for b in built if b is not None and b.text != self.control.text]


class Search:
    """The searches of all tasks on all platforms. Safe to use from several threads."""

    def __init__(
        self,
        tasks: Sequence[Task],
        options: Options,
        database: Database | None = None,
        threads: int = 1,
        builders: Executor | None = None,
        on_change: Callable[[Search], None] | None = None,
    ) -> None:
        """`builders` are processes that build candidates side by side. `on_change` is called after
        each trial, with the lock held.
        """
        self.tasks, self.options, self.database = list(tasks), options, database
        self.threads, self.builders = threads, builders
        self.searches: dict[str, list[TaskSearch]] = {}
        self.jobs: dict[int, Job] = {}
        self.started = math.inf
        self.count = 0
        self.is_cancelled = False
        self._on_change = on_change
        self._lock = threading.RLock()

    @property
    def seconds_left(self) -> float:
        """The rest of the budget, which begins with the first job."""
        ends = min(self.started, time.monotonic()) + self.options.seconds
        return max(0.0, ends - time.monotonic())

    @property
    def is_done(self) -> bool:
        """True if no platform that joined has jobs left."""
        searches = self.all_searches()
        settled = bool(searches) and all(s.confirmed is not None for s in searches)
        return self.is_cancelled or settled

    def all_searches(self) -> list[TaskSearch]:
        """The searches of every platform."""
        return [search for searches in self.searches.values() for search in searches]

    def next_job(self, platform: Platform) -> Job | float | None:
        """A job for a worker of this platform; the seconds to wait for one; `None`: there will be
        none.
        """
        with self._lock:
            if self.is_cancelled:
                return None
            searches = self._of_platform(platform)
            self.started = min(self.started, time.monotonic())
            for search in searches:  # how long does each default take?
                if math.isnan(search.control_ms) and not search.failure and not search.in_flight:
                    return self._job(search, [], confirms=False)
            while self.seconds_left > 0:
                waiting = [s for s in searches if s.is_open and s.in_flight == 0]
                if not waiting:
                    break
                search = max(waiting, key=lambda s: s.share / (1 + s.trials) ** 2)
                candidates = search.propose()
                if candidates:
                    return self._job(search, candidates, confirms=False)
            unsettled = [s for s in searches if s.confirmed is None]
            for search in unsettled:
                if search.in_flight == 0 and (not search.is_open or self.seconds_left == 0):
                    finalists = search.finalists()
                    if finalists:
                        return self._job(search, finalists, confirms=True)
                    search.confirmed = (search.control.values, 1.0)
            return 0.05 if any(s.confirmed is None for s in unsettled) else None

    def finish(self, job: Job, measurement: Measurement) -> None:
        """Take in what a worker measured."""
        with self._lock:
            if self.jobs.pop(job.number, None) is None:
                return  # it was given back, and another worker has it
            search = job.search
            search.in_flight -= 1
            search.trials += len(job.candidates) > 1
            control = measurement.milliseconds[0]
            search.control_ms = median(control)
            records = [self._record(job, 0, "confirmed" if job.confirms else "measured", control,
                                    1.0, "")]  # fmt: skip
            best = (search.control.values, 1.0)
            for number, built in enumerate(job.candidates[1:], 1):
                times, reason = measurement.milliseconds[number], measurement.reasons[number]
                ratio = relative_time(times, control) if times else None
                if not job.confirms:
                    search.learn(built, ratio, median(times) if times else None)
                elif ratio is not None and ratio < best[1] and is_faster(times, control):
                    best = (built.values, ratio)
                state: State = "confirmed" if job.confirms else "measured"
                if ratio is None:
                    search.reasons[built.text] = reason
                    state = "wrong" if reason.startswith("wrong") else "failed"
                records.append(self._record(job, number, state, times, ratio, reason))
            if job.confirms:
                records = [r for r in records if r.parameters == best[0]]
                simple = search.simplified(best[0])
                search.confirmed = (simple, best[1])
                records = [replace(r, parameters=dict(simple)) for r in records]
            if self.database is not None:
                self.database.add(records)
            self._changed()

    def give_back(self, job: Job) -> None:
        """Return a job whose worker was lost: another worker measures it."""
        with self._lock:
            if self.jobs.pop(job.number, None) is None:
                return
            job.search.in_flight -= 1
            if not job.confirms and len(job.candidates) > 1:
                job.search.retries.append(list(job.candidates[1:]))

    def fail(self, job: Job, reason: str) -> None:
        """Note that a trial crashed its engine, or never ended. Its candidates are tried one by
        one: the one that fails alone is disqualified.
        """
        with self._lock:
            if self.jobs.pop(job.number, None) is None:
                return
            search = job.search
            search.in_flight -= 1
            suspects = job.candidates[1:]
            if job.confirms or not suspects:  # not even the default runs here
                search.confirmed = (search.control.values, 1.0)
                search.is_exhausted = True
                search.failure = "" if suspects else reason
            elif len(suspects) > 1:
                search.retries += [[suspect] for suspect in suspects]
            else:
                for number, suspect in enumerate(suspects, 1):
                    search.learn(suspect, None, None)
                    search.reasons[suspect.text] = f"failed: {reason}"
                    record = self._record(job, number, "failed", (), None, f"failed: {reason}")
                    if self.database is not None:
                        self.database.add([record])
            self._changed()

    def end_budget(self) -> None:
        """Measure no more candidates; the winners so far are still confirmed."""
        self.started = -self.options.seconds

    def cancel(self) -> None:
        """Hand out no more jobs. What was measured is in the database."""
        self.is_cancelled = True

    @property
    def is_idle(self) -> bool:
        """True if no worker has a job."""
        return not self.jobs

    def _of_platform(self, platform: Platform) -> list[TaskSearch]:
        if platform.key not in self.searches:
            build = map if self.builders is None else self.builders.map
            defaults = [values_of(task.match.default()) for task in self.tasks]
            controls = build(candidate, self.tasks, defaults)
            self.searches[platform.key] = [
                self._start(task, platform, control)
                for task, control in zip(self.tasks, controls, strict=True)
            ]
        return self.searches[platform.key]

    def _start(self, task: Task, platform: Platform, control: Candidate) -> TaskSearch:
        """Begin the search of a task: with what the database has of it, or with its default."""
        space = task.match.space().without_proofs()  # what does not build is told as disqualified
        name, seed = self.options.strategy, self.options.seed
        if name == "auto":
            name = "race" if is_small(space) else "model"
        if name == "model":
            examples = self._examples(task, platform)
            strategy: Strategy = ModelSearch(space, seed, lambda m: search.features_of(m), examples)
        else:
            strategy = STRATEGIES[name](space, seed)
        search = TaskSearch(task, platform, strategy, control, self.options, self.builders)
        if self.options.cold:
            first = candidate(task, next(space.members()))
            search.retries.append([first])
            search.best = math.inf  # the default does not count
        else:
            search.strategy.tell(control.values, 1.0)
            search.ratios[control.text] = 1.0
            search.members[control.text] = control.values
        for record in self._earlier(task, platform):
            if record.parameters not in space:
                continue  # an older webmlc had other choices
            (built,) = search.build([record.parameters])
            if built is not None and built.text not in search.ratios:
                search.learn(built, record.ratio, record.milliseconds)
                if record.ratio is None:
                    search.reasons[built.text] = record.reason
        return search

    def _earlier(self, task: Task, platform: Platform) -> Iterable[Record]:
        """What earlier runs measured of a task."""
        if self.database is None or not self.options.resume:
            return ()
        records = self.database.records(task=task.key, platform=platform.key)
        return [r for r in records if r.sizes == task.size_bucket and r.state != "confirmed"]

    def _examples(self, task: Task, platform: Platform) -> list[tuple[NDArray[np.float32], float]]:
        """What was measured of other tasks on this platform, for the cost model."""
        if self.database is None:
            return []
        return [
            (np.array(r.features, np.float32), r.milliseconds)
            for r in self.database.records(platform=platform.key)
            if r.task != task.key and r.milliseconds is not None and r.features
        ]

    def _job(self, search: TaskSearch, candidates: list[Candidate], confirms: bool) -> Job:
        everything = (search.control, *candidates)
        protocol = CONFIRMATION if confirms else self.options.protocol
        trial = make_trial(search.task, everything, self.threads, protocol)
        self.count += 1
        job = Job(self.count, search, everything, trial, confirms)
        self.jobs[job.number] = job
        search.in_flight += 1
        return job

    def _record(
        self,
        job: Job,
        number: int,
        state: State,
        times: Sequence[float],
        ratio: float | None,
        reason: str,
    ) -> Record:
        task, built = job.search.task, job.candidates[number]
        return Record(
            task=task.key,
            name=task.name,
            device=task.device,
            rule=task.match.rule.name,
            sizes=task.size_bucket,
            platform=job.search.platform,
            parameters=dict(built.values),
            state=state,
            milliseconds=median(times) if times else None,
            ratio=ratio,
            rounds=len(times),
            reason=reason,
            features=tuple(map(float, built.features)) if times else (),
            model=self.options.model,
            compiler=VERSION,
            date=datetime.now(UTC).isoformat(timespec="milliseconds"),
        )

    def _changed(self) -> None:
        if self._on_change is not None:
            self._on_change(self)


def relative_time(times: Sequence[float], control: Sequence[float]) -> float:
    """The median of a candidate's time over the control's in the same round."""
    return median(t / c for t, c in zip(times, control, strict=False))


def is_faster(times: Sequence[float], control: Sequence[float]) -> bool:
    """True if a candidate is faster than the control in most rounds, and not by noise alone."""
    ratios = [t / c for t, c in zip(times, control, strict=False)]
    return float(np.quantile(ratios, 0.75)) < WORTHWHILE


def gain(searches: Iterable[TaskSearch]) -> float:
    """The time of the searched kernels with their defaults, over that with their winners."""
    default = tuned = 0.0
    for search in searches:
        if not math.isnan(search.control_ms):
            milliseconds = search.task.calls * search.control_ms
            default += milliseconds
            tuned += milliseconds * (search.confirmed[1] if search.confirmed else search.best)
    return default / tuned if tuned else 1.0
