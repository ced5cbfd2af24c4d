"""The page makes the runs that are sooner there, and finds out which they are."""

import json
import subprocess
from pathlib import Path

SCRIPT = Path(__file__).parent / "pace.mjs"
Times = list[tuple[float, float]]
TRIALS = 6
"""Runs of each window that tell how long they take, here and there."""


def choices(threads: int, times: Times) -> list[bool]:
    """Whether each run was made in the page; `times`: milliseconds there and in the worker."""
    job = json.dumps({"threads": threads, "times": times})
    done = subprocess.run(["node", str(SCRIPT), job], capture_output=True, text=True, check=True)
    found: list[bool] = json.loads(done.stdout)
    return found


def test_the_worker_makes_runs_that_threads_shorten() -> None:
    assert sum(choices(2, [(4.5, 3.0)] * 200)) == 3 * len(windows(200))


def test_the_page_makes_runs_that_threads_do_not_shorten() -> None:
    assert sum(choices(2, [(0.3, 0.7)] * 200)) == 200 - 3 * len(windows(200))


def test_the_page_never_makes_long_runs() -> None:
    assert not any(choices(1, [(6.0, 6.2)] * 100))


def test_one_disturbed_run_says_nothing() -> None:
    disturbed = [(9.0, 9.0) if i % 2 else (4.5, 3.0) for i in range(200)]
    assert sum(choices(2, disturbed)) <= 3 * len(windows(200))


def test_what_code_that_is_not_optimised_takes_is_soon_forgotten() -> None:
    """The worker's first runs are slow ones, the page's are not: it makes them for one window."""
    times = [(4.0, 4.9)] * 6 + [(4.0, 3.0)] * 100
    chosen = choices(2, times)
    assert all(chosen[3:8])
    assert sum(chosen[8:]) == 3 * (len(windows(len(times))) - 1)


def test_the_way_to_the_worker_and_back_is_no_work() -> None:
    """A run that takes longer there than the page may be blocked for can be short enough here."""
    assert any(choices(1, [(4.8, 5.6)] * 10))


def windows(runs: int) -> list[int]:
    """The runs of each window that `runs` reach the trials of."""
    found, size = [], 8
    while runs >= TRIALS:
        found.append(min(size, runs))
        runs -= size
        size = min(2 * size, 64)
    return found
