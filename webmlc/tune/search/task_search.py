"""The search of one task on one platform: its candidates, and their times.

    candidates = search.propose()                # code that was not measured yet
    search.learn(candidate, ratio)
    search.finalists()                           # the fastest, which a last trial confirms

`search` runs the searches of all tasks of a model.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import islice, repeat
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from webmlc.schedule.rules.space import Leaves, Space, changes, leaves_of, plain
from webmlc.tune.database import Record, State
from webmlc.tune.measure.candidates import Candidate, Refusal
from webmlc.tune.measure.make_trials import CandidateBuilder
from webmlc.tune.measure.platforms import Platform
from webmlc.tune.measure.trial import PROTOCOL, Protocol
from webmlc.tune.search.strategies import Strategy
from webmlc.tune.tasks import Task
from webmlc.version import VERSION

BATCH = 8
"""Candidates of a trial besides the control (chosen by hand: enough to share the trial's start)."""
LEAST_BATCH = 4
"""Candidates of a trial besides the control, if a search has few measurements (chosen by hand: the
control takes a fifth of such a trial)."""
TRIALS = 16
"""The trials of a search, if it has enough measurements: its strategy learns between trials. With
trials of 4 candidates, 243 of 300 searches of 64 measurements by `evolve` came within 5 % of a
schedule by hand, and 237 with trials of 8 (see `population.MUTATIONS`); by `model`, 27 of 30 and 14
of 16."""
PROPOSALS = 12
"""How often a strategy is asked for code that was not measured yet, before its search counts as
exhausted (chosen by hand: a population that has converged proposes the same code again)."""
CONFIRMED = 3
"""The fastest candidates of a search that take part in its last trial."""
CONFIRMATION_FACTOR = 2.0
"""The time of a candidate in the last trial over its time in other trials: the last trial has 2.5
times the rounds, but its candidates are already built."""
HINTS = 4
"""The most candidates of a trial that are hints from other kernels: half of a trial (chosen by
hand)."""
BUILD_MS = 250.0
"""The milliseconds that a candidate takes to build, on one core: 140 to 320 for convolutions and a
softmax (measured on a Zen 4 class core, 2026-11-26)."""
WORTHWHILE = 0.98
"""A candidate replaces the default if it takes less than this share of the default's time in three
rounds of four: smaller gains are noise."""


@dataclass(frozen=True, slots=True)
class Options:
    """How to search.

    - `strategy`: "auto" races small spaces, and uses the cost model for large spaces.
    - `seconds`: the budget of the whole search.
    - `resume`: go on from the database's records of the tasks.
    - `measurements`: the most candidates of a task that are measured.
    - `passes`: how often the default of each task is measured before the candidates.
    - `cold`: start from the first point of each space instead of the default (to judge strategies).
    - `is_guided`: the default is a good choice. Otherwise strategies do not learn its time, so that
      they do not begin near it.
    """

    strategy: str = "auto"
    seconds: float = 600.0
    measurements: int = 200
    passes: int = 1
    seed: int = 0
    model: str = ""
    resume: bool = False
    cold: bool = False
    is_guided: bool = True
    protocol: Protocol = PROTOCOL


@dataclass(slots=True)
class TaskSearch:
    """The search of one task on one platform: its candidates, and their times.

    `space` holds the members to try. `ratios` holds the relative time of each text of code (`None`:
    disqualified), `reasons` why a text is disqualified. If an earlier run has measured a member,
    the member itself stands for its text and is not built again. `refusals` say why a member could
    not be built. `best` is the lowest ratio, `improvement` the difference of the best member from
    the default, and `curve` the lowest ratio after each measurement. `earlier_changes` are changes
    of defaults that made kernels of the rule faster in earlier runs. `least_ms` is the shortest
    time of the default, which was measured `passes` times. `failure` says why even the default
    schedule could not be measured. `candidate_seconds` is the time of each candidate in the last
    trial, NaN before the first trial. `confirmed` are the parameters that a build gets, and their
    relative time; `earlier_winner` is the same of an earlier run that this search resumes.
    """

    task: Task
    platform: Platform
    space: Space[Any]
    strategy: Strategy
    control: Candidate
    options: Options
    builder: CandidateBuilder
    built: dict[Any, Candidate | None] = field(default_factory=dict)
    ratios: dict[Any, float | None] = field(default_factory=dict)
    members: dict[Any, Any] = field(default_factory=dict)
    reasons: dict[Any, str] = field(default_factory=dict)
    refusals: dict[Any, str] = field(default_factory=dict)
    retries: list[list[Candidate]] = field(default_factory=list)
    best: float = 1.0
    improvement: Leaves = field(default_factory=dict)
    earlier_changes: Sequence[Leaves] = ()
    curve: list[float] = field(default_factory=list)
    trials: int = 0
    in_flight: int = 0
    control_ms: float = math.nan
    least_ms: float = math.inf
    passes: int = 0
    candidate_seconds: float = math.nan
    is_exhausted: bool = False
    failure: str = ""
    confirmed: tuple[Any, float] | None = None
    earlier_winner: tuple[Any, float] | None = None

    @property
    def measured(self) -> int:
        """The candidates measured so far."""
        return len(self.curve)

    @property
    def is_measured(self) -> bool:
        """True if the time of the default is known."""
        return not math.isnan(self.control_ms)

    @property
    def confirmation_seconds(self) -> float:
        """The seconds that the last trial takes, 0 if there is nothing to confirm."""
        if not (self.is_measured and self.best < WORTHWHILE):
            return 0.0
        return CONFIRMATION_FACTOR * (1 + min(CONFIRMED, self.measured)) * self.candidate_seconds

    @property
    def share(self) -> float:
        """The milliseconds that a run of the model spends in this kernel, as far as known."""
        if not self.is_measured:
            return math.inf
        return self.task.calls * self.control_ms * self.best

    @property
    def is_open(self) -> bool:
        """True if something remains to be proposed."""
        is_full = self.is_exhausted or self.measured >= self.options.measurements
        return self.confirmed is None and (bool(self.retries) or not is_full)

    @property
    def is_slow(self) -> bool:
        """True if it takes longer to measure a candidate than to build it."""
        return 1e3 * self.candidate_seconds > BUILD_MS

    @property
    def batch(self) -> int:
        """The candidates of the next trial. The first trial, before which a strategy has nothing to
        learn from, is full.
        """
        if not self.measured:
            return BATCH
        return min(BATCH, max(LEAST_BATCH, self.options.measurements // TRIALS))

    def propose(self, hints: Iterable[Any] = (), seconds: float = math.inf) -> list[Candidate]:
        """The candidates of the next trial: code that was not measured yet, as much as is built and
        measured in about some seconds. The hints come first. Unless they are enough, the strategy
        is asked at least once, however short the time.
        """
        if self.retries:
            return self.retries.pop()
        deadline = time.monotonic() + seconds
        count = min(self.batch, self.options.measurements - self.measured)
        if count * self.candidate_seconds > seconds:
            count = max(1, int(seconds / self.candidate_seconds))
        fresh: dict[str, Candidate] = {}
        unknown = islice(dict.fromkeys(hints), min(HINTS, (count + 1) // 2))
        self._add_fresh([*unknown], fresh)
        for attempt in range(PROPOSALS):
            if len(fresh) >= count or (attempt and time.monotonic() > deadline):
                break
            members = self.strategy.ask(count - len(fresh))
            self._add_fresh(members, fresh)
            if not members:
                self.is_exhausted = True
                break
        else:
            self.is_exhausted = not fresh
        return list(fresh.values())

    def _add_fresh(self, members: Sequence[Any], fresh: dict[str, Candidate]) -> None:
        """Add the code of some members that was not measured yet. The strategy is told the times of
        code that was already measured.
        """
        for member in members:
            if member in self.ratios:
                self.strategy.tell(member, self.ratios[member])
        members = [member for member in members if member not in self.ratios]
        for member, built in zip(members, self.build(members), strict=True):
            if built is None:
                self.strategy.tell(member, None)
            elif built.text in self.ratios:
                self.strategy.tell(member, self.ratios[built.text])
            elif built.text in fresh:
                self.strategy.tell(member, 1.0)
            else:
                fresh[built.text] = built

    def build(self, members: Sequence[Any]) -> list[Candidate | None]:
        """The candidate of each member, `None` for a member that cannot be built."""
        missing = [member for member in dict.fromkeys(members) if member not in self.built]
        candidates = self.builder.build(repeat(self.task, len(missing)), missing)
        for member, candidate in zip(missing, candidates, strict=True):
            if isinstance(candidate, Refusal):
                self.built[member], self.refusals[member] = None, candidate.reason
            else:
                self.built[member] = candidate
        return [self.built[member] for member in members]

    def features_of(self, members: Sequence[Any]) -> list[NDArray[np.float32] | None]:
        """The features of some members' code, `None` for code that was measured before."""
        return [
            None if built is None or built.text in self.ratios else built.features
            for built in self.build(members)
        ]

    def learn(self, built: Candidate, ratio: float | None) -> None:
        """Note the time of a candidate, relative to the control's."""
        self._note(built.text, built.member, ratio)

    def resume(self, record: Record) -> None:
        """Take in the record of an earlier run. The spaces of an older webmlc had other members."""
        member = self.space.read(record.parameters)
        if record.state == "confirmed" and member is not None and record.ratio is not None:
            self.earlier_winner = member, record.ratio
            if record.milliseconds is not None:
                self.control_ms, self.passes = record.milliseconds / record.ratio, 1
        elif member == self.control.member and record.milliseconds is not None:
            self.control_ms, self.passes = record.milliseconds, 1
        elif member not in (None, self.control.member) and member not in self.ratios:
            self._note(member, member, record.ratio)
            if record.ratio is None:
                self.reasons[member] = record.reason

    def _note(self, key: Any, member: Any, ratio: float | None) -> None:
        """Note the relative time of a member, under the key that stands for its code."""
        if ratio is not None and ratio < self.best:
            self.best, self.improvement = ratio, changes(self.control.member, member)
        self.ratios[key], self.members[key] = ratio, member
        self.strategy.tell(member, ratio)
        self.curve.append(self.best)

    def control_record(self) -> Record:
        """The record of a default that a survey has measured."""
        return self.record(self.control, "measured", (self.control_ms,), 1.0)

    def record(
        self,
        built: Candidate,
        state: State,
        times: Sequence[float],
        ratio: float | None,
        reason: str = "",
    ) -> Record:
        """The record of a candidate that took these milliseconds in the rounds of a trial."""
        task = self.task
        return Record(
            task=task.key,
            name=task.name,
            device=task.device,
            rule=task.match.rule.name,
            sizes=task.size_bucket,
            platform=self.platform,
            parameters=plain(built.member),
            state=state,
            milliseconds=median(times) if times else None,
            ratio=ratio,
            rounds=len(times),
            reason=reason,
            features=tuple(built.features.tolist()) if times else (),
            model=self.options.model,
            compiler=VERSION,
            date=datetime.now(UTC).isoformat(timespec="milliseconds"),
        )

    def simplified(self, member: Any) -> Any:
        """The same code from fewer changes: leaves that do not matter have the default values."""
        (target,) = self.build([member])

        def is_same(other: Any) -> bool:
            built = self.build([other])[0] if other is not None and other in self.space else None
            return built is not None and target is not None and built.text == target.text

        default = leaves_of(self.control.member)
        every = {**default, **leaves_of(member)}
        changed = changes(self.control.member, member).keys() & default.keys()
        needless = {
            path: default[path]
            for path in sorted(changed)
            if is_same(self.space.at({**every, path: default[path]}))
        }
        simple = self.space.at({**every, **needless})
        return simple if is_same(simple) else member

    def finalists(self) -> list[Candidate]:
        """The fastest candidates, the fastest first."""
        ranked = sorted((r, text) for text, r in self.ratios.items() if r is not None)
        members = [self.members[text] for r, text in ranked if r < WORTHWHILE]
        built = (b for b in self.build(members[:CONFIRMED]) if b is not None)
        unique = {b.text: b for b in built}
        return [b for text, b in unique.items() if text != self.control.text]


def relative_time(times: Sequence[float], control: Sequence[float]) -> float:
    """The median of a candidate's time over the control's in the same round."""
    return median(t / c for t, c in zip(times, control, strict=False))


def is_faster(times: Sequence[float], control: Sequence[float], limit: float = WORTHWHILE) -> bool:
    """True if a candidate takes less than `limit` of the control's time in three rounds of four.

    This is a sign test: if the median were at the limit, 23 of 30 rounds would be below it with a
    probability of 0.3 %.
    """
    ratios = [t / c for t, c in zip(times, control, strict=False)]
    return 4 * sum(ratio < limit for ratio in ratios) >= 3 * len(ratios)
