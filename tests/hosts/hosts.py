"""The hosts that packages are tested in, and how to run JavaScript inside of one.

    with start(HOSTS["firefox"], site) as firefox:
        firefox.version                                      # "153.7.0"
        firefox.call("runPackage", job, headers=ISOLATION)   # what the export of page.js returns

A host that is missing is an error that says what to install, never a skip.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, Literal

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
NODE_MODULES = ROOT / "node_modules"

START_SECONDS = 60
JOB_SECONDS = 60
CLOSE_SECONDS = 10

ISOLATION = {
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Embedder-Policy": "require-corp",
}
POLICY = {
    "Content-Security-Policy": "default-src 'self'; script-src 'self' 'wasm-unsafe-eval'",
}

Driver = Literal["chromium", "firefox", "webkit", "script"]


@dataclass(frozen=True, slots=True)
class Host:
    """A host: the driver that controls it, and the program that runs the driver.

    A `program` with wildcards is a path below node_modules. `environment` is set for the host only;
    `note` says in words what it changes.
    """

    name: str
    title: str
    driver: Driver
    program: tuple[str, ...] = ("node",)
    environment: Mapping[str, str] = field(default_factory=dict)
    note: str = ""

    @property
    def is_browser(self) -> bool:
        """Whether packages run in a page, which a server sends with headers."""
        return self.driver != "script"

    def command(self) -> list[str]:
        """The command that starts the host. Raises `RuntimeError` where its program is missing."""
        program, *arguments = self.program
        if "*" in program:
            paths = sorted(NODE_MODULES.glob(program))
            if not paths:
                raise RuntimeError(f"{self.title}: no node_modules/{program}; run `npm ci`")
            program = str(paths[0])
        return [program, *arguments, str(HERE / "run_jobs.mjs"), self.driver]


HOSTS: Mapping[str, Host] = {
    host.name: host
    for host in (
        Host("chromium", "Chromium", "chromium"),
        Host("firefox", "Firefox ESR", "firefox"),
        Host("webkit", "WebKitGTK", "webkit"),
        # Pages share no memory in WebKitGTK; in Safari, of the same engine, isolated pages do.
        Host(
            "webkit_shared",
            "WebKitGTK",
            "webkit",
            environment={"JSC_useSharedArrayBuffer": "1"},
            note="`JSC_useSharedArrayBuffer=1`",
        ),
        Host("node", "Node", "script"),
        Host("deno", "Deno", "script", ("@deno/*/deno", "run", "--allow-all")),
        Host("bun", "Bun", "script", ("@oven/bun-*/bin/bun",)),
    )
}


@dataclass
class RunningHost:
    """A host that `start` started."""

    host: Host
    site: Path
    process: subprocess.Popen[str]
    log: IO[bytes]
    version: str = ""

    def call(
        self, name: str, arg: Any = None, *, page: str = "/", headers: Mapping[str, str] | None
    ) -> Any:
        """The result of the export `name` of page.js for `arg`, as JSON.

        A browser opens `page` first: a path of the site, which is served with `headers`, or,
        without headers, an address elsewhere. Raises `AssertionError` if the call throws or the
        page reports an error.
        """
        job: dict[str, Any] = {"root": str(self.site), "module": "/page.js", "name": name}
        job |= {"arg": arg, "timeout": JOB_SECONDS * 1000}
        if self.host.is_browser:
            job |= {"page": page, "headers": headers}
        assert self.process.stdin
        self.process.stdin.write(json.dumps(job) + "\n")
        self.process.stdin.flush()
        report = self._answer(2 * JOB_SECONDS)
        if "error" in report or report["errors"]:
            errors = "\n".join([report.get("error", ""), *report["errors"]])
            raise AssertionError(f"{self.host.title}: {name}: {errors}")
        return report["value"]

    def _answer(self, seconds: float) -> dict[str, Any]:
        """The next line of the host's process, which is ended if that takes too long."""
        assert self.process.stdout
        limit = threading.Timer(seconds, self._signal, [signal.SIGTERM])
        limit.start()
        line = self.process.stdout.readline()
        limit.cancel()
        if not line:
            self.process.wait(CLOSE_SECONDS)
            self.log.seek(0)
            log = self.log.read().decode(errors="replace")[-2000:]
            raise RuntimeError(f"{self.host.title} ended, or was ended after {seconds} s:\n{log}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _signal(self, number: signal.Signals) -> None:
        """Send a signal to the host's processes."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    def close(self) -> None:
        """End the host: by the end of its input, or else by signals."""
        assert self.process.stdin
        self.process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(CLOSE_SECONDS)
        self._signal(signal.SIGKILL)
        self.process.wait()


@contextmanager
def start(host: Host, site: Path) -> Iterator[RunningHost]:
    """Run a host as long as the context lasts; `site` holds page.js and the packages.

    Raises `RuntimeError` that says what is missing.
    """
    with TemporaryFile() as log:
        process = subprocess.Popen(
            host.command(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env={**os.environ, **host.environment},
            start_new_session=True,
        )
        running = RunningHost(host, site, process, log)
        try:
            running.version = running._answer(START_SECONDS)["version"]
            yield running
        finally:
            running.close()
