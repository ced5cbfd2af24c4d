"""Engines of this machine that the tuner starts and ends."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from webmlc.core.errors import UserError
from webmlc.tune.measure.browsers import is_installed, start_browser

SECONDS = 10.0
"""Seconds in which processes start and end."""
ENGINE = "#!/bin/sh\nsleep 60 &\necho $! > {folder}/child\nwait\n"
"""An engine that starts a process."""
STARTER = """
import sys, time
from webmlc.tune.measure.browsers import start_browser
browser = start_browser("node", "http://127.0.0.1/", "wasm")
time.sleep(60)
"""


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file in which a program that stands for Node writes the id of its child."""
    program = tmp_path / "engine"
    program.write_text(ENGINE.format(folder=tmp_path))
    program.chmod(0o755)
    monkeypatch.setenv("WEBMLC_NODE", str(program))
    return tmp_path / "child"


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def runs(process: int) -> bool:
    """True if a process exists and is no zombie."""
    status = subprocess.run(["ps", "-o", "stat=", "-p", str(process)], capture_output=True)
    return status.stdout.strip()[:1] not in (b"", b"Z")


def child_of(engine: Path) -> int:
    wait_until(lambda: engine.exists() and engine.read_text().endswith("\n"))
    return int(engine.read_text())


def test_stopping_ends_all_processes(engine: Path) -> None:
    with start_browser("node", "http://127.0.0.1/", "wasm") as browser:
        child = child_of(engine)
        assert runs(child)
        assert not browser.has_ended()
    assert browser.has_ended()
    wait_until(lambda: not runs(child))


def test_an_engine_that_ends_has_ended(engine: Path) -> None:
    with start_browser("node", "http://127.0.0.1/", "wasm") as browser:
        os.kill(child_of(engine), signal.SIGKILL)
        wait_until(browser.has_ended)


def test_an_engine_ends_with_the_process_that_started_it(engine: Path) -> None:
    folder = {"TMPDIR": str(engine.parent)}  # a process that is killed leaves the profile there
    starter = subprocess.Popen([sys.executable, "-c", STARTER], env=os.environ | folder)
    try:
        child = child_of(engine)
    finally:
        starter.kill()
        starter.wait()
    wait_until(lambda: not runs(child))


def test_a_missing_engine_is_a_user_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEBMLC_FIREFOX", "/absent/firefox")
    assert not is_installed("firefox")
    message = "firefox is not installed; install Firefox, or set WEBMLC_FIREFOX to its program"
    with pytest.raises(UserError, match=re.escape(message)):
        start_browser("firefox", "http://127.0.0.1/", "wasm")
