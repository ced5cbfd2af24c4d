"""Feed the workers of a Dask cluster with the jobs of a search.

    with connect(search, "tcp://192.168.1.5:8786", "wasm") as feeder:
        feeder.work()

One loop hands out all jobs. It waits for events: a worker joins, a worker is lost, a trial ends.
Then it gives each idle slot the next job of its platform. A trial is pinned to its worker. If the
worker is lost, the trial is given back, and another worker measures it. Workers may join and leave
at any time.

Trials are not Dask tasks, because each task costs the scheduler milliseconds. One call hands a
worker all trials that have come up since its last call, so that a busy search makes fewer calls per
trial. Measurements come back as events.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

import distributed

from webmlc.core.errors import UserError
from webmlc.core.machine import Device
from webmlc.tune.cluster.slots import (
    CONNECT_SECONDS,
    RESULTS,
    Assignment,
    Outcome,
    describe,
    no_scheduler,
    outcome_of,
    start,
)
from webmlc.tune.measure.platforms import Platform
from webmlc.tune.measure.trial import Measurement
from webmlc.tune.measure.workers import seconds_for
from webmlc.tune.search.search import Job, Search

DEVICES = {"wasmtime": "wasm", "wgpu": "webgpu"}
"""The device whose kernels each engine of a cluster measures."""
CHECK_SECONDS = 0.5
"""Seconds between two looks at the connection to the scheduler."""
SEND_SECONDS = 0.05
"""Seconds after which workers are told of their jobs although idle slots wait for others. A call
costs as much as handing out two trials (chosen by hand: a hundredth of the time of a trial)."""
PATIENCE_SECONDS = 60.0
"""Seconds for which a search waits while no worker is connected."""


@contextmanager
def connect(search: Search, scheduler: str, device: Device) -> Iterator[Feeder]:
    """Connect to a scheduler. Jobs that are not finished in the end are given back.

    Raises `UserError` if no scheduler answers.
    """
    try:
        client: Any = distributed.Client(  # type: ignore[no-untyped-call]
            scheduler, timeout=CONNECT_SECONDS, set_as_default=False
        )
    except (OSError, ValueError) as error:
        raise no_scheduler(scheduler, error) from error
    feeder = Feeder(search, client, scheduler, device)
    try:
        yield feeder
    finally:
        feeder.give_back_all()
        with suppress(TimeoutError):  # a client waits for a scheduler that has gone
            client.close(timeout=CHECK_SECONDS)


@dataclass(slots=True, eq=False)
class _Pool:
    """The workers of one platform.

    - `idle`: the worker of each idle slot.
    - `ask_at`: when to ask the search for a job again.
    - `is_done`: the search has no more jobs for the platform.
    """

    platform: Platform
    idle: deque[_Member] = field(default_factory=deque)
    ask_at: float = 0.0
    is_done: bool = False


@dataclass(slots=True, eq=False)
class _Member:
    """A connected worker. A worker has no pool until it has described its platform. A worker that
    cannot measure has no pool either; `refusal` says why.

    - `jobs`: the jobs of its slots, by number.
    - `unsent`: the jobs that were not sent to the worker yet.
    - `call`: the call that the worker has not answered yet.
    """

    address: str
    pool: _Pool | None = None
    refusal: str = ""
    jobs: dict[int, Job] = field(default_factory=dict)
    unsent: list[Job] = field(default_factory=list)
    call: Future[Any] | None = None


class Feeder:
    """Feeds the workers of a cluster. Other threads only put calls into `events`."""

    def __init__(self, search: Search, client: Any, scheduler: str, device: Device) -> None:
        self.search, self.client, self.device = search, client, device
        self.scheduler = scheduler
        self.members: dict[str, _Member] = {}
        self.pools: dict[Platform, _Pool] = {}
        self.events: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self.last_usable = self.last_sent = time.monotonic()

    def work(self) -> None:
        """Hand out jobs until no connected worker can get another job."""
        self.client.subscribe_topic("all", self._note)
        self.client.subscribe_topic(RESULTS, self._note_result)
        for address in self.client.scheduler_info(n_workers=-1)["workers"]:
            self._join(address)
        while True:
            self._check_scheduler()
            self._check_members()
            has_fed = [self._feed(pool) for pool in self.pools.values()]
            self._send_all(is_idle=not any(has_fed))
            if self._is_done():
                break
            self._handle_events(0.0 if any(has_fed) else self._pause())
        for topic in ("all", RESULTS):
            self.client.unsubscribe_topic(topic)

    def give_back_all(self) -> None:
        """Give back every job that is measured now."""
        for address in list(self.members):
            self._lose(address)

    def _is_done(self) -> bool:
        """True if no connected worker has or will have a job."""
        members = self.members.values()
        pools = {member.pool for member in members if member.pool is not None}
        is_idle = not any(member.call or member.jobs for member in members)
        is_done = self.search.is_done or (bool(pools) and all(pool.is_done for pool in pools))
        return is_idle and is_done

    def _check_scheduler(self) -> None:
        """Raise `UserError` if the scheduler has gone."""
        stream = self.client.scheduler_comm
        if self.client.status != "running" or stream is None or stream.closed():
            raise UserError(
                f"The scheduler {self.scheduler} has ended. Start it and its workers again, and "
                "add --resume: the database has what was measured."
            )

    def _check_members(self) -> None:
        """Raise `UserError` if no worker could measure for too long."""
        now = time.monotonic()
        if any(member.call or member.pool for member in self.members.values()):
            self.last_usable = now
        elif now - self.last_usable > PATIENCE_SECONDS:
            refusals = {m.refusal for m in self.members.values() if m.refusal}
            reasons = f" ({'; '.join(sorted(refusals))})" if refusals else ""
            raise UserError(
                f"The scheduler {self.scheduler} has no worker that measures kernels on "
                f"{self.device}{reasons}. Start one with "
                f"`webmlc tune-worker --scheduler {self.scheduler}`."
            )

    def _feed(self, pool: _Pool) -> bool:
        """Give an idle slot of a pool its next job. Returns True if there may be another."""
        if not pool.idle or pool.is_done or time.monotonic() < pool.ask_at:
            return False
        job = self.search.next_job(pool.platform)
        if isinstance(job, Job):
            member = pool.idle.popleft()
            member.jobs[job.number] = job
            member.unsent.append(job)
            return True
        pool.is_done = job is None
        pool.ask_at = time.monotonic() + (job or 0.0)
        return False

    def _send_all(self, is_idle: bool) -> None:
        """Tell workers of their jobs, if there are no others for now or it is time to."""
        now = time.monotonic()
        if is_idle or now - self.last_sent > SEND_SECONDS:
            self.last_sent = now
            for member in self.members.values():
                self._send(member)

    def _send(self, member: _Member) -> None:
        """Tell a worker of all jobs that it was not told of, unless it still answers a call."""
        if member.unsent and member.call is None:
            jobs, member.unsent = member.unsent, []
            assignments = [Assignment(j.number, j.trial, seconds_for(j, self.search)) for j in jobs]
            handle = partial(self._confirm, member)
            self._call(member, handle, start, self.client.id, assignments)

    def _pause(self) -> float:
        """The seconds until something is due without an event."""
        now = time.monotonic()
        due = (p.ask_at - now for p in self.pools.values() if p.idle and not p.is_done)
        return max(0.0, min(CHECK_SECONDS, *due, CHECK_SECONDS))

    def _handle_events(self, seconds: float) -> None:
        """Wait for an event for some seconds, and handle all that there are."""
        try:
            handle = self.events.get(timeout=seconds) if seconds else self.events.get_nowait()
            while True:
                handle()
                handle = self.events.get_nowait()
        except Empty:
            return

    def _note(self, event: tuple[float, Any]) -> None:
        """Note an event of the scheduler."""
        match event:
            case (_, {"action": "add-worker", "worker": address}):
                self.events.put(partial(self._join, address))
            case (_, {"action": "remove-worker", "worker": address}):
                self.events.put(partial(self._lose, address))

    def _note_result(self, event: tuple[float, Any]) -> None:
        """Note the outcomes of some trials, if the trials belong to this search."""
        _, message = event
        if message["client"] == self.client.id:
            for result in message["results"]:
                self.events.put(partial(self._take_in, message["worker"], result))

    def _join(self, address: str) -> None:
        """Ask a new worker for its platform."""
        if address not in self.members:
            member = self.members[address] = _Member(address)
            handle = partial(self._describe, member)
            self._call(member, handle, describe, self.search.threads)

    def _describe(self, member: _Member, description: tuple[Platform, int] | Exception) -> None:
        """Take in the platform of a worker."""
        if isinstance(description, Exception):
            member.refusal = str(description)
            return
        platform, slots = description
        if DEVICES.get(platform.engine) != self.device:
            member.refusal = f"{platform.engine} does not measure kernels on {self.device}"
            return
        member.pool = self.pools.setdefault(platform, _Pool(platform))
        member.pool.idle.extend([member] * slots)

    def _confirm(self, member: _Member, answer: Exception | None) -> None:
        """Part with a worker that could not be told of its jobs."""
        if answer is not None:
            member.refusal = str(answer)
            self._release(member)

    def _take_in(self, worker: str, result: Mapping[str, Any]) -> None:
        """Take in the outcome of a trial, and free its slot."""
        member = self.members.get(worker)
        job = member.jobs.pop(result["number"], None) if member is not None else None
        if member is None or member.pool is None or job is None:
            return  # it was given back, and another worker has it
        outcome: Outcome = outcome_of(result, job.trial)
        if isinstance(outcome, Measurement):
            self.search.finish(job, outcome)
        elif isinstance(outcome, str):
            self.search.fail(job, outcome)
        else:  # the worker is broken, not the candidates
            self.search.give_back(job)
            member.refusal = str(outcome)
            self._release(member)
            return
        member.pool.ask_at = 0.0
        member.pool.idle.append(member)

    def _lose(self, address: str) -> None:
        """Forget a worker that has gone, and give back its jobs."""
        member = self.members.pop(address, None)
        if member is not None:
            self._release(member)

    def _release(self, member: _Member) -> None:
        """Cancel the call of a worker, give back its jobs, and give it no others."""
        pool, member.pool = member.pool, None
        call, member.call = member.call, None
        jobs, member.jobs, member.unsent = member.jobs, {}, []
        if call is not None:
            call.cancel()
        for job in jobs.values():
            self.search.give_back(job)
        if pool is not None:
            pool.ask_at = 0.0
            pool.idle = deque(other for other in pool.idle if other is not member)

    def _call(
        self,
        member: _Member,
        handle: Callable[[Any], None],
        function: Callable[..., Any],
        *arguments: Any,
    ) -> None:
        """Let a worker call a function. An event hands its result, or its error, to `handle`."""

        async def result() -> Any:
            answers = await self.client.run(function, *arguments, workers=[member.address])
            return answers[member.address]

        def end() -> None:
            if member.call is not future:
                return  # the worker was lost
            member.call = None
            handle(future.exception() or future.result())

        future = asyncio.run_coroutine_threadsafe(result(), self.client.loop.asyncio_loop)
        member.call = future
        future.add_done_callback(lambda _: self.events.put(end))
