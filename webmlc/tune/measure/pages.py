"""Workers that are pages: browsers and Node, on this machine or on another machine.

    with PageServer(search, address="127.0.0.1", port=0) as pages:
        pages.launch("chromium")                  # or: a person opens pages.url on a phone
        pages.wait()

A page joins the search, fetches trials, measures them and posts the results (see `listen`). A page
that does not answer in time is given up. If it runs in a browser that we started, its trial counts
as failed, and we start the browser again. Otherwise another worker gets the trial.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from webmlc.core.errors import UserError
from webmlc.core.machine import DEVICES, Device
from webmlc.tune.measure.browsers import Browser, start_browser
from webmlc.tune.measure.listen import TuneServer, listen
from webmlc.tune.measure.platforms import Platform, cpu_platform, gpu_platform
from webmlc.tune.measure.trial import Measurement, Trial
from webmlc.tune.measure.workers import seconds_for
from webmlc.tune.search.search import Job, Search

PATIENCE_SECONDS = 45.0
"""Seconds in which a browser that we started must join."""
CHECK_SECONDS = 0.2
"""Seconds between two looks at overdue trials."""


@dataclass(slots=True)
class Page:
    """A page that joined: its platform, its trial and the time at which the trial is overdue. It
    waits for us while we answer a call, which may build candidates for longer than we wait for
    pages.
    """

    platform: Platform
    is_ours: bool
    job: Job | None = None
    deadline: float = 0.0
    last_seen: float = field(default_factory=time.monotonic)
    is_answered: bool = True

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Answer a call of the page."""
        self.is_answered = False
        try:
            yield
        finally:
            self.last_seen, self.is_answered = time.monotonic(), True


class PageServer:
    """Hands the jobs of a search to pages (`listen.Broker`)."""

    def __init__(
        self, search: Search, device: Device, address: str = "127.0.0.1", port: int = 0
    ) -> None:
        """Listen at an address: any device that reaches it may join. Raises `UserError` if the port
        is not available.
        """
        self.search, self.device = search, device
        self.pages: dict[str, Page] = {}
        self.browser: Browser | None = None
        self.engine = ""
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self.server: TuneServer = listen(self, address, port)
        self._thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        """The URL of the page."""
        return self.server.url

    def __enter__(self) -> PageServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def launch(self, engine: str) -> None:
        """Start a browser, or Node, of this machine, which joins."""
        self.engine = engine
        self.browser = start_browser(engine, self.url, self.device)

    def wait(self) -> None:
        """Return when the search has no more jobs, or no page to measure them. Restarts a browser
        that hangs or crashes.
        """
        started = time.monotonic()
        while not self.search.is_done:
            time.sleep(CHECK_SECONDS)
            last_seen = max((p.last_seen for p in self.pages.values()), default=started)
            is_answered = all(page.is_answered for page in list(self.pages.values()))
            is_late = self.search.seconds_left == 0 and self.search.is_idle and is_answered
            if is_late and time.monotonic() - last_seen > PATIENCE_SECONDS:
                return
            self._give_up_overdue()
            if self.browser is None:
                continue
            ours = [name for name, page in self.pages.items() if page.is_ours]
            if self.browser.has_ended():
                for name in ours:
                    self._lose(name, f"{self.engine} crashed")
                self.launch(self.engine)
                started = time.monotonic()
            elif not ours and time.monotonic() - started > PATIENCE_SECONDS:
                raise UserError(
                    f"--engine {self.engine}: it did not open {self.url} in "
                    f"{PATIENCE_SECONDS:.0f} s; try another engine"
                )

    def stop(self) -> None:
        """Stop the browser and the server."""
        if self.browser is not None:
            self.browser.stop()
        self.server.shutdown()
        self.server.server_close()

    def join(self, platform: Mapping[str, Any]) -> str:
        """See `listen.Broker`."""
        description = self._platform(platform)
        with self._lock:
            name = f"page {next(self._numbers)}"
            is_ours = self.browser is not None and not any(p.is_ours for p in self.pages.values())
            self.pages[name] = Page(description, is_ours)
        return name

    def next(self, worker: str) -> tuple[int, Trial, str] | float | None:
        """See `listen.Broker`."""
        page = self.pages[worker]
        with page.answering():
            if page.job is not None:  # the page was loaded again
                self.search.give_back(page.job)
                page.job = None
            job = self.search.next_job(page.platform)
            if not isinstance(job, Job):
                return job
            page.job, page.deadline = job, time.monotonic() + seconds_for(job, self.search)
            return job.number, job.trial, job.title

    def result(self, worker: str, id: int, measurement: Measurement | str) -> None:
        """See `listen.Broker`."""
        page = self.pages[worker]
        job, page.job = page.job, None
        if job is None or job.number != id:
            return  # it was given up
        with page.answering():
            if isinstance(measurement, Measurement):
                self.search.finish(job, measurement)
            else:
                self.search.fail(job, measurement)

    def trial_of(self, worker: str) -> Trial | None:
        """The trial that a page measures now."""
        job = self.pages[worker].job
        return None if job is None else job.trial

    def _give_up_overdue(self) -> None:
        now = time.monotonic()
        for name, page in list(self.pages.items()):
            if page.job is None or now < page.deadline:
                continue
            if page.is_ours and self.browser is not None:
                self.browser.stop()  # `wait` starts it again
            self._lose(name, "no result in time")

    def _lose(self, name: str, reason: str) -> None:
        """Forget a page, and let its trial be measured again."""
        page = self.pages.pop(name)
        job, page.job = page.job, None
        if job is not None and page.is_ours:
            self.search.fail(job, reason)
        elif job is not None:
            self.search.give_back(job)

    def _platform(self, data: Mapping[str, Any]) -> Platform:
        """The platform that a page describes (`page/join.js`). Raises `UserError`."""
        try:
            engine, _, version = str(data["engine"]).partition(" ")
            cpu, adapter = data["cpu"], data.get("adapter")
            if DEVICES[self.device].has_adapters:
                if not adapter:
                    raise UserError("this browser has no GPU adapter (navigator.gpu)")
                return gpu_platform(engine, version, adapter)
            needed = {f for task in self.search.tasks for f in task.match.machine.features}
            if lacking := sorted(needed - {"dot", "pairs"} - set(cpu["features"])):
                raise UserError(
                    f"{data['engine']} has no {lacking[0]} SIMD; search for it with "
                    "--variant simd128"
                )
            threads = self.search.threads
            if threads > 1 and not data.get("threads"):
                raise UserError("this page may not share memory, which threads need")
            if self.server.is_local:
                return cpu_platform(engine, version, threads)
            features = " ".join(map(str, cpu["features"]))
            family = f"{cpu['architecture']} {cpu['cores']} cores {features}"
        except (KeyError, TypeError, AttributeError) as error:
            raise UserError(f"not the description of a platform: {error!r}") from error
        return Platform(engine, version, "", family, 0, threads)
