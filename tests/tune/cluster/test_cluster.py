"""The search on a cluster: workers join, are lost and end, and nothing measured is lost."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from ipaddress import ip_address
from pathlib import Path

import pytest

from tests.tune.conftest import QUICK, good_candidates, matmul_task, trial_of
from tests.tune.small_search import small_tasks
from webmlc.core.errors import UserError
from webmlc.tune.cluster import feeder, run_worker, slots, work_on_cluster
from webmlc.tune.cluster.local_scheduler import Process, local_scheduler, python_process
from webmlc.tune.database import Database
from webmlc.tune.measure.trial import Measurement
from webmlc.tune.search.search import Search
from webmlc.tune.search.task_search import Options

pytestmark = pytest.mark.xdist_group("cluster")  # one worker starts the cluster of the tests

WAIT_SECONDS = 30.0
"""Seconds in which a process must end that has a reason to."""
OPTIONS = Options("random", 600, measurements=8, protocol=QUICK)


@contextmanager
def cluster(workers: int) -> Iterator[tuple[str, Process, list[Process]]]:
    """The address of a scheduler, its process, and those of workers that have joined it."""
    with local_scheduler() as (address, scheduler), ExitStack() as stack:
        command = ("-m", "webmlc", "tune-worker", "--scheduler", address)
        members = []
        for _ in range(workers):
            member, line = stack.enter_context(python_process(*command))
            members.append(member)
            assert line.startswith("wasmtime / ")
            task = f": measures 1 trial at a time for {address}"
            assert line.endswith(f"{task}, and listens on 127.0.0.1")
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
            measured = [r.parameters for r in records if r.state != "confirmed"]
            stored = set(map(searched.space.read, measured))
            assert stored == set(searched.members.values())
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


def test_a_scheduler_of_another_machine_needs_an_address_that_it_reaches() -> None:
    for address in ("tcp://192.0.2.1:8786", "tcp://[2001:db8::1]:8786"):
        reason = re.escape(f"--listen: the scheduler {address} is on another machine")
        with pytest.raises(UserError, match=reason):
            run_worker(address, "wasmtime", 1)


def test_a_worker_listens_on_the_loopback_interface_alone(
    pair: tuple[str, list[Process]],
) -> None:
    _, (_, member) = pair
    addresses = listening(member.pid)
    assert addresses
    assert all(ip_address(address).is_loopback for address in addresses)


def listening(pid: int) -> set[str]:
    """The addresses on which a process listens: those of its sockets in Linux' tables."""
    links = Path(f"/proc/{pid}/fd").iterdir()
    inodes = {str(link.readlink()).removeprefix("socket:[").rstrip("]") for link in links}
    addresses = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            _, local, _, state, *fields = line.split()
            if state == "0A" and fields[5] in inodes:
                words = bytes.fromhex(local.partition(":")[0])
                groups = [words[i : i + 4][::-1] for i in range(0, len(words), 4)]
                addresses.add(str(ip_address(b"".join(groups))))
    return addresses


def test_an_unknown_engine_is_refused() -> None:
    with pytest.raises(UserError, match="--engine chromium: choose one of wasmtime, wgpu"):
        run_worker("tcp://127.0.0.1:1", "chromium", 1)


def test_an_event_says_what_a_trial_showed() -> None:
    task = matmul_task()
    trial = trial_of(task, good_candidates(task, 2))
    count = trial.candidates
    measurement = {"milliseconds": [[1.0]] * count, "reasons": [""] * count}
    assert slots.outcome_of({"measurement": json.dumps(measurement)}, trial) == Measurement(
        ((1.0,),) * count, ("",) * count
    )
    assert slots.outcome_of({"error": "no result in 5 s"}, trial) == "no result in 5 s"
    empty = json.dumps({"milliseconds": [], "reasons": []})
    texts = [{"measurement": text} for text in (empty, "{", measurement)]
    for broken in (*texts, {"refusal": "no GPU"}, {}):
        assert isinstance(slots.outcome_of(broken, trial), Exception)
