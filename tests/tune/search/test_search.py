"""The search: every job is finished, given back or failed, and nothing measured is lost."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pytest

from tests.tune.small_search import (
    CONFIRMED_RATIO,
    CONTROL_MS,
    FAILED,
    PLATFORM,
    FixedWorker,
    small_tasks,
)
from webmlc.schedule.rules.space import plain
from webmlc.tune.database import Database
from webmlc.tune.measure.candidates import Candidate
from webmlc.tune.measure.trial import Measurement, Trial
from webmlc.tune.measure.workers import WorkerFailed, work
from webmlc.tune.search.budget import Budget
from webmlc.tune.search.search import Search, TaskJob
from webmlc.tune.search.task_search import BATCH, Options, TaskSearch, is_faster, relative_time

OPTIONS = Options("random", seconds=600, measurements=2 * BATCH)


def first_trial(search: Search) -> TaskJob:
    """The first job with candidates; the defaults are measured before it."""
    worker = FixedWorker()
    while True:
        job = search.next_job(PLATFORM)
        assert isinstance(job, TaskJob)
        if len(job.candidates) > 1:
            return job
        search.finish(job, worker.measure(job.trial, 1))


def texts(job: TaskJob) -> set[str]:
    """The code of a job's candidates, without the control's."""
    return {candidate.text for candidate in job.candidates[1:]}


def search_of(job: TaskJob) -> TaskSearch:
    """The search that a job belongs to."""
    return job.search


def test_a_trial_that_is_given_back_is_measured_by_another_worker() -> None:
    search = Search(small_tasks(), OPTIONS)
    job = first_trial(search)
    search.give_back(job)
    again = search.next_job(PLATFORM)
    assert isinstance(again, TaskJob)
    assert texts(again) == texts(job)
    worker = FixedWorker()
    search.finish(job, worker.measure(job.trial, 1))  # the lost worker answers after all
    assert search_of(job).measured == 0
    search.finish(again, worker.measure(again.trial, 1))
    assert search_of(job).measured == len(texts(job))


class CrashingWorker(FixedWorker):
    """A worker whose engine crashes whenever a trial holds one certain candidate."""

    def __init__(self, search: Search, culprit: Candidate) -> None:
        super().__init__(step=0.0)
        self.search, self.culprit = search, culprit

    def measure(self, trial: Trial, seconds: float) -> Measurement:
        """See `FixedWorker`."""
        jobs = [job for job in self.search.jobs.values() if job.trial is trial]
        if any(self.culprit.text in texts(job) for job in jobs):
            raise WorkerFailed("the engine's process ended")
        return super().measure(trial, seconds)


def test_a_candidate_that_crashes_is_disqualified_and_the_others_are_not(tmp_path: Path) -> None:
    with Database(tmp_path / "t.db") as database:
        search = Search(small_tasks()[:1], OPTIONS, database)
        job = first_trial(search)
        culprit = job.candidates[3]
        search.give_back(job)
        work(search, CrashingWorker(search, culprit))
        failed = list(database.records(state="failed"))
        crashed = [record for record in failed if "the engine's process ended" in record.reason]
        assert [r.parameters for r in crashed] == [plain(culprit.member)]
        searched = search_of(job)
        assert searched.ratios[culprit.text] is None
        others = texts(job) - {culprit.text}
        assert all(searched.ratios[text] is not None for text in others)
        assert searched.confirmed is not None


def test_a_default_that_cannot_run_ends_the_search_of_its_task() -> None:
    search = Search(small_tasks(), OPTIONS)
    job = search.next_job(PLATFORM)
    assert isinstance(job, TaskJob)
    search.fail(job, "no relaxed SIMD here")
    searched = search_of(job)
    assert searched.failure == "no relaxed SIMD here"
    assert searched.confirmed == (searched.control.member, 1.0)
    work(search, FixedWorker())
    assert search.is_done


def test_a_search_goes_on_where_an_earlier_one_ended(tmp_path: Path) -> None:
    tasks = small_tasks()[:1]
    with Database(tmp_path / "t.db") as database:
        work(Search(tasks, OPTIONS, database), FixedWorker(step=0.0))
        space = tasks[0].match.space()
        measured = {space.read(r.parameters) for r in database.records(state="measured")}
        resumed = Search(tasks, replace(OPTIONS, resume=True, measurements=3 * BATCH), database)
        job = first_trial(resumed)
        assert measured.isdisjoint(c.member for c in job.candidates[1:])
        assert search_of(job).measured >= len(measured) - 1
        built = {key for s in resumed.all_searches() for key in s.built}
        assert measured.isdisjoint(built - {search_of(job).control.member})
        fresh = Search(tasks, OPTIONS, database)
        assert search_of(first_trial(fresh)).measured == 0


def test_the_winner_of_an_earlier_run_is_confirmed(tmp_path: Path) -> None:
    tasks = small_tasks()[:1]
    with Database(tmp_path / "t.db") as database:
        work(Search(tasks, replace(OPTIONS, measurements=BATCH), database), FixedWorker())
        resumed = Search(tasks, replace(OPTIONS, resume=True, measurements=1), database)
        work(resumed, FixedWorker())
        (searched,) = resumed.all_searches()
        assert searched.confirmed is not None
        assert searched.confirmed[1] == CONFIRMED_RATIO


def test_a_run_that_ended_is_measured_no_more(tmp_path: Path) -> None:
    tasks = small_tasks()[:1]
    options = replace(OPTIONS, resume=True)
    with Database(tmp_path / "t.db") as database:
        first = Search(tasks, options, database, compare=lambda searches: ())
        work(first, FixedWorker())
        records = list(database.records())
        second = Search(tasks, options, database, compare=lambda searches: ())
        assert second.next_job(PLATFORM) is None
        assert second.is_done
        assert list(database.records()) == records
    (earlier,), (resumed,) = first.all_searches(), second.all_searches()
    assert resumed.confirmed == earlier.confirmed
    assert resumed.confirmed is not None
    assert resumed.confirmed[1] == CONFIRMED_RATIO
    assert resumed.control_ms == pytest.approx(CONTROL_MS)
    assert resumed.curve == pytest.approx(earlier.curve)


def test_the_end_of_the_budget_still_confirms_the_winners() -> None:
    search = Search(small_tasks(), OPTIONS)
    job = first_trial(search)
    search.finish(job, FixedWorker().measure(job.trial, 1))
    search.end_budget()
    work(search, FixedWorker())
    assert search.is_done
    searched = search_of(job)
    assert searched.confirmed is not None
    assert searched.confirmed[1] < 1


def test_platforms_have_searches_of_their_own() -> None:
    search = Search(small_tasks(), OPTIONS)
    work(search, FixedWorker())
    other = FixedWorker()
    other.platform = replace(PLATFORM, hardware="Another CPU")
    work(search, other)
    first, second = search.searches.values()
    assert [s.task.key for s in first] == [s.task.key for s in second]
    assert all(s.confirmed is not None for s in (*first, *second))


def test_many_workers_measure_everything_once() -> None:
    search = Search(small_tasks(), OPTIONS)
    counts: list[int] = []

    class CountingWorker(FixedWorker):
        def measure(self, trial: Trial, seconds: float) -> Measurement:
            counts.append(trial.candidates - 1)
            return super().measure(trial, seconds)

    threads = [threading.Thread(target=work, args=(search, CountingWorker())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert search.is_done
    assert search.is_idle
    assert sum(s.measured for s in search.all_searches()) <= sum(counts)


@pytest.mark.parametrize(
    ("times", "ratio", "faster"),
    [
        ([1.0] * 8, 0.5, True),
        ([1.98] * 8, 0.99, False),  # by noise alone
        ([1.0] * 5 + [2.5] * 3, 0.5, False),  # not in three rounds of four
        ([4.0] * 8, 2.0, False),
    ],
)
def test_a_winner_is_faster_in_most_rounds(times: list[float], ratio: float, faster: bool) -> None:
    control = [CONTROL_MS] * 8
    assert relative_time(times, control) == ratio
    assert is_faster(times, control) is faster


def test_a_disqualified_candidate_has_a_reason() -> None:
    search = Search(small_tasks()[:1], OPTIONS)
    job = first_trial(search)
    search.finish(job, FixedWorker().measure(job.trial, 1))
    assert FAILED in search_of(job).reasons.values()


class TimedWorker(FixedWorker):
    """A worker on which each candidate takes some seconds."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds, self.now = seconds, 0.0
        self.numbers: list[int] = []

    def clock(self) -> float:
        """The seconds that all trials took."""
        return self.now

    def measure(self, trial: Trial, seconds: float) -> Measurement:
        """See `FixedWorker`."""
        self.now += self.seconds * trial.candidates
        self.numbers.append(trial.candidates)
        return super().measure(trial, seconds)


