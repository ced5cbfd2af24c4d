"""Workers: they take jobs from a search, measure them, and hand in the measurements.

    worker = ProcessWorker("wasmtime", threads=1)
    work(search, worker)                          # until the search has no more jobs

A worker's engine runs in another process: an engine that crashes or hangs is restarted, and costs
one trial.
"""

from __future__ import annotations

import math
import multiprocessing
import signal
import time
from importlib.metadata import version
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Any, Protocol

from webmlc.core.errors import UserError, WebmlcError
from webmlc.core.machine import DEVICES
from webmlc.tune.measure.platforms import Platform, cpu_platform, gpu_platform
from webmlc.tune.measure.rounds import EngineError
from webmlc.tune.measure.trial import Measurement, Trial
from webmlc.tune.search.search import Job, ModelJob, Search

LOCAL_ENGINES = ("wasmtime", "wgpu")
"""The engines that run in a process of this Python; pages run the others (`pages`)."""
START_SECONDS = 60.0
"""Seconds that an engine's process may take to start."""
SLOWNESS = 20.0
"""How many times as long as the control suggests a trial may take before it counts as hung."""
LEAST_SECONDS = 30.0
"""Seconds that every trial may take: compiling shaders on software adapters takes long."""
OVERTIME_SECONDS = 10.0
"""Seconds after the end of the budget at which a trial counts as hung (chosen by hand)."""


class WorkerFailed(Exception):
    """A trial crashed its engine, or did not end in time."""


class Worker(Protocol):
    """Something that measures trials on one platform."""

    @property
    def platform(self) -> Platform:
        """The platform that the worker measures on."""

    def measure(self, trial: Trial, seconds: float) -> Measurement:
        """Measure a trial within some seconds. Raises `WorkerFailed`."""

    def stop(self) -> None:
        """Free its process."""


class ProcessWorker:
    """An engine of this Python (`wasmtime` or `wgpu`) in a process of its own."""

    def __init__(self, engine: str, threads: int = 1) -> None:
        """Start the process. Raises `UserError` if the engine cannot be used here."""
        self.engine, self.threads = engine, threads
        self._process: SpawnProcess | None = None
        self._pipe: Connection | None = None
        self._platform = self._start()

    @property
    def platform(self) -> Platform:
        """See `Worker`."""
        return self._platform

    def measure(self, trial: Trial, seconds: float) -> Measurement:
        """See `Worker`."""
        if self._process is None:
            self._start()
        assert self._pipe is not None
        try:
            self._pipe.send(trial)
            if not self._pipe.poll(seconds):
                raise WorkerFailed(f"no result in {seconds:.0f} s")
            answer = self._pipe.recv()
        except (EOFError, OSError) as error:
            self.stop()
            raise WorkerFailed("the engine's process ended") from error
        except BaseException:  # the process still measures
            self.stop()
            raise
        if isinstance(answer, Measurement):
            return answer
        raise WorkerFailed(str(answer))

    def stop(self) -> None:
        """See `Worker`."""
        if self._process is not None:
            self._process.kill()
            self._process.join()
        if self._pipe is not None:
            self._pipe.close()
        self._process = self._pipe = None

    def _start(self) -> Platform:
        context = multiprocessing.get_context("spawn")
        self._pipe, other_end = context.Pipe()
        self._process = context.Process(
            target=_serve_engine, args=(other_end, self.engine, self.threads), daemon=True
        )
        self._process.start()
        other_end.close()
        try:
            answer = self._pipe.recv() if self._pipe.poll(START_SECONDS) else "it does not answer"
        except EOFError:
            answer = "its process ended"
        if not isinstance(answer, Platform):
            self.stop()
            raise UserError(f"--engine {self.engine}: {answer}")
        return answer


def _serve_engine(pipe: Connection, engine: str, threads: int) -> None:
    """The process of an engine: describes its platform, then answers trial after trial."""
    ignore_interrupts()
    try:
        pipe.send(local_platform(engine, threads))
    except WebmlcError as error:
        pipe.send(str(error))
        return
    from webmlc.tune.measure.wasm import measure_wasm

    while True:
        try:
            trial: Trial = pipe.recv()
        except EOFError:
            return
        try:
            if DEVICES[trial.device].runs_steps:
                pipe.send(measure_wasm(trial))
            else:
                from webmlc.tune.measure.webgpu import measure_webgpu

                pipe.send(measure_webgpu(trial))
        except (EngineError, WebmlcError) as error:
            pipe.send(str(error))


def ignore_interrupts() -> None:
    """Let Ctrl-C interrupt the main process alone, which ends the engines' processes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def local_platform(engine: str, threads: int) -> Platform:
    """This machine as a platform of `wasmtime` or `wgpu`. Raises `UserError` without a GPU."""
    if engine == "wasmtime":
        return cpu_platform(engine, version("wasmtime"), threads)
    from webmlc.host.webgpu_adapter import find_adapter

    info: dict[str, Any] = dict(find_adapter().info)
    return gpu_platform(engine, version("wgpu"), info)


def work(search: Search, worker: Worker) -> None:
    """Measure jobs of a search until it has none for this worker."""
    while True:
        job = search.next_job(worker.platform)
        if job is None:
            return
        if not isinstance(job, Job):
            time.sleep(job)
            continue
        try:
            measurement = worker.measure(job.trial, seconds_for(job, search))
        except WorkerFailed as error:
            search.fail(job, str(error))
        except BaseException:
            search.give_back(job)
            raise
        else:
            search.finish(job, measurement)


def seconds_for(job: Job, search: Search) -> float:
    """The seconds that a trial of a search may take: many times the estimate from the control's
    time, if that time is known, and little more than the rest of the budget. The trial of the whole
    model comes after it.
    """
    protocol, control = job.trial.protocol, job.expected_ms
    seconds = 10 * LEAST_SECONDS
    if not math.isnan(control):
        sample = max(protocol.sample_ms, control * len(job.trial.calls))
        per_candidate = protocol.warmup_ms + 8 * sample + protocol.rounds * sample
        seconds = LEAST_SECONDS + SLOWNESS * job.trial.candidates * per_candidate / 1e3
    if isinstance(job, ModelJob):
        return seconds
    return min(seconds, search.seconds_left + OVERTIME_SECONDS)
