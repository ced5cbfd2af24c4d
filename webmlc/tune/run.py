"""Run a search from start to end: tasks, workers, database and report.

In: a model, and the options of `webmlc tune`. Out: a `Result`. An interruption (Ctrl-C) ends the
search, not the program: all measurements are in the database, and confirm the winners so far.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from webmlc.core.errors import UserError
from webmlc.core.machine import DEVICES, PLAIN_ADAPTERS, Device
from webmlc.frontend.read_model import Source
from webmlc.graph.table import with_rows
from webmlc.host.serve import HOST
from webmlc.tune.cluster import work_on_cluster
from webmlc.tune.database import AlgorithmRecord
from webmlc.tune.json_lines import open_to_change
from webmlc.tune.measure.browsers import ENGINES as BROWSERS
from webmlc.tune.measure.browsers import is_installed
from webmlc.tune.measure.make_trials import CandidateBuilder
from webmlc.tune.measure.pages import PageServer
from webmlc.tune.measure.workers import LOCAL_ENGINES, ProcessWorker, ignore_interrupts, work
from webmlc.tune.options import TuneOptions
from webmlc.tune.report.write_report import write_report
from webmlc.tune.search.algorithm_search import Variants, plan
from webmlc.tune.search.budget import Budget
from webmlc.tune.search.priorities import heaviest_first
from webmlc.tune.search.search import Search, gain
from webmlc.tune.search.strategies import STRATEGIES
from webmlc.tune.search.task_search import Options, TaskSearch
from webmlc.tune.tasks import Graph, read_graph
from webmlc.version import VERSION

LOWERING_SHARE = 0.1
"""The seconds in which variants of a model are lowered, as a share of the budget, which begins
after that (chosen by hand)."""
ALGORITHM_SHARE = 0.3
"""The share of the budget after which no further variant is measured (chosen by hand)."""
UNPAIRED_PASSES = 2
"""How often a survey measures a kernel that no trial compares with others: a disturbance of one
pass has ended before the next (chosen by hand)."""
ENGINES: Mapping[Device, tuple[str, ...]] = {
    "wasm": ("chromium", "node", "wasmtime", "firefox"),
    "webgpu": ("chromium", "wgpu"),
}
"""The engines that measure kernels of each device, the preferred one first."""


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a search. `gain` is the time of the searched kernels in a run of the model with
    their default schedules, over their time with the winners. `model_gains` is the same ratio for
    all kernels together, as the last trial of each platform measured it; 1 if the defaults stay.
    `algorithms` are the layers that have a faster algorithm than their default, with its name and
    its relative time. `report` is a page to look at.
    """

    searches: tuple[TaskSearch, ...]
    algorithms: Mapping[str, tuple[str, float]]
    gain: float
    model_gains: Mapping[str, float]
    database: Path
    report: Path
    was_interrupted: bool


def run(model: Source, request: TuneOptions) -> Result:
    """Search as requested (see `webmlc.tune.tune`)."""
    check_request(request)
    name = _name(model)
    budget = Budget(request.seconds)
    options = Options(
        request.strategy, request.seconds, seed=request.seed, model=name, resume=request.resume
    )
    context = multiprocessing.get_context("spawn")
    with (
        open_to_change(request.database) as records,
        ProcessPoolExecutor(os.cpu_count(), context, ignore_interrupts) as processes,
        ExitStack() as stack,
    ):
        stack.enter_context(with_rows(operator.row for operator in request.operators))
        builder = CandidateBuilder(request.threads, processes)
        graph = read_graph(
            model,
            request.device,
            request.sizes or {},
            constants=request.constants,
            machine=machine_name(request),
        )
        builder.wait()
        measurer = Measurer(request, stack)
        surveyed: Sequence[TaskSearch] = ()
        answers: Mapping[str, tuple[str, float]] = {}
        was_interrupted = False
        if request.algorithms and not request.has_guests:
            variants, survey, was_interrupted = _survey(graph, options, builder, budget, measurer)
            surveyed, answers = survey.all_searches(), variants.answers(survey)
            records.add_algorithms(_algorithm_records(answers, survey, graph, name))
        algorithms = {layer: answer for layer, answer in answers.items() if answer[1] < 1}
        tasks = graph.tasks({layer: algorithm for layer, (algorithm, _) in algorithms.items()})
        if not tasks:
            raise UserError(f"{name}: no kernel of this model has a schedule to search")
        search = Search(
            heaviest_first(tasks),
            options,
            records,
            builder,
            request.on_change,
            budget=budget,
            surveyed=surveyed,
        )
        if was_interrupted:
            search.end_budget()
        was_interrupted |= measurer.measure_until_interrupted(search)
        searches = tuple(search.all_searches())
        report = write_report(request.database.with_suffix(".html"), searches, options)
        gains, path = (gain(searches), search.model_gains), request.database
        return Result(searches, algorithms, *gains, path, report, was_interrupted)


def _name(model: Source) -> str:
    """The name of `model` in records and in the report: its file name. If the file has the usual
    name (model.onnx, also in onnx/), the name of its folder, because records of two models must
    differ in the name.
    """
    if not isinstance(model, str | Path):
        return "model"
    path = Path(model).absolute()
    names = (path.stem, *reversed(path.parent.parts[1:]))
    return next((name for name in names if name not in ("model", "onnx")), "model")


