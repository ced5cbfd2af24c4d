"""The search on a cluster: workers join, are lost and end, and nothing measured is lost."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.tune.conftest import QUICK
from tests.tune.small_search import small_tasks
from webmlc.core.errors import UserError
from webmlc.tune import feeder, slots
from webmlc.tune.cluster import run_worker, work_on_cluster
from webmlc.tune.database import Database
from webmlc.tune.search import Options, Search
from webmlc.tune.strategies import identity

START_SECONDS = 60.0
"""Seconds in which a process of the cluster must start."""
SCHEDULER = """
import asyncio, distributed

async def serve():
    async with distributed.Scheduler(host="127.0.0.1", port=0, dashboard=False) as scheduler:
        print(scheduler.address, flush=True)
        await scheduler.finished()

asyncio.run(serve())
"""


@contextmanager
def process(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A process of Python, and the first line that it prints."""
    with subprocess.Popen(
        [sys.executable, *arguments], stdout=subprocess.PIPE, text=True
    ) as started:
        try:
            assert started.stdout is not None
            yield started, started.stdout.readline().strip()
        finally:
            started.kill()


def worker(scheduler: str) -> tuple[str, ...]:
    """The arguments of Python that start a worker."""
    return ("-m", "webmlc", "tune-worker", "--scheduler", scheduler)


def test_a_worker_is_killed_and_no_measurement_is_lost(tmp_path: Path) -> None:
    killed = threading.Event()
    with (
        Database(tmp_path / "t.db") as database,
        process("-c", SCHEDULER) as (_, scheduler),
        process(*worker(scheduler)) as (victim, line),
        process(*worker(scheduler)),
    ):
        assert line.startswith("wasmtime / ")
        assert line.endswith(f": measures 1 trial at a time for {scheduler}")

        def kill(search: Search) -> None:
            if any(s.trials for s in search.all_searches()) and not killed.is_set():
                killed.set()
                victim.kill()

        options = Options("random", 600, measurements=12, protocol=QUICK)
        search = Search(small_tasks(), options, database, on_change=kill)
        work_on_cluster(search, scheduler, "wasm")
        assert killed.is_set()
        assert search.is_done
        assert search.is_idle
        (searches,) = search.searches.values()
        for searched in searches:
            records = database.records(task=searched.task.key)
            stored = {identity(r.parameters) for r in records if r.state != "confirmed"}
            assert stored == {identity(v) for v in searched.members.values()}
            assert len(stored) == len(searched.ratios) > 4
            assert not searched.reasons


def test_a_scheduler_that_vanishes_is_one_clear_error() -> None:
    with process("-c", SCHEDULER) as (started, scheduler), process(*worker(scheduler)):

        def kill(_: Search) -> None:
            started.kill()

        options = Options("random", 600, measurements=12, protocol=QUICK)
        search = Search(small_tasks(), options, on_change=kill)
        with pytest.raises(UserError, match="has ended"):
            work_on_cluster(search, scheduler, "wasm")
        assert search.is_idle


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:9", "nonsense://here"])
def test_no_scheduler_answers(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (feeder, slots):
        monkeypatch.setattr(module, "CONNECT_SECONDS", 1.0)
    with pytest.raises(UserError, match="no Dask scheduler answers there"):
        work_on_cluster(Search(small_tasks(), Options()), address, "wasm")


def test_a_worker_needs_an_engine_of_python() -> None:
    with pytest.raises(UserError, match="choose one of wasmtime, wgpu"):
        run_worker("tcp://127.0.0.1:9", "chromium", 1)
