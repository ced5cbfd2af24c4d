"""Measure what handing out trials costs a search on a Dask cluster of 1,000 workers.

    .venv/bin/python benchmarks/tune_overhead.py [--seconds 5] [--processes 10] [--slots 100]

Simulated workers sleep instead of measuring: each of 10 processes has 100 slots, and is a platform
of its own. A real search hands out the trials. Each of its tasks has one trial in flight on each
platform, so there are as many tasks as slots. Building candidates and trials is not part of the
overhead: candidates and trials are prebuilt. Every task has the same number of trials, one after
the other, so the ideal time is that number times the seconds of one trial.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import onnx.parser

from webmlc.schedule.rules.space import Values, values_of
from webmlc.tune import search as search_module
from webmlc.tune.candidates import Candidate, candidate, make_trial
from webmlc.tune.cluster import work_on_cluster
from webmlc.tune.platforms import Platform
from webmlc.tune.search import BATCH, Options, Search
from webmlc.tune.slots import Slots, serve
from webmlc.tune.strategies import identity
from webmlc.tune.tasks import Task, read_graph
from webmlc.tune.trial import Measurement, Trial

MODEL = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[64,96] a, float[96,32] b) => (float[64,32] y) { y = MatMul(a, b) }"""
TRIALS = 3
"""Trials of candidates in each task. One of the control comes before them, and one that confirms
the winner after them."""
SCHEDULER = """
import asyncio, distributed

async def serve():
    async with distributed.Scheduler(host="127.0.0.1", port=0, dashboard=False) as scheduler:
        print(scheduler.address, flush=True)
        await scheduler.finished()

asyncio.run(serve())
"""


class SleepingWorker:
    """A worker (`tune.workers.Worker`) whose trials take some seconds and no processor time."""

    def __init__(self, hardware: str, seconds: float) -> None:
        self.platform = Platform("wasmtime", "simulated", hardware, "simulated")
        self.seconds = seconds

    def measure(self, trial: Trial, seconds: float) -> Measurement:
        """Sleep. Every candidate is faster than the control."""
        time.sleep(self.seconds)
        times = [2.0, *[1.0] * (trial.candidates - 1)]
        rounds = trial.protocol.rounds
        return Measurement(tuple((ms,) * rounds for ms in times), ("",) * trial.candidates)

    def stop(self) -> None:
        """There is nothing to stop."""


class PrebuiltCandidates(Executor):
    """Builders that return at once: each member of the space is the same kernel under another
    text.
    """

    def __init__(self, task: Task) -> None:
        self.candidate = candidate(task, values_of(task.match.default()))

    def map(
        self,
        function: Callable[..., Any],
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int = 1,
        buffersize: int | None = None,
    ) -> Iterator[Candidate]:
        """A candidate for each task and its values."""
        _, members = iterables
        return map(self._candidate, members)

    def _candidate(self, values: Values) -> Candidate:
        return replace(self.candidate, values=values, text=identity(values))


def prebuilt_trials(task: Task) -> Callable[..., Trial]:
    """A function like `make_trial` that builds one trial for each number of candidates."""
    control = candidate(task, values_of(task.match.default()))
    trials: dict[int, Trial] = {}

    def trial(_: Task, candidates: tuple[Candidate, ...], threads: int, protocol: Any) -> Trial:
        count = len(candidates)
        if count not in trials:
            trials[count] = make_trial(task, [control] * count, threads)
        return replace(trials[count], protocol=protocol)

    return trial


@contextmanager
def process(*arguments: str) -> Iterator[str]:
    """A process of Python, and the first line that it prints."""
    with subprocess.Popen([sys.executable, *arguments], stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout is not None
            yield child.stdout.readline().strip()
        finally:
            child.kill()


def measure(processes: int, slots: int, seconds: float) -> None:
    """Print the ideal time of a search, its real time, and the overhead."""
    task = read_graph(onnx.parser.parse_model(MODEL), "wasm", {}).tasks()[-1]
    search_module.make_trial = prebuilt_trials(task)
    tasks = [replace(task, key=f"task {number}") for number in range(slots)]
    options = Options("random", 1e9, measurements=TRIALS * BATCH)
    search = Search(tasks, options, builders=PrebuiltCandidates(task))
    for number in range(processes):  # the controls of each platform
        search._of_platform(SleepingWorker(f"machine {number}", seconds).platform)
    with ExitStack() as stack:
        scheduler = stack.enter_context(process("-c", SCHEDULER))
        for number in range(processes):
            arguments = ("--join", scheduler, "--number", str(number), "--slots", str(slots))
            stack.enter_context(process(__file__, *arguments, "--seconds", str(seconds)))
        work_on_cluster(search, scheduler, "wasm")
        real = time.monotonic() - search.started
    rounds = TRIALS + 2
    assert search.count == rounds * processes * slots, search.count
    ideal = rounds * seconds
    print(
        f"{processes * slots} simulated workers, {search.count} trials of {seconds:g} s: "
        f"ideal {ideal:.1f} s, real {real:.1f} s, overhead {real / ideal - 1:.1%} "
        f"({os.cpu_count()} cores, load {os.getloadavg()[0]:.1f})"
    )


def main() -> None:
    """Start a cluster and search, or be one of its processes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0, help="seconds of a trial")
    parser.add_argument("--processes", type=int, default=10)
    parser.add_argument("--slots", type=int, default=100, help="simulated workers of a process")
    parser.add_argument("--join", metavar="SCHEDULER", help="be process --number of a cluster")
    parser.add_argument("--number", type=int, default=0)
    options = parser.parse_args()
    if options.join is None:
        measure(options.processes, options.slots, options.seconds)
        return
    hardware = f"machine {options.number}"
    start = lambda threads: SleepingWorker(hardware, options.seconds)  # noqa: E731
    serve(options.join, Slots(start, options.slots))


if __name__ == "__main__":
    main()
