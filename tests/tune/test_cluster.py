"""The search on a cluster: workers join, are lost and end, and nothing measured is lost."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
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

WAIT_SECONDS = 30.0
"""Seconds in which a process must end that has a reason to."""
OPTIONS = Options("random", 600, measurements=8, protocol=QUICK)
SCHEDULER = """
import asyncio, distributed, logging

async def serve():
    logging.disable()
    async with distributed.Scheduler(host="127.0.0.1", port=0, dashboard=False) as scheduler:
        print(scheduler.address, flush=True)
        await scheduler.finished()

asyncio.run(serve())
"""

Process = subprocess.Popen[str]


@contextmanager
def process(*arguments: str) -> Iterator[Process]:
    """A process of Python, which is killed in the end. Ctrl-C ends it, even where these tests run
    in the background of a shell, which lets their processes ignore it.
    """
    with subprocess.Popen(
        [sys.executable, *arguments],
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as started:
        try:
            yield started
        finally:
            started.kill()


def first_line(started: Process) -> str:
    """The first line that a process prints."""
    assert started.stdout is not None
    return started.stdout.readline().strip()


@contextmanager
def cluster(workers: int) -> Iterator[tuple[str, Process, list[Process]]]:
    """The address of a scheduler, its process, and those of workers that have joined it."""
    with process("-c", SCHEDULER) as scheduler, ExitStack() as stack:
        address = first_line(scheduler)
        command = ("-m", "webmlc", "tune-worker", "--scheduler", address)
        members = [stack.enter_context(process(*command)) for _ in range(workers)]
        for member in members:
            line = first_line(member)
            assert line.startswith("wasmtime / ")
            assert line.endswith(f": measures 1 trial at a time for {address}")
        yield address, scheduler, members


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[str, list[Process]]]:
    """The address of a scheduler, and two workers; the one that lives longer ends by Ctrl-C."""
    with cluster(2) as (address, _, members):
        yield address, members
        members[1].send_signal(signal.SIGINT)
        assert members[1].wait(WAIT_SECONDS) == 0


def test_a_worker_is_killed_and_no_measurement_is_lost(
    pair: tuple[str, list[Process]], tmp_path: Path
) -> None:
    address, (victim, _) = pair
    counts: list[int] = []

    def kill_one(search: Search) -> None:
        counts.append(len(search.jobs))
        if len(counts) == 2:
            victim.kill()

    with Database(tmp_path / "t.db") as database:
        search = Search(small_tasks(), OPTIONS, database, on_change=kill_one)
        work_on_cluster(search, address, "wasm")
        assert victim.wait(WAIT_SECONDS) < 0
        assert len(counts) > 2
        assert search.is_done
        assert search.is_idle
        for searched in search.all_searches():
            records = database.records(task=searched.task.key)
            stored = {identity(r.parameters) for r in records if r.state != "confirmed"}
            assert stored == {identity(v) for v in searched.members.values()}
            assert len(stored) == 1 + searched.measured > 4
            assert not searched.reasons
            assert searched.confirmed is not None


def test_a_worker_of_another_device_gets_no_jobs(
    pair: tuple[str, list[Process]], monkeypatch: pytest.MonkeyPatch
) -> None:
    address, _ = pair
    monkeypatch.setattr(feeder, "PATIENCE_SECONDS", 1.0)
    reason = re.escape(
        f"The scheduler {address} has no worker that measures kernels on webgpu (wasmtime does "
        f"not measure kernels on webgpu). Start one with `webmlc tune-worker --scheduler {address}`"
    )
    with pytest.raises(UserError, match=reason):
        work_on_cluster(Search(small_tasks(), Options()), address, "webgpu")


def test_the_scheduler_vanishes_and_its_workers_end() -> None:
    with cluster(1) as (address, scheduler, (member,)):
        search = Search(small_tasks(), OPTIONS, on_change=lambda _: scheduler.kill())
        with pytest.raises(UserError, match=f"The scheduler {address} has ended"):
            work_on_cluster(search, address, "wasm")
        assert search.is_idle
        assert member.wait(WAIT_SECONDS) == 0


def test_no_scheduler_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeder, "CONNECT_SECONDS", 0.5)
    monkeypatch.setattr(slots, "CONNECT_SECONDS", 0.5)
    for address in ("nonsense", "tcp://127.0.0.1:1"):
        with pytest.raises(UserError, match=f"--scheduler {address}: no Dask scheduler answers"):
            work_on_cluster(Search(small_tasks(), Options()), address, "wasm")
    with pytest.raises(UserError, match=f"--scheduler {address}: no Dask scheduler answers"):
        run_worker(address, "wasmtime", 1)


def test_an_unknown_engine_is_refused() -> None:
    with pytest.raises(UserError, match="--engine chromium: choose one of wasmtime, wgpu"):
        run_worker("tcp://127.0.0.1:1", "chromium", 1)
