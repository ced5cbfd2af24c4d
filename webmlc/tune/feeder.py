"""Feed the workers of a Dask cluster with the jobs of a search.

    with connect(search, "tcp://192.168.1.5:8786", "wasm") as feeder:
        feeder.work()

One loop hands out all jobs. It waits for events: a worker joins, a worker is lost, a trial ends.
Then it gives each idle slot the next job of its platform. A trial is pinned to its worker. If the
worker is lost, the trial is given back, and another worker measures it. Workers may join and leave
at any time.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

import distributed

from webmlc.core.errors import UserError
from webmlc.core.machine import Device
from webmlc.tune.platforms import Platform
from webmlc.tune.search import Job, Search
from webmlc.tune.slots import CONNECT_SECONDS, describe, measure, no_scheduler
from webmlc.tune.trial import Measurement
from webmlc.tune.workers import seconds_for

DEVICES = {"wasmtime": "wasm", "wgpu": "webgpu"}
"""The device whose kernels each engine of a cluster measures."""
CHECK_SECONDS = 0.5
"""Seconds between two looks at the connection to the scheduler."""
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
    """A connected worker. It has no pool until it has said what it measures on, or if it cannot
    measure; `refusal` says why.
    """

    address: str
    pool: _Pool | None = None
    refusal: str = ""
    calls: dict[Future[Any], Job | None] = field(default_factory=dict)


class Feeder:
    """Feeds the workers of a cluster. Other threads only put calls into `events`."""

    def __init__(self, search: Search, client: Any, scheduler: str, device: Device) -> None:
        self.search, self.client, self.device = search, client, device
        self.scheduler = scheduler
        self.members: dict[str, _Member] = {}
        self.pools: dict[Platform, _Pool] = {}
        self.events: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self.last_usable = time.monotonic()

    def work(self) -> None:
        """Hand out jobs until there are none for any connected worker."""
        self.client.subscribe_topic("all", self._note)
        for address in self.client.scheduler_info(n_workers=-1)["workers"]:
            self._join(address)
        while not self._is_done():
            self._check_scheduler()
            self._check_members()
            has_fed = [self._feed(pool) for pool in self.pools.values()]
            self._handle_events(0.0 if any(has_fed) else self._pause())
        self.client.unsubscribe_topic("all")

    def give_back_all(self) -> None:
        """Give back every job that is measured now."""
        for address in list(self.members):
            self._lose(address)

    def _is_done(self) -> bool:
        """True if no connected worker has or will have a job."""
        members = self.members.values()
        pools = {member.pool for member in members if member.pool is not None}
        is_idle = not any(member.calls for member in members)
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
        if any(member.calls or member.pool for member in self.members.values()):
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
            handle = partial(self._take_in, member, job)
            self._call(member, job, handle, measure, job.trial, seconds_for(job))
            return True
        pool.is_done = job is None
        pool.ask_at = time.monotonic() + (job or 0.0)
        return False

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

    def _join(self, address: str) -> None:
        """Ask a new worker what it measures on."""
        if address not in self.members:
            member = self.members[address] = _Member(address)
            handle = partial(self._describe, member)
            self._call(member, None, handle, describe, self.search.threads)

    def _describe(self, member: _Member, description: tuple[Platform, int] | Exception) -> None:
        """Take in what a worker measures on."""
        if isinstance(description, Exception):
            member.refusal = str(description)
            return
        platform, slots = description
        if DEVICES.get(platform.engine) != self.device:
            member.refusal = f"{platform.engine} does not measure kernels on {self.device}"
            return
        member.pool = self.pools.setdefault(platform, _Pool(platform))
        member.pool.idle.extend([member] * slots)

    def _take_in(self, member: _Member, job: Job, outcome: Measurement | str | Exception) -> None:
        """Take in what a trial showed, and free its slot."""
        assert member.pool is not None
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
        """Cancel the calls of a worker, give back its jobs, and give it no others."""
        pool, member.pool = member.pool, None
        calls, member.calls = member.calls, {}
        for call, job in calls.items():
            call.cancel()
            if job is not None:
                self.search.give_back(job)
        if pool is not None:
            pool.ask_at = 0.0
            pool.idle = deque(other for other in pool.idle if other is not member)

    def _call(
        self,
        member: _Member,
        job: Job | None,
        handle: Callable[[Any], None],
        function: Callable[..., Any],
        *arguments: Any,
    ) -> None:
        """Let a worker call a function. An event hands its result, or its error, to `handle`."""

        async def result() -> Any:
            return await self.client.submit(
                function, *arguments, workers=[member.address], pure=False
            )

        def end() -> None:
            if future not in member.calls:
                return  # the worker was lost
            del member.calls[future]
            if future.cancelled():
                handle(RuntimeError("the scheduler cancelled its trial"))
            else:
                handle(future.exception() or future.result())

        future = asyncio.run_coroutine_threadsafe(result(), self.client.loop.asyncio_loop)
        member.calls[future] = job
        future.add_done_callback(lambda _: self.events.put(end))
