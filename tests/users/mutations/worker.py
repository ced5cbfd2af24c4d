"""Mutants run in a process of their own, so that a crash, a hang and a huge allocation are results.

    worker = Worker("onnx")
    worker.judge(seed=7, number=12, device="wasm")    # Outcome("right")

A process judges many mutants, because to import everything takes longer than a mutant. It ends when
a mutant breaks its limits, and another one starts.
"""

from __future__ import annotations

import ctypes
import gc
import multiprocessing
import os
import random
import resource
import sys
import tempfile
from multiprocessing.connection import Connection
from pathlib import Path

from tests.fuzz.waiting import answers_in_time
from tests.users.mutations.family import Mutant
from tests.users.mutations.outcome import Outcome, outcome_of_error
from webmlc.core.machine import Device

SECONDS = 60.0
"""The processor time of one mutant."""
BYTES = 2 << 30
"""The memory of a process."""
MUTANTS_PER_PROCESS = 500
Task = tuple[int, int, Device | None]
"""A seed, a number, and the device; without a device, only the references run."""
MESSAGE = "the process ended with exit code {}"


def draw(family: str, seed: int, number: int) -> Mutant:
    """The mutant of this number."""
    from tests.users.mutations.families import FAMILIES

    return FAMILIES[family].draw(random.Random(f"{family} {seed} {number}"))


class Worker:
    """A process that judges mutants of one family. It is started anew when it ends."""

    def __init__(self, family: str, seconds: float = SECONDS) -> None:
        self.family, self.seconds = family, seconds
        self._process: multiprocessing.process.BaseProcess | None = None
        self._connection: Connection | None = None
        self._count = 0

    def judge(self, seed: int, number: int, device: Device) -> Outcome:
        """Draw, build and run the mutant of this number. No package runs forever that the
        references run in time: a mutant that asks for 2**31 iterations is not judged.
        """
        outcome = self._ask((seed, number, device))
        if outcome.kind == "hang" and self._ask((seed, number, None)).kind == "hang":
            return Outcome("unjudged", f"the reference has no result after {self.seconds:.0f} s")
        return outcome

    def _ask(self, task: Task) -> Outcome:
        if self._process is None or self._count >= MUTANTS_PER_PROCESS:
            self._start()
        assert self._process is not None and self._connection is not None
        self._count += 1
        stage = "webmlc"
        try:
            self._connection.send(task)
            while True:
                poll = self._connection.poll
                if not answers_in_time(poll, self._process.pid, self.seconds):
                    self.close()
                    return _ended(stage, Outcome("hang", f"no result after {self.seconds:.0f} s"))
                answer = self._connection.recv()
                if isinstance(answer, Outcome):
                    if answer.kind == "memory":
                        self.close()  # native libraries do not survive a lack of memory
                    return answer
                stage = answer
        except (EOFError, BrokenPipeError, ConnectionResetError):
            self._process.join(5)
            message = MESSAGE.format(self._process.exitcode)
            self.close()
            return _ended(stage, Outcome("crash", message))

    def close(self) -> None:
        """End the process."""
        if self._process is not None and self._connection is not None:
            self._process.kill()
            self._process.join()
            self._connection.close()
        self._process = self._connection = None

    def _start(self) -> None:
        self.close()
        context = multiprocessing.get_context("spawn")
        self._connection, other = context.Pipe()
        self._process = context.Process(target=_serve, args=(other, self.family), daemon=True)
        self._process.start()
        other.close()
        self._connection.recv()  # ready: the time of starting belongs to no mutant
        self._count = 0


def _ended(stage: str, outcome: Outcome) -> Outcome:
    """The verdict on webmlc if the process ended in this stage."""
    if stage == "reference":
        return Outcome("unjudged", f"the reference: {outcome.message}")
    return outcome


def _serve(connection: Connection, family: str) -> None:
    from tests import reference_sessions
    from tests.users.mutations.families import FAMILIES

    reference_sessions.use_one_thread()
    _hide_output()
    gc.set_threshold(50_000, 20, 50)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_DATA, (BYTES, BYTES))
    trim = ctypes.CDLL(None).malloc_trim
    with tempfile.TemporaryDirectory(prefix="mutants-") as root:
        os.environ["WEBMLC_CACHE"] = str(Path(root, "cache"))
        connection.send("ready")
        while True:
            try:
                seed, number, device = connection.recv()
            except EOFError:
                return
            try:
                mutant, outcome = draw(family, seed, number), Outcome("right")
                with tempfile.TemporaryDirectory(dir=root) as folder:
                    if device is None:
                        FAMILIES[family].run_reference(mutant, Path(folder))
                    else:
                        judge = FAMILIES[family].judge
                        outcome = judge(mutant, Path(folder), device, connection.send)
            except BaseException as error:
                outcome = outcome_of_error(error)
            connection.send(outcome)
            trim(0)


def _hide_output() -> None:
    """Nobody reads what runtimes print about damaged models."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115
