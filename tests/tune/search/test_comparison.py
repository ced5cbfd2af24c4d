"""The trial of a whole model: what it measures, and which winners it rejects."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.tune.conftest import QUICK, good_candidates
from tests.tune.small_search import PLATFORM, FixedWorker, small_tasks
from webmlc.tune.choose import TunedChooser
from webmlc.tune.database import Database
from webmlc.tune.measure.make_trials import model_trial
from webmlc.tune.measure.trial import Measurement, Trial
from webmlc.tune.measure.wasm import measure_wasm
from webmlc.tune.measure.workers import WorkerFailed, work
from webmlc.tune.search.search import ModelJob, Search
from webmlc.tune.search.task_search import Options

OPTIONS = Options("random", seconds=600, measurements=2)


@pytest.mark.parametrize("threads", [1, 2])
def test_sets_of_schedules_run_as_one_trial(threads: int) -> None:
    tasks = small_tasks()
    pairs = [good_candidates(task, 2) for task in tasks]
    sets = [list(zip(tasks, [pair[i] for pair in pairs], strict=True)) for i in (0, -1)]
    trial = model_trial([*sets, sets[1][1:]], threads, QUICK)
    assert trial is not None
    measurement = measure_wasm(trial)
    assert measurement.reasons == ("", "", "")
    counts = [len(row) for row in measurement.milliseconds]
    assert counts[0] == QUICK.rounds  # the others may be found hopeless earlier
    assert all(1 <= count <= QUICK.rounds for count in counts)
    assert all(ms > 0 for row in measurement.milliseconds for ms in row)


def test_every_call_of_a_model_is_a_step() -> None:
    (task, *_) = small_tasks()
    (default, *_) = good_candidates(task, 1)
    one = model_trial([[(task, default)]], 1, QUICK)
    three = model_trial([[(task, default)] * 2, [(replace(task, calls=3), default)]], 1, QUICK)
    assert one is not None and three is not None
    assert three.steps - one.steps == 2


class ModelWorker(FixedWorker):
    """A worker on which every kernel's winner is twice as fast, and the model takes `ratios` of
    its time with the sets of winners.
    """

    def __init__(self, search: Search, *ratios: float) -> None:
        super().__init__()
        self.search, self.ratios = search, ratios

    def measure(self, trial: Trial, seconds: float) -> Measurement:
        """See `FixedWorker`."""
        (job,) = (job for job in self.search.jobs.values() if job.trial is trial)
        if not isinstance(job, ModelJob):
            return super().measure(trial, seconds)
        if not self.ratios:
            raise WorkerFailed("the engine's process ended")
        rounds = trial.protocol.rounds
        times = (1.0, *self.ratios)[: trial.candidates]
        return Measurement(tuple((ms,) * rounds for ms in times), ("",) * trial.candidates)


def confirmed(path: Path, *ratios: float) -> list[float]:
    """The relative times that a search confirms, and those that a build takes."""
    with Database(path) as database:
        search = Search(small_tasks(), OPTIONS, database)
        work(search, ModelWorker(search, *ratios))
        assert search.is_done
        assert search.is_idle
        results = [s.confirmed[1] for s in search.all_searches() if s.confirmed is not None]
        choose = TunedChooser(database, PLATFORM.engine)
        tunings = [choose(task.match).tuning for task in small_tasks()]
        assert results == [1.0 if t is None else t.ratio for t in tunings]
        if ratios:
            assert search.model_gains == {PLATFORM.key: 1 / min(1.0, *ratios)}
        return results


def test_a_model_that_gains_keeps_its_winners(tmp_path: Path) -> None:
    assert set(confirmed(tmp_path / "a.db", 0.8, 0.8)) == {0.5}


def test_a_model_that_does_not_gain_keeps_its_defaults(tmp_path: Path) -> None:
    assert set(confirmed(tmp_path / "a.db", 1.01, 1.02)) == {1.0}
    assert set(confirmed(tmp_path / "a.db", 0.9, 0.9)) == {0.5}, "a later search may find more"


def test_winners_stay_where_the_model_cannot_be_measured(tmp_path: Path) -> None:
    assert set(confirmed(tmp_path / "a.db")) == {0.5}
