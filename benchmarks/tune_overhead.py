"""Measure what handing out trials costs a search on a Dask cluster of 1,000 workers.

    .venv/bin/python benchmarks/tune_overhead.py [--seconds 5] [--processes 10] [--slots 100]

Simulated workers sleep instead of measuring: each of 10 processes has 100 slots, and is a platform
of its own. A real search hands out the trials. Each of its tasks has one trial in flight on each
platform, so there are as many tasks as slots. Building candidates and trials is not part of the
overhead: candidates and trials are prebuilt, and no whole model is compared in the end. Every task
has the same number of trials, one after the other, so the ideal time is that number times the
seconds of one trial.
"""

from __future__ import annotations

import argparse
import logging
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import onnx.parser

from webmlc.target.wasm.printer import Printed
from webmlc.tune.cluster import work_on_cluster
from webmlc.tune.cluster.local_scheduler import local_scheduler, python_process
from webmlc.tune.cluster.slots import Slots, serve
from webmlc.tune.database import Database
from webmlc.tune.measure.candidates import Candidate, candidate
from webmlc.tune.measure.make_trials import CandidateBuilder
from webmlc.tune.measure.platforms import Platform
from webmlc.tune.measure.trial import Measurement, Protocol, Trial
from webmlc.tune.search.search import Search
from webmlc.tune.search.task_search import BATCH, Options
from webmlc.tune.tasks import Task, read_graph

MODEL = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[64,96] a, float[96,32] b) => (float[64,32] y) { y = MatMul(a, b) }"""
TRIALS = 3
"""Trials of candidates in each task. One of the control comes before them, and one that confirms
the winner after them."""


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


class PrebuiltCandidates(CandidateBuilder):
    """A builder that returns at once: each member of the space is the same kernel under another
    text, and each number of candidates has one trial.
    """

    def __init__(self, task: Task) -> None:
        super().__init__()
        self.candidate = candidate(task, task.match.default())
        self.trials: dict[int, Trial] = {}

    def build(self, tasks: Iterable[Task], members: Iterable[Any]) -> Iterator[Candidate]:
        """A candidate for each member."""
        first, code = self.candidate, self.candidate.code
        assert isinstance(code, Printed)
        for member in members:
            named = Printed(repr(member), code.loops, code.parameters, code.scratch_bytes)
            yield Candidate(member, first.kernel, named, first.features)

    def trial(self, task: Task, candidates: Sequence[Candidate], protocol: Protocol) -> Trial:
        """A trial of as many candidates."""
        count = len(candidates)
        if count not in self.trials:
            self.trials[count] = super().trial(task, [self.candidate] * count, protocol)
        return replace(self.trials[count], protocol=protocol)


def measure(processes: int, slots: int, seconds: float) -> None:
    """Print the ideal time of a search, its real time, and the overhead."""
    task = read_graph(onnx.parser.parse_model(MODEL), "wasm", {}).tasks()[-1]
    tasks = [replace(task, key=f"task {number}") for number in range(slots)]
    options = Options("random", 1e9, measurements=TRIALS * BATCH)
    with ExitStack() as stack:
        folder = stack.enter_context(TemporaryDirectory())
        database = stack.enter_context(Database(Path(folder) / "tuned.db"))
        builder = PrebuiltCandidates(task)
        search = Search(tasks, options, database, builder, compare=lambda _: ())
        for number in range(processes):  # the controls of each platform
            search.join(SleepingWorker(f"machine {number}", seconds).platform)
        scheduler, _ = stack.enter_context(local_scheduler())
        for number in range(processes):
            arguments = ("--join", scheduler, "--number", str(number), "--slots", str(slots))
            stack.enter_context(python_process(__file__, *arguments, "--seconds", str(seconds)))
        work_on_cluster(search, scheduler, "wasm")
        real = search.budget.seconds_spent
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
    logging.disable()  # as `webmlc tune-worker` does
    hardware = f"machine {options.number}"
    start = lambda threads: SleepingWorker(hardware, options.seconds)  # noqa: E731
    serve(options.join, Slots(start, options.slots))


if __name__ == "__main__":
    main()
