"""Run a search from start to end: tasks, workers, database and report.

In: what `webmlc tune` was asked for. Out: a `Result`. An interruption (Ctrl-C) ends the search, not
the program: what was measured is in the database, and winners are confirmed by what is known.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from webmlc.core.errors import UserError
from webmlc.core.machine import Device, Features
from webmlc.frontend.bind_constants import Constants
from webmlc.frontend.read_model import Source
from webmlc.tune.browsers import is_installed
from webmlc.tune.database import Database
from webmlc.tune.pages import PageServer
from webmlc.tune.report import write_report
from webmlc.tune.search import Options, Search, TaskSearch, gain
from webmlc.tune.strategies import STRATEGIES
from webmlc.tune.tasks import tasks_of
from webmlc.tune.workers import LOCAL_ENGINES, ProcessWorker, work

ENGINES: Mapping[Device, tuple[str, ...]] = {
    "wasm": ("chromium", "node", "wasmtime", "firefox"),
    "webgpu": ("chromium", "wgpu"),
}
"""The engines that measure kernels of each device, the preferred one first."""


@dataclass(frozen=True, slots=True)
class Result:
    """What a search found. `gain` is the time of the searched kernels in a run of the model with
    their default schedules, over that with the winners. `report` is a page to look at.
    """

    searches: tuple[TaskSearch, ...]
    gain: float
    database: Path
    report: Path
    was_interrupted: bool


def run(
    model: Source,
    *,
    device: Device,
    engine: str | None,
    variant: Features,
    threads: int,
    sizes: Mapping[str, int],
    constants: Constants | None,
    seconds: float,
    strategy: str,
    database: Path,
    resume: bool,
    seed: int,
    listen_at: tuple[str, int] | None,
    on_change: Callable[[Search], None] | None,
) -> Result:
    """See `webmlc.tune.tune`."""
    _check(device, engine, threads, seconds, strategy)
    name = Path(model).stem if isinstance(model, str | Path) else "model"
    options = Options(strategy, seconds, seed=seed, model=name, resume=resume)
    with Database(database) as records:
        tasks = tasks_of(model, device, sizes, constants=constants, features=variant)
        if not tasks:
            raise UserError(f"{name}: no kernel of this model has a schedule to search")
        chosen = engine or next(e for e in ENGINES[device] if is_installed(e))
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(os.cpu_count(), context) as builders:
            search = Search(tasks, options, records, threads, builders, on_change)
            was_interrupted = _work(search, chosen, device, listen_at)
        searches = tuple(search.all_searches())
        report = write_report(database.with_suffix(".html"), searches, options)
        return Result(searches, gain(searches), database, report, was_interrupted)


def _work(search: Search, engine: str, device: Device, listen_at: tuple[str, int] | None) -> bool:
    """Let workers measure all jobs. Returns True if the user interrupted them."""
    try:
        if engine in LOCAL_ENGINES and listen_at is None:
            worker = ProcessWorker(engine, search.threads)
            try:
                work(search, worker)
            finally:
                worker.stop()
        else:
            address, port = listen_at or ("127.0.0.1", 0)
            with PageServer(search, device, address, port) as pages:
                pages.launch(engine)
                pages.wait()
    except KeyboardInterrupt:
        search.cancel()
        return True
    return False


def _check(device: Device, engine: str | None, threads: int, seconds: float, strategy: str) -> None:
    """Refuse what cannot be searched, before anything takes time."""
    if not seconds > 0:
        raise UserError("--budget: a search needs more than no time; try --budget 5m")
    if threads < 1:
        raise UserError(f"--threads {threads}: kernels run with 1 thread or more")
    if device == "webgpu" and threads > 1:
        raise UserError("--threads: a GPU has its own; leave the option out with --device webgpu")
    if engine is not None and engine not in ENGINES[device]:
        raise UserError(
            f"--engine {engine}: kernels on {device} are measured by {', '.join(ENGINES[device])}"
        )
    if strategy not in (names := ("auto", "model", *STRATEGIES)):
        raise UserError(f"--strategy {strategy}: choose one of {', '.join(names)}")
