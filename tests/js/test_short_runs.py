"""The page makes the runs that are sooner there, and finds out which they are."""

import json
import subprocess
from collections import Counter
from pathlib import Path

SCRIPT = Path(__file__).parent / "pace.mjs"
Times = dict[str, float]
SAMPLES = 3
"""Runs that tell how long they take one way, in each window."""


def run(there: float, alone: float, together: float = 0) -> Times:
    """Milliseconds of a run that the worker makes, the page, or the page with the helpers."""
    return {"there": there, "alone": alone, "together": together}


def choices(threads: int, times: list[Times], limit: float = 5) -> list[str]:
    """Who made each run, where one may block the page for `limit` milliseconds."""
    job = json.dumps({"threads": threads, "limit": limit, "times": times})
    done = subprocess.run(["node", str(SCRIPT), job], capture_output=True, text=True, check=True)
    found: list[str] = json.loads(done.stdout)
    return found


def test_the_page_leads_the_helpers_in_runs_that_they_shorten() -> None:
    made = Counter(choices(2, [run(3.4, 4.5, 3.0)] * 200))
    assert made == {"there": SAMPLES * len(windows(200)), "together": made["together"]}


def test_the_page_is_alone_where_helpers_come_too_late() -> None:
    made = Counter(choices(2, [run(0.7, 0.3, 0.4)] * 200))
    assert made["together"] <= SAMPLES * len(windows(200))
    assert made["alone"] >= 200 - 2 * SAMPLES * len(windows(200))


def test_helpers_are_kept_where_the_page_alone_takes_longer() -> None:
    made = Counter(choices(2, [run(1.2, 1.3, 0.8)] * 200))
    assert made["alone"] <= SAMPLES * len(windows(200))
    assert made["together"] >= 200 - 2 * SAMPLES * len(windows(200))


def test_the_page_never_makes_long_runs() -> None:
    assert set(choices(1, [run(6.2, 6.0)] * 100)) == {"there"}
    assert set(choices(2, [run(6.2, 9.0, 5.8)] * 100)) == {"there"}


def test_the_limit_decides_which_runs_are_long() -> None:
    times = [run(3.4, 4.5, 3.0)] * 100
    for limit, way in ((10, "together"), (2, "there")):
        assert choices(2, times, limit)[SAMPLES] == way
    assert "alone" in choices(1, [run(40, 30)] * 100, limit=50)
    assert set(choices(1, [run(0.3, 0.1)] * 100, limit=0)) == {"there"}


def test_a_run_that_proves_long_is_the_workers() -> None:
    made = Counter(choices(2, [run(5.6, 9.0, 5.2)] * 200))
    assert made == {"there": made["there"], "together": SAMPLES * len(windows(200))}


def test_one_disturbed_run_says_nothing() -> None:
    disturbed = [run(9.0, 9.0) if i % 2 else run(4.5, 3.0) for i in range(200)]
    assert Counter(choices(1, disturbed))["there"] == SAMPLES * len(windows(200))
    disturbed = [run(9.0, 9.0, 9.0) if i % 2 else run(4.5, 4.5, 3.0) for i in range(200)]
    assert Counter(choices(2, disturbed))["there"] == SAMPLES * len(windows(200))


def test_what_code_that_is_not_optimised_takes_is_soon_forgotten() -> None:
    """The worker's first runs are too long for the page to try one; it does once they are not."""
    times = [run(7.0, 4.0)] * 6 + [run(4.9, 4.0)] * 100
    made = choices(1, times)
    assert made[:12] == ["there"] * 7 + ["alone"] * 5
    assert Counter(made[12:])["there"] == SAMPLES * (len(windows(len(times))) - 1)


def test_the_way_to_the_worker_and_back_is_no_work() -> None:
    """A run that takes longer there than the page may be blocked for can be short enough here."""
    assert "alone" in choices(1, [run(5.6, 4.8)] * 10)


def windows(runs: int) -> list[int]:
    """The runs of each window that `runs` reach the samples of."""
    found, size = [], 12
    while runs > 0:
        found.append(min(size, runs))
        runs -= size
        size = min(2 * size, 64)
    return found
