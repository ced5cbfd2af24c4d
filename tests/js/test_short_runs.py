"""The page executes the runs that are faster there, and measures which ones are."""

from collections import Counter
from pathlib import Path

from tests.node import script

SCRIPT = Path(__file__).parent / "pace.mjs"
Times = dict[str, float]
SAMPLES = 3
"""The runs that are timed one way, in each window."""


def run(there: float, alone: float, together: float = 0) -> Times:
    """Milliseconds of a run by the worker, by the page, or by the page with the helpers."""
    return {"there": there, "alone": alone, "together": together}


def choices(threads: int, times: list[Times], limit: float = 5) -> list[str]:
    """The way of each run, if a run may block the page for `limit` milliseconds."""
    ways: list[str] = script(SCRIPT).ask({"threads": threads, "limit": limit, "times": times})
    return ways


def test_the_page_leads_the_helpers_in_runs_that_they_shorten() -> None:
    ways = Counter(choices(2, [run(3.4, 4.5, 3.0)] * 200))
    assert ways == {"there": SAMPLES * len(windows(200)), "together": ways["together"]}


def test_the_page_is_alone_if_helpers_start_too_late() -> None:
    ways = Counter(choices(2, [run(0.7, 0.3, 0.4)] * 200))
    assert ways["together"] <= SAMPLES * len(windows(200))
    assert ways["alone"] >= 200 - 2 * SAMPLES * len(windows(200))


def test_helpers_take_part_if_the_page_alone_takes_longer() -> None:
    ways = Counter(choices(2, [run(1.2, 1.3, 0.8)] * 200))
    assert ways["alone"] <= SAMPLES * len(windows(200))
    assert ways["together"] >= 200 - 2 * SAMPLES * len(windows(200))


def test_the_page_never_executes_long_runs() -> None:
    assert set(choices(1, [run(6.2, 6.0)] * 100)) == {"there"}
    assert set(choices(2, [run(6.2, 9.0, 5.8)] * 100)) == {"there"}


def test_the_limit_decides_which_runs_are_long() -> None:
    times = [run(3.4, 4.5, 3.0)] * 100
    for limit, way in ((10, "together"), (2, "there")):
        assert choices(2, times, limit)[SAMPLES] == way
    assert "alone" in choices(1, [run(40, 30)] * 100, limit=50)
    assert set(choices(1, [run(0.3, 0.1)] * 100, limit=0)) == {"there"}


def test_a_run_that_proves_long_goes_to_the_worker() -> None:
    ways = Counter(choices(2, [run(5.6, 9.0, 5.2)] * 200))
    assert ways == {"there": ways["there"], "together": SAMPLES * len(windows(200))}


def test_one_disturbed_run_changes_nothing() -> None:
    disturbed = [run(9.0, 9.0) if i % 2 else run(4.5, 3.0) for i in range(200)]
    assert Counter(choices(1, disturbed))["there"] == SAMPLES * len(windows(200))
    disturbed = [run(9.0, 9.0, 9.0) if i % 2 else run(4.5, 4.5, 3.0) for i in range(200)]
    assert Counter(choices(2, disturbed))["there"] == SAMPLES * len(windows(200))


def test_times_of_unoptimised_code_are_soon_forgotten() -> None:
    """The worker's first runs are too long for the page. It tries one once they are shorter."""
    times = [run(7.0, 4.0)] * 6 + [run(4.9, 4.0)] * 100
    ways = choices(1, times)
    assert ways[:12] == ["there"] * 7 + ["alone"] * 5
    assert Counter(ways[12:])["there"] == SAMPLES * (len(windows(len(times))) - 1)


def test_waking_the_worker_does_not_count_as_work() -> None:
    """A run that takes longer than the limit in the worker can be short enough in the page."""
    assert "alone" in choices(1, [run(5.6, 4.8)] * 10)


def windows(runs: int) -> list[int]:
    """The lengths of the windows that `runs` runs start."""
    lengths, size = [], 12
    while runs > 0:
        lengths.append(min(size, runs))
        runs -= size
        size = min(2 * size, 64)
    return lengths
