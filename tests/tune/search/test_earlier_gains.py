"""A search first tries the schedules that made kernels faster in earlier searches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from msgspec.structs import replace as changed

from tests.tune.made_up_space import PLATFORM, SPACE, MadeUp, Tiles, made_up_task
from webmlc.tune.database import Database, Record
from webmlc.tune.measure.workers import work
from webmlc.tune.search.search import Search, TaskJob
from webmlc.tune.search.starter import EarlierGains
from webmlc.tune.search.task_search import Options

DEFAULT = Tiles()
OPTIONS = Options("random", 3600, measurements=160)


def record(
    task: str, state: str, parameters: Mapping[str, int], ratio: float, rule: str = "contraction"
) -> Record:
    """The record of a candidate that took 6 ms."""
    return Record(
        task, task, "wasm", rule, "", PLATFORM, parameters, state, 6.0,  # type: ignore[arg-type]
        ratio, 12, "", (), "model", "0", "2026-11-28T00:00:00",
    )  # fmt: skip


def test_changes_that_saved_most_come_first() -> None:
    gains = EarlierGains([
        record("a", "measured", {"rows": 1, "columns": 4}, 1.0),
        record("a", "measured", {"rows": 1, "columns": 2}, 1.0),  # by chance
        record("a", "confirmed", {"rows": 2, "columns": 4}, 0.8),
        record("b", "measured", {"rows": 1, "columns": 8}, 1.0),
        record("b", "confirmed", {"rows": 1, "columns": 9}, 0.75),
        record("c", "measured", {"rows": 4, "columns": 5}, 1.0),
        record("c", "confirmed", {"rows": 2, "columns": 5}, 0.8),
    ])  # fmt: skip
    assert gains.changes("contraction") == [{"rows": 2}, {"columns": 9}]  # 3 ms, 2 ms
    assert gains.changes("pointwise") == ()


def test_only_the_last_winner_that_gained_counts() -> None:
    gains = EarlierGains([
        record("kept", "measured", {"rows": 1}, 1.0),
        record("kept", "confirmed", {"rows": 2}, 0.5),
        record("kept", "confirmed", {"rows": 1}, 1.0),
        record("not confirmed", "measured", {"rows": 1}, 1.0),
        record("not confirmed", "measured", {"rows": 3}, 0.5),
        record("no default", "confirmed", {"rows": 4}, 0.5),
        record("another rule then", "measured", {"lines": 1}, 1.0),
        record("another rule then", "confirmed", {"rows": 5}, 0.5),
    ])  # fmt: skip
    assert gains.changes("contraction") == ()


def test_a_search_begins_with_what_helped_kernels_of_an_earlier_one(tmp_path: Path) -> None:
    """The second model's kernel has another default; what changed, not the member, is tried."""
    fast = Tiles(rows=5, is_packed=True)
    task = replace(made_up_task(SPACE, DEFAULT), key="first")
    worker = MadeUp(lambda v: 0.5 if v == fast else 1.0 if v == DEFAULT else 1.5, repr)
    with Database(tmp_path / "t.db") as database:
        first = Search([task], OPTIONS, database, worker)
        work(first, worker)
        other = replace(made_up_task(SPACE, Tiles(columns=3)), key="second")
        second = Search([other], OPTIONS, database, worker)
        job = second.next_job(worker.platform)
        assert isinstance(job, TaskJob)
        second.finish(job, worker.measure(job.trial, 1))
        job = second.next_job(worker.platform)
        assert isinstance(job, TaskJob)
        assert job.candidates[1].member == changed(fast, columns=3)
        elsewhere = Search([other], OPTIONS, database, worker)
        (search,) = elsewhere.join(replace(worker.platform, hardware="another CPU"))
        assert search.earlier_changes == ()


def test_a_cold_search_knows_nothing(tmp_path: Path) -> None:
    task = made_up_task(SPACE, DEFAULT)
    worker = MadeUp(lambda v: 0.5 if v.rows == 5 else 1.0, repr)
    with Database(tmp_path / "t.db") as database:
        work(Search([task], OPTIONS, database, worker), worker)
        (warm,) = Search([task], OPTIONS, database, worker).join(worker.platform)
        (cold,) = Search([task], replace(OPTIONS, cold=True), database, worker).join(
            worker.platform
        )
        assert warm.earlier_changes == [{"rows": 5}]
        assert cold.earlier_changes == ()
