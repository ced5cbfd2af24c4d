"""Trials that JavaScript engines measure: what they join, and what must come back."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tests.tune.conftest import QUICK, good_candidates, idle, matmul_task, trapping, trial_of
from webmlc.core.machine import Device
from webmlc.tune.measure.browsers import start_browser
from webmlc.tune.measure.listen import listen
from webmlc.tune.measure.trial import Measurement, Trial

SECONDS = 60.0
"""Seconds after which an engine counts as hung."""


class Queue:
    """A broker that hands some trials to the first worker, and keeps their results."""

    def __init__(self, device: Device, trials: list[Trial]) -> None:
        self.device: Device = device
        self.trials = trials
        self.platform: Mapping[str, Any] = {}
        self.results: list[Measurement | str] = []
        self.is_done = threading.Event()

    def join(self, platform: Mapping[str, Any]) -> str:
        self.platform = platform
        return "worker"

    def next(self, worker: str) -> tuple[int, Trial, str] | float | None:
        number = len(self.results)
        if number < len(self.trials):
            return number, self.trials[number], "matmul"
        self.is_done.set()
        return None

    def trial_of(self, worker: str) -> Trial | None:
        return self.trials[len(self.results)]

    def result(self, worker: str, id: int, measurement: Measurement | str) -> None:
        assert id == len(self.results)
        self.results.append(measurement)


def measure_in(engine: str, device: Device, *trials: Trial) -> Queue:
    """Start an engine, which joins and measures the trials."""
    queue = Queue(device, list(trials))
    with listen(queue) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            with start_browser(engine, server.url, device):
                assert queue.is_done.wait(SECONDS), (queue.platform, queue.results)
        finally:
            server.shutdown()
            thread.join()
    return queue


def wasm_trial(threads: int) -> Trial:
    """Two good candidates, a wrong one, one that traps, and a good one after it."""
    task = matmul_task()
    good, other, third = good_candidates(task, 3)
    return trial_of(task, [good, other, idle(good), trapping(good), third], threads)


def check_wasm(measurement: Measurement | str) -> None:
    """Check what was measured of `wasm_trial`."""
    assert isinstance(measurement, Measurement), measurement
    reasons = measurement.reasons
    assert reasons[:3] == ("", "", "wrong: the bytes of the results differ")
    assert reasons[3].startswith("failed: ")
    assert reasons[4] == ""
    assert [bool(row) for row in measurement.milliseconds] == [True, True, False, False, True]
    assert len(measurement.milliseconds[0]) == 3, "candidate 0 takes part in every round"


def check_engine(engine: str) -> None:
    """Let an engine measure trials of one and two threads, one after the other in the same
    process, and check what it says.
    """
    wasm_trials = [wasm_trial(1), wasm_trial(2)]
    broken = replace(wasm_trials[0], module=b"not a module")
    limited = replace(QUICK, rounds=50, fewest=2, limit_ms=0.0)
    short = replace(wasm_trials[0], protocol=limited)
    queue = measure_in(engine, "wasm", *wasm_trials, broken, wasm_trials[1], short)
    one, two, none, again, least = queue.results
    assert isinstance(least, Measurement)
    assert len(least.milliseconds[0]) == 2, "no round begins after the limit"
    for measurement in (one, two, again):
        check_wasm(measurement)
    assert isinstance(none, str)
    assert "magic" in none, "the engine's reason"
    assert queue.platform["engine"].startswith(f"{engine} ")
    assert {"simd128", "relaxed"} <= set(queue.platform["cpu"]["features"])
    assert queue.platform["cpu"]["cores"] > 0
    assert queue.platform["threads"] is True
