"""The judge and the devices, each in a process of its own: a crash or a hang is a result.

judge = Process(judge.serve, 10)
judge.ask("open", data)        # what the process answers, or a `Failure`
"""

from __future__ import annotations

import multiprocessing
import resource
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from tests.fuzz.waiting import answers_in_time

MOST_BYTES = 3 << 30
"""Memory of a process: a run that needs more is refused, and no other process's end."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A run that gave no outputs.

    `input`, `user`: an error of ours by its kind; `refused`: the judge's; `memory`: the judge has
    not enough; `internal`: a bug; `unsupported`: no package; `crash`, `hang`: the process.
    """

    kind: str
    message: str


class Process:
    """A process that answers requests, started anew when it dies or hangs."""

    def __init__(self, serve: Callable[..., None], seconds: float, *arguments: Any) -> None:
        self.serve, self.seconds, self.arguments = serve, seconds, arguments
        self.process: multiprocessing.process.BaseProcess | None = None
        self.connection: Connection | None = None

    def ask(self, *request: Any) -> Any:
        """The answer, or a `Failure`."""
        if self.process is None:
            self._start()
        assert self.process is not None and self.connection is not None
        try:
            self.connection.send(request)
            if not answers_in_time(self.connection.poll, self.process.pid, self.seconds):
                self.close()
                return Failure("hang", f"no result after {self.seconds:.0f} s")
            return self.connection.recv()
        except (EOFError, BrokenPipeError, ConnectionResetError):
            self.process.join(5)
            code = self.process.exitcode
            self.close()
            return Failure("crash", f"the process ended with exit code {code}")

    def close(self) -> None:
        """End the process."""
        if self.process is not None and self.connection is not None:
            self.process.kill()
            self.process.join()
            self.connection.close()
        self.process = self.connection = None

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, other = context.Pipe()
        arguments = (other, *self.arguments)
        self.process = context.Process(target=self.serve, args=arguments, daemon=True)
        self.process.start()
        other.close()
        self.connection.recv()  # ready: starting takes its time, which is no request's


def answer_requests(connection: Connection, handle: Callable[..., Any]) -> None:
    """Answer every request until the other end closes. Memory is limited from here on."""
    resource.setrlimit(resource.RLIMIT_DATA, (MOST_BYTES, MOST_BYTES))
    connection.send("ready")
    while True:
        try:
            request = connection.recv()
        except EOFError:
            return
        connection.send(handle(*request))
