"""A run that an exception stops, wherever it does, leaves a model whose next run is right."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import webmlc
from tests import recurrent
from tests.decoders import expected, rows
from tests.users.concurrency.model import Case
from tests.users.concurrency.threads import Stopped, stopped_at
from webmlc.core.errors import InputError, UserError
from webmlc.host.load import Model

pytestmark = pytest.mark.xdist_group("concurrency")
HOST = tuple(
    f"host/{name}.py" for name in ("load", "session", "executor", "bind", "wasm", "webgpu")
)
"""The files of the host in which tests stop a run. `core/turns.py` is not one of them: a signal
cannot stop each of its lines, but a trace function can.
"""
LIBRARIES = ("wasmtime/_func.py", "wasmtime/_instance.py")
STRIDE = {"wasm": 1, "webgpu": 67}
"""Every how many lines tests stop a run. The GPU is opened again each time, which takes longer."""


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_run_can_stop_at_every_line(load: Callable[[Path], Model], classifier: Path) -> None:
    """Also while its memory is allocated, or while helper threads are at work."""
    model = load(classifier)
    small, large = Case(model, 0, 3), Case(model, 1, 700)
    for first, second in ((small, large), (large, small)):
        line, step = 0, STRIDE[model.device]
        model.dispose()
        model = load(classifier)
        while stopped_at(line, HOST + LIBRARIES, lambda: first.is_right(model)):  # noqa: B023
            assert second.is_right(model), f"the run after one that stopped at line {line}"
            line += step
        assert line > 100


def test_a_session_survives_a_run_that_stopped(
    load: Callable[[Path], Model], decoder: Path
) -> None:
    """The run counts, or it does not; a session on the GPU is lost."""
    model = load(decoder)
    first, second = rows(3), rows(2)
    past = np.zeros((1, 0, 4), np.float32)
    _, after_first = expected(first, past)
    y, _ = expected(second, after_first)
    line, survivals = 0, 0
    while True:
        session = model.session(capacity=5)
        session.run(first)
        if not stopped_at(line, HOST, lambda: session.run(second)):  # noqa: B023
            break
        try:
            session.truncate(3)
            np.testing.assert_allclose(session.run(second)["y"], y, rtol=1e-4, atol=1e-5)
            survivals += 1
        except InputError as error:
            assert model.device == "webgpu" and "lost with its device" in str(error)
        session.dispose()
        line += 3 * STRIDE[model.device]
    assert survivals or model.device == "webgpu"


def test_states_that_a_stopped_run_replaced_are_not_used(tmp_path: Path) -> None:
    """The session says so until it is reset, or the run has replaced all states, or none."""
    webmlc.build(recurrent.RECURRENT, tmp_path, target="wasm")
    model = webmlc.load(tmp_path, "wasm")
    first, second = recurrent.inputs(2), recurrent.inputs(2)
    _, states = recurrent.expected(first, recurrent.zeros(2))
    y, states = recurrent.expected(second, states)
    y_again, _ = recurrent.expected(second, states)
    line, torn = 0, 0
    while True:
        session = model.session()
        session.run(first)
        if not stopped_at(line, HOST, lambda: session.run(second)):  # noqa: B023
            break
        try:
            actual = session.run(second)["y"]
        except InputError as error:
            assert "did not end" in str(error)
            torn += 1
            session.reset()
            session.run(first)
            actual = session.run(second)["y"]
        is_replaced = np.allclose(actual, y_again, **recurrent.TOLERANCE)
        assert is_replaced or np.allclose(actual, y, **recurrent.TOLERANCE)
        session.dispose()
        line += 1
    assert torn
    model.dispose()


@pytest.fixture
def alarm() -> Iterator[Callable[[Callable[[], None], float], None]]:
    """A function that lets a signal handler call another function after some seconds, and again
    every half second: Python ignores exceptions of handlers that run within a finaliser.
    """
    before = signal.getsignal(signal.SIGALRM)

    def start(function: Callable[[], None], seconds: float) -> None:
        signal.signal(signal.SIGALRM, lambda *_: function())
        signal.setitimer(signal.ITIMER_REAL, seconds, 0.5)

    yield start
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def stop() -> None:
    raise Stopped


Alarm = Callable[[Callable[[], None], float], None]


def test_signals_stop_runs(load: Callable[[Path], Model], classifier: Path, alarm: Alarm) -> None:
    model = load(classifier)
    case, other = Case(model, 0, 3000), Case(model, 1, 5)
    for number in range(12):
        try:
            alarm(stop, 0.001 + 0.003 * number)
            while True:
                case.is_right(model)
        except Stopped:
            signal.setitimer(signal.ITIMER_REAL, 0)
        assert other.is_right(model)
        assert case.is_right(model)


def test_a_signal_handler_cannot_run_a_model_that_runs(
    load: Callable[[Path], Model], classifier: Path, alarm: Alarm
) -> None:
    """It gets an error, or runs between two runs; the run goes on."""
    model = load(classifier)
    case, other = Case(model, 0, 3000), Case(model, 1, 5)
    results: list[str] = []

    def run_too() -> None:
        try:
            results.append(str(other.is_right(model)))
        except UserError as error:
            results.append(str(error))

    for number in range(8):
        alarm(run_too, 0.002 + 0.002 * number)
        while len(results) <= number:
            assert case.is_right(model)
    assert all(r == "True" or "in the middle of a run" in r for r in results)


def exit_code(child: int, seconds: float = 60.0) -> int:
    """Wait for a process, and end it if it hangs."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        process, status = os.waitpid(child, os.WNOHANG)
        if process:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    raise AssertionError("the forked process hangs")


RIGHT, REFUSED, WRONG = 10, 11, 12
"""Exit codes of forked processes."""


def in_child(function: Callable[[], bool]) -> int:
    """The exit code of a forked process that calls a function."""
    child = os.fork()
    if child == 0:
        code = WRONG
        try:
            code = RIGHT if function() else WRONG
        except UserError as error:
            code = REFUSED if "forked" in str(error) else WRONG
        finally:
            os._exit(code)
    return exit_code(child)


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_process_runs_or_refuses(load: Callable[[Path], Model], classifier: Path) -> None:
    """Also if other threads run the model at that moment."""
    model = load(classifier)
    case = Case(model, 0, 300)
    ends = threading.Event()

    def run() -> None:
        while not ends.is_set():
            assert case.is_right(model)

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        allowed = {RIGHT} if model.device == "wasm" else {REFUSED}
        for _ in range(3):
            assert in_child(lambda: case.is_right(model)) in allowed

        def load_again() -> bool:
            again = webmlc.load(classifier, model.device, model.threads)
            return case.is_right(again)

        assert in_child(load_again) in allowed

        def dispose() -> bool:
            model.dispose()
            return True

        assert in_child(dispose) == RIGHT
    finally:
        ends.set()
        for thread in threads:
            thread.join(60)
    assert case.is_right(model)


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_session_is_lost_in_a_forked_process(decoder: Path) -> None:
    model = webmlc.load(decoder, "wasm", threads=2)
    session = model.session(capacity=8)
    session.run(rows(2))

    def go_on() -> bool:
        with pytest.raises(InputError, match="lost with its device"):
            session.run(rows(1))
        feeds = rows(2)
        y, _ = expected(feeds, np.zeros((1, 0, 4), np.float32))
        return np.allclose(model.session(capacity=8).run(feeds)["y"], y, rtol=1e-4, atol=1e-5)

    assert in_child(go_on) == RIGHT
    assert session.run(rows(1))["y"].shape == (1, 4)
    model.dispose()
