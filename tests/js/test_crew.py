"""Threads that may not be worth having: what a run does without them, and when it asks for them."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parent / "run_crew.mjs"


@pytest.fixture(scope="module")
def result() -> dict[str, Any]:
    done = subprocess.run(
        ["node", str(SCRIPT)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_a_run_does_not_wait_for_helpers_that_do_not_come(result: dict[str, Any]) -> None:
    # run(first, last, thread, threads)
    assert result["absent"]["divisible"] == [[2, 3, 0, 1], [3, 4, 0, 1], [4, 5, 0, 1]]
    assert result["absent"]["whole"] == [[2, 5, 0, 1]]


def test_helpers_that_make_work_slower_are_called_ever_more_rarely(result: dict[str, Any]) -> None:
    together = [i for i, chosen in enumerate(result["choices"]["slower"]) if chosen]
    assert together == [0, 1, 2, 3, 5, 6, 11, 20, 37, 70]


def test_helpers_that_make_work_faster_are_always_called(result: dict[str, Any]) -> None:
    alone = [i for i, chosen in enumerate(result["choices"]["faster"]) if not chosen]
    assert alone == [4]


def test_helpers_are_left_alone_while_something_disturbs_them(result: dict[str, Any]) -> None:
    chosen = result["choices"]["disturbed"]
    assert sum(chosen[21:60]) <= 4
    assert all(chosen[-10:])
