"""Run a search from start to end: tasks, workers, database and report.

In: what `webmlc tune` was asked for. Out: a `Result`. An interruption (Ctrl-C) ends the search, not
the program: what was measured is in the database, and winners are confirmed by what is known.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from webmlc.core.errors import UserError
from webmlc.core.machine import PLAIN_ADAPTERS, Device, Features, machine_name
from webmlc.frontend.bind_constants import Constants
from webmlc.frontend.read_model import Source
from webmlc.host.serve import HOST
from webmlc.tune.algorithm_search import layers, plan
from webmlc.tune.browsers import ENGINES as BROWSERS
from webmlc.tune.browsers import is_installed
from webmlc.tune.candidate_builder import CandidateBuilder
from webmlc.tune.cluster import work_on_cluster
from webmlc.tune.database import AlgorithmRecord, Database
from webmlc.tune.json_lines import open_to_change
from webmlc.tune.pages import PageServer
from webmlc.tune.report import write_report
from webmlc.tune.search import Search, gain
from webmlc.tune.strategies import STRATEGIES
from webmlc.tune.task_search import Options, TaskSearch
from webmlc.tune.tasks import Graph, read_graph
from webmlc.tune.workers import LOCAL_ENGINES, ProcessWorker, ignore_interrupts, work
from webmlc.version import VERSION

ALGORITHM_SHARE = 0.2
"""The share of the budget in which the variants of a model are lowered. They are measured after it
(chosen by hand)."""
ENGINES: Mapping[Device, tuple[str, ...]] = {
    "wasm": ("chromium", "node", "wasmtime", "firefox"),
    "webgpu": ("chromium", "wgpu"),
}
"""The engines that measure kernels of each device, the preferred one first."""


@dataclass(frozen=True, slots=True)
class Result:
    """What a search found. `gain` is the time of the searched kernels in a run of the model with
    their default schedules, over that with the winners. `model_gains` is the same for all kernels
    together, as a last trial of each platform measured it; 1 where the defaults stay.
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


@dataclass(frozen=True, slots=True)
class Request:
    """What to search, how, and with whom: the arguments of `webmlc.tune.tune`."""

    model: Source
    device: Device = "wasm"
    engine: str | None = None
    variant: Features = "relaxed"
    adapter: str = "gpu"
    threads: int = 1
    sizes: Mapping[str, int] = field(default_factory=dict)
    constants: Constants | None = None
    seconds: float = 600.0
    strategy: str = "auto"
    algorithms: bool = True
    database: Path = Path("tuned.db")
    resume: bool = False
    seed: int = 0
    listen_at: tuple[str, int] | None = None
    scheduler: str | None = None
    on_change: Callable[[Search], None] | None = None
    on_listen: Callable[[str], None] | None = None


def run(request: Request) -> Result:
    """Search as requested (see `webmlc.tune.tune`)."""
    _check(request)
    model, device = request.model, request.device
    name = Path(model).stem if isinstance(model, str | Path) else "model"
    options = Options(
        request.strategy, request.seconds, seed=request.seed, model=name, resume=request.resume
    )
    context = multiprocessing.get_context("spawn")
    with (
        open_to_change(request.database) as records,
        ProcessPoolExecutor(os.cpu_count(), context, ignore_interrupts) as processes,
    ):
        builder = CandidateBuilder(request.threads, processes)
        graph = read_graph(
            model,
            device,
            request.sizes,
            constants=request.constants,
            machine=_machine(request),
        )
        algorithms, was_interrupted = _search_algorithms(graph, request, options, records, builder)
        tasks = graph.tasks({layer: algorithm for layer, (algorithm, _) in algorithms.items()})
        if not tasks:
            raise UserError(f"{name}: no kernel of this model has a schedule to search")
        search = Search(tasks, options, records, builder, request.on_change)
        if was_interrupted:
            search.end_budget()
        was_interrupted |= _until_interrupted(search, request)
        searches = tuple(search.all_searches())
        report = write_report(request.database.with_suffix(".html"), searches, options)
        gains, path = (gain(searches), search.model_gains), request.database
        return Result(searches, algorithms, *gains, path, report, was_interrupted)


def _search_algorithms(
    graph: Graph, request: Request, options: Options, records: Database, builder: CandidateBuilder
) -> tuple[dict[str, tuple[str, float]], bool]:
    """The faster algorithms of the model's layers, which the database keeps; and whether the user
    interrupted the search.

    Several platforms may disagree, so that a search with guests keeps the default algorithms.
    """
    if not request.algorithms or request.listen_at is not None or request.scheduler is not None:
        return {}, False
    variants = plan(graph, ALGORITHM_SHARE * request.seconds)
    if not variants.variants:
        return {}, False
    survey = replace(options, measurements=0)
    search = Search(variants.tasks, survey, None, builder, compare=variants.contests)
    if _until_interrupted(search, request):
        return {}, True
    chosen = layers(search)
    (platform,) = {s.platform for s in search.all_searches()}
    date = datetime.now(UTC).isoformat(timespec="seconds")
    records.add_algorithms(
        AlgorithmRecord(
            layer,
            machine_name(graph.machine),
            platform,
            *chosen.get(layer, (default, 1.0)),
            options.model,
            VERSION,
            date,
        )
        for layer, default in variants.algorithms.items()
    )
    return chosen, False


def _until_interrupted(search: Search, request: Request) -> bool:
    """Measure all jobs. Ctrl-C ends the budget: winners are confirmed. A second one ends that, too.

    Returns True after a Ctrl-C.
    """
    try:
        _measure(search, request)
    except KeyboardInterrupt:
        search.end_budget()
        try:
            _measure(search, request)
        except KeyboardInterrupt:
            search.cancel()
        return True
    return False


def _engine(request: Request) -> str | None:
    """The engine that measures, or None where the workers of a scheduler have their own."""
    if request.engine is not None or request.scheduler is not None:
        return request.engine
    return next(e for e in ENGINES[request.device] if e in LOCAL_ENGINES or is_installed(e))


def _machine(request: Request) -> str:
    """The name of the machine whose kernels are searched: the one that `load` would pick, as far as
    the request tells. Browsers have one software adapter, whose subgroups are quads.
    """
    if request.device == "wasm":
        return request.variant
    if request.adapter == "software" and _engine(request) in BROWSERS:
        return "software-subgroups"
    return request.adapter


def _measure(search: Search, request: Request) -> None:
    """Let the requested workers measure all jobs of a search."""
    device, engine = request.device, _engine(request)
    with ExitStack() as stack:
        pages = None
        if request.listen_at is not None or engine in BROWSERS:
            address, port = request.listen_at or (HOST, 0)
            pages = stack.enter_context(PageServer(search, device, address, port))
            if request.on_listen is not None and request.listen_at is not None:
                request.on_listen(pages.url)
        if request.scheduler is not None:
            work_on_cluster(search, request.scheduler, device)
        elif engine in LOCAL_ENGINES:
            worker = ProcessWorker(engine, search.threads)
            stack.callback(worker.stop)
            work(search, worker)
        elif pages is not None and engine is not None:
            pages.launch(engine)
        if pages is not None:
            pages.wait()


def _check(request: Request) -> None:
    """Refuse what cannot be searched, before anything takes time."""
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
    if device == "webgpu" and threads > 1:
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
