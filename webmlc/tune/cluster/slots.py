"""The slots of a worker of a Dask cluster: each slot measures one trial at a time.

In: a function that starts an engine. Out: a plugin of the Dask worker, and two functions that the
tuner lets the worker call (see `feeder`):

    await describe(threads)        # the worker's platform, and the number of its slots
    start(client, assignments)     # begin some trials; events bring the client their outcomes

An engine runs in a process beside the Dask worker. A candidate that crashes it leaves the worker
alone.
"""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import dask.config
import distributed
from distributed.diagnostics.plugin import WorkerPlugin

from webmlc.core.errors import UserError
from webmlc.host.serve import HOST
from webmlc.tune.measure.platforms import Platform
from webmlc.tune.measure.trial import Measurement, Trial, measurement_of
from webmlc.tune.measure.workers import LOCAL_ENGINES, ProcessWorker, Worker, WorkerFailed

CONNECT_SECONDS = 10.0
"""Seconds in which a scheduler must answer."""
SEND_SECONDS = 0.02
"""Seconds after the end of a trial in which other trials share its event: the trials of one call
often end together (chosen by hand: a trial takes seconds)."""
RESULTS = "webmlc results"
"""The topic of the events that carry outcomes of trials. All searches of a scheduler share this
topic: the scheduler keeps the last thousand events of each topic."""

QUIET = {
    "distributed.worker.profile.enabled": False,
    "distributed.admin.tick.interval": "1s",
    "distributed.admin.system-monitor.interval": "10s",
}
"""The configuration of Dask. Its profiler interrupts a process 100 times a second, its check of the
event loop 50 times, and its monitor of the system twice, and trials with it."""

Outcome = Measurement | str | Exception
"""The measurement of a trial, the text of its failure, or the error that stops the worker from
measuring any trial."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """A trial that a worker measures within some seconds. The tuner knows it by its number."""

    number: int
    trial: Trial
    seconds: float


class Slots(WorkerPlugin):
    """The engines of a Dask worker, one engine for each trial that it measures at the same time."""

    name = "webmlc"

    def __init__(self, start: Callable[[int], Worker], count: int) -> None:
        """`start` starts an engine for kernels of some threads. `count` is the number of slots."""
        self.count = count
        self._start = start
        self._idle: dict[int, list[Worker]] = defaultdict(list)
        self._engines: list[Worker] = []
        self._results: dict[str, list[dict[str, Any]]] = {}
        self._is_closed = False
        self._lock = threading.Lock()
        self._threads = ThreadPoolExecutor(count)
        self._worker: Any = None

    def setup(self, worker: distributed.Worker) -> None:
        """Note the Dask worker, which sends the results."""
        self._worker = worker

    def start(self, client: str, assignments: Iterable[Assignment]) -> None:
        """Measure some trials in the slots, and tell the client their outcomes."""
        for assignment in assignments:
            self._threads.submit(self._answer, client, assignment)

    def platform(self, threads: int) -> Platform:
        """The platform that measures kernels of some threads. Raises `UserError` if the engine
        cannot be used here.
        """
        engine = self._take(threads)
        self._return(engine, threads)
        return engine.platform

    def measure(self, trial: Trial, seconds: float) -> Measurement | str:
        """Measure a trial within some seconds, or return the text of its failure."""
        engine = self._take(trial.threads)
        try:
            return engine.measure(trial, seconds)
        except WorkerFailed as error:
            if self._is_closed:
                raise UserError("the worker ends") from error  # the candidates are not at fault
            return str(error)
        finally:
            self._return(engine, trial.threads)

    def _answer(self, client: str, assignment: Assignment) -> None:
        """Measure a trial, and note its outcome for the client."""
        try:
            outcome = _to_data(self.measure(assignment.trial, assignment.seconds))
        except Exception as error:
            outcome = {"refusal": str(error)}
        with self._lock:
            is_first = not self._results
            self._results.setdefault(client, []).append({"number": assignment.number, **outcome})
        if is_first:
            loop = self._worker.loop
            loop.add_callback(loop.call_later, SEND_SECONDS, self._send)

    def _send(self) -> None:
        """Tell each client the outcomes of its trials, in one event."""
        with self._lock:
            sent, self._results = self._results, {}
        for client, results in sent.items():
            event = {"client": client, "worker": self._worker.address, "results": results}
            self._worker.log_event(RESULTS, event)

    def teardown(self, worker: distributed.Worker) -> None:
        """Stop all engines: the Dask worker ends."""
        self.stop()

    def stop(self) -> None:
        """Stop all engines."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            self._is_closed = True
            for engine in self._engines:
                engine.stop()

    def _take(self, threads: int) -> Worker:
        """An idle engine, or a new engine."""
        with self._lock:
            if self._idle[threads]:
                return self._idle[threads].pop()
        engine = self._start(threads)
        with self._lock:
            self._engines.append(engine)
        return engine

    def _return(self, engine: Worker, threads: int) -> None:
        with self._lock:
            self._idle[threads].append(engine)