@pytest.mark.parametrize("seconds", [0.01, 0.3, 1.0, 4.0])
def test_a_search_ends_with_its_budget(seconds: float) -> None:
    worker = TimedWorker(seconds)
    tasks = [replace(task, key=f"{task.key} {n}") for n in range(3) for task in small_tasks()]
    budget = Budget(60, worker.clock)
    search = Search(tasks, OPTIONS, budget=budget, compare=lambda _: ())
    work(search, worker)
    assert search.is_done
    assert worker.now <= 60 + 4 * seconds  # a trial that has begun
    assert any(number > 1 for number in worker.numbers)
    gains = [s.confirmed[1] for s in search.all_searches() if s.confirmed is not None]
    assert len(gains) == len(search.all_searches())
    assert any(gain < 1 for gain in gains), "some of the budget is left to confirm winners"
    if seconds < 1:
        assert worker.now > 40 or all(
            s.is_exhausted or s.measured == 2 * BATCH for s in search.all_searches()
        )


def test_the_default_is_measured_once_for_a_survey_and_a_search() -> None:
    survey = Search(small_tasks(), replace(OPTIONS, measurements=0), compare=lambda _: ())
    work(survey, FixedWorker())
    search = Search(small_tasks(), OPTIONS, surveyed=survey.all_searches())
    job = search.next_job(PLATFORM)
    assert isinstance(job, TaskJob)
    assert len(job.candidates) > 1
    assert job.expected_ms == CONTROL_MS


def test_a_candidate_is_not_disqualified_for_the_end_of_the_budget(tmp_path: Path) -> None:
    with Database(tmp_path / "t.db") as database:
        search = Search(small_tasks()[:1], replace(OPTIONS, measurements=1), database)
        job = first_trial(search)
        search.budget.shorten(0)
        search.fail(job, "no result in time")
        assert not list(database.records(state="failed"))
        work(search, FixedWorker())
        assert search_of(job).confirmed is not None