def _survey(
    graph: Graph, options: Options, builder: CandidateBuilder, budget: Budget, measurer: Measurer
) -> tuple[Variants, Search, bool]:
    """The variants of a model, the search that has measured them, and whether the user interrupted
    it.
    """
    variants = plan(graph, LOWERING_SHARE * budget.seconds)
    passes = UNPAIRED_PASSES if DEVICES[graph.device].has_adapters else 1
    search = Search(
        variants.tasks,
        replace(options, measurements=0, passes=passes),
        None,
        builder,
        compare=variants.contests,
        budget=budget.part(ALGORITHM_SHARE),
    )
    return variants, search, bool(variants.tasks) and measurer.measure_until_interrupted(search)


def _algorithm_records(
    answers: Mapping[str, tuple[str, float]], survey: Search, graph: Graph, model: str
) -> Iterator[AlgorithmRecord]:
    """The records of the layers' algorithms."""
    platforms = {s.platform for s in survey.all_searches()}
    date = datetime.now(UTC).isoformat(timespec="seconds")
    for platform in platforms:
        for layer, answer in answers.items():
            machine = graph.machine.name
            yield AlgorithmRecord(layer, machine, platform, *answer, model, VERSION, date)


class Measurer:
    """Lets the requested workers measure all jobs of a search, and of the next search."""

    def __init__(self, request: TuneOptions, stack: ExitStack) -> None:
        """The stack ends the processes and servers that outlive a search."""
        self.request = request
        self._stack = stack
        self._worker: ProcessWorker | None = None

    def measure_until_interrupted(self, search: Search) -> bool:
        """Measure all jobs. Ctrl-C ends the budget: winners are confirmed. A second one ends that,
        too.

        Returns True after a Ctrl-C.
        """
        try:
            self._measure(search)
        except KeyboardInterrupt:
            search.end_budget()
            try:
                self._measure(search)
            except KeyboardInterrupt:
                search.cancel()
            return True
        return False

    def _measure(self, search: Search) -> None:
        request, engine = self.request, _engine(self.request)
        with ExitStack() as stack:
            pages = None
            if request.listen_at is not None or engine in BROWSERS:
                address, port = request.listen_at or (HOST, 0)
                pages = stack.enter_context(PageServer(search, request.device, address, port))
                if request.on_listen is not None and request.listen_at is not None:
                    request.on_listen(pages.url)
            if request.scheduler is not None:
                work_on_cluster(search, request.scheduler, request.device)
            elif engine in LOCAL_ENGINES:
                work(search, self._local_worker(engine))
            elif pages is not None and engine is not None:
                pages.launch(engine)
            if pages is not None:
                pages.wait()

    def _local_worker(self, engine: str) -> ProcessWorker:
        """The worker of an engine of this Python, which starts once."""
        if self._worker is None:
            self._worker = ProcessWorker(engine, self.request.threads)
            self._stack.callback(self._worker.stop)
        return self._worker


def _engine(request: TuneOptions) -> str | None:
    """The engine that measures, or None where the workers of a scheduler have their own."""
    if request.engine is not None or request.scheduler is not None:
        return request.engine
    return next(e for e in ENGINES[request.device] if e in LOCAL_ENGINES or is_installed(e))


def machine_name(request: TuneOptions) -> str:
    """The name of the machine whose kernels are searched: the machine that `load` would pick, as
    far as the request tells. Browsers have one software adapter, whose subgroups are quads.
    """
    if not DEVICES[request.device].has_adapters:
        return request.variant
    if request.adapter == "software" and _engine(request) in BROWSERS:
        return "software-subgroups"
    return request.adapter


def check_request(request: TuneOptions) -> None:
    """Refuse a request that cannot be searched, before anything takes time."""
    device, engine, threads = request.device, request.engine, request.threads
    if getattr(multiprocessing.current_process(), "_inheriting", False):  # it is being spawned
        raise UserError(
            "webmlc.tune starts processes, each of which reads this script first: call it under "
            '`if __name__ == "__main__":`'
        )
    if not request.seconds > 0:
        raise UserError("--budget: a search needs more than no time; try --budget 5m")
    if threads < 1:
        raise UserError(f"--threads {threads}: kernels run with 1 thread or more")
    if DEVICES[device].has_adapters and threads > 1:
        raise UserError("--threads: a GPU has its own; leave the option out with --device webgpu")
    if request.adapter not in PLAIN_ADAPTERS:
        raise UserError(f"--adapter {request.adapter}: choose {' or '.join(PLAIN_ADAPTERS)}")
    if engine is not None and engine not in ENGINES[device]:
        raise UserError(
            f"--engine {engine}: kernels on {device} are measured by {', '.join(ENGINES[device])}"
        )
    if engine is not None and request.scheduler is not None:
        raise UserError("--engine: with --scheduler, each `webmlc tune-worker` has its own")
    if request.strategy not in (names := ("auto", "model", *STRATEGIES)):
        raise UserError(f"--strategy {request.strategy}: choose one of {', '.join(names)}")