def _to_data(outcome: Measurement | str) -> dict[str, Any]:
    """The outcome of a trial, as a part of an event. A measurement is one text: Dask walks over
    each number of a message before it sends it.
    """
    if isinstance(outcome, Measurement):
        data = {"milliseconds": outcome.milliseconds, "reasons": outcome.reasons}
        return {"measurement": json.dumps(data)}
    return {"error": outcome}


def outcome_of(result: Mapping[str, Any], trial: Trial) -> Outcome:
    """The outcome of a trial in an event."""
    match result:
        case {"measurement": str(text)}:
            try:
                return measurement_of(json.loads(text), trial.candidates)
            except ValueError as error:
                return error
        case {"error": text}:
            return str(text)
    return UserError(result.get("refusal", "it runs another version of webmlc"))


async def describe(threads: int, dask_worker: distributed.Worker) -> tuple[Platform, int]:
    """The platform of this Dask worker, for kernels of some threads, and the number of its slots.

    Raises `UserError` if it cannot measure.
    """
    slots = _slots(dask_worker)
    return await asyncio.to_thread(slots.platform, threads), slots.count


def start(client: str, assignments: Iterable[Assignment], dask_worker: distributed.Worker) -> None:
    """Begin to measure some trials on this Dask worker."""
    _slots(dask_worker).start(client, assignments)


def _slots(worker: distributed.Worker) -> Slots:
    slots = worker.plugins.get(Slots.name)
    if not isinstance(slots, Slots):
        raise UserError("it was not started by `webmlc tune-worker`")
    return slots


def engine_slots(engine: str, count: int) -> Slots:
    """The slots of this machine for an engine of Python. Raises `UserError` for any other
    engine.
    """
    if engine not in LOCAL_ENGINES:
        raise UserError(f"--engine {engine}: choose one of {', '.join(LOCAL_ENGINES)}")
    return Slots(partial(ProcessWorker, engine), count)


def serve(scheduler: str, slots: Slots, address: str = HOST) -> None:
    """Measure for a scheduler until it ends, or until Ctrl-C. The scheduler, and everyone else who
    reaches `address`, can connect to this worker.

    Raises `UserError` if an engine cannot be used here, if no scheduler answers, or if it is on
    another machine, which cannot connect to a loopback address.
    """
    host = urlsplit(scheduler).hostname
    if address == HOST and host is not None and not _is_here(host):
        raise UserError(
            f"--listen: the scheduler {scheduler} is on another machine, and this worker listens "
            f"on {HOST} only. Name the address of this machine that the scheduler reaches."
        )
    try:
        platform = slots.platform(1)
        asyncio.run(_serve(scheduler, slots, platform, address))
    except KeyboardInterrupt:
        return
    finally:
        slots.stop()


def _is_here(host: str) -> bool:
    """True if an address is one of this machine's, or cannot be found at all."""
    try:
        (family, *_, place), *_ = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
    except OSError:
        return True  # connecting to it says why
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        try:
            probe.bind(place)  # no machine may bind the address of another machine
        except OSError:
            return False
    return True


async def _serve(scheduler: str, slots: Slots, platform: Platform, address: str) -> None:
    """Join a scheduler, and return when it has ended."""
    try:
        with dask.config.set(QUIET):
            worker = await distributed.Worker(
                scheduler,
                host=address,
                nthreads=1,
                plugins=(slots,),
                death_timeout=CONNECT_SECONDS,
                memory_limit=0,  # the engines' memory is not the worker's
            )
    except (OSError, ValueError, RuntimeError) as error:
        raise no_scheduler(scheduler, error.__cause__ or error) from error
    async with worker:
        trials = "1 trial" if slots.count == 1 else f"{slots.count} trials"
        task = f"measures {trials} at a time for {scheduler}"
        print(f"{platform.key}: {task}, and listens on {address}", flush=True)
        await worker.finished()


def no_scheduler(address: str, error: BaseException) -> UserError:
    """The error of an address at which no scheduler answers."""
    return UserError(
        f"--scheduler {address}: no Dask scheduler answers there ({error}). "
        "Start one with `dask scheduler`, or correct the address."
    )
