"""Trials measured by JavaScript engines that join a search, as `webmlc tune` starts them."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest

from tests.tune.conftest import good_candidates, idle, matmul_task, trapping, trial_of
from webmlc.core.machine import Device
from webmlc.tune.browsers import start_browser
from webmlc.tune.listen import listen
from webmlc.tune.trial import Measurement, Trial

pytestmark = pytest.mark.xdist_group("browser")  # two browsers would slow each other down

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


@pytest.fixture(scope="module")
def wasm_trials() -> list[Trial]:
    return [wasm_trial(1), wasm_trial(2)]


@pytest.mark.parametrize("engine", ["node", "chromium", "firefox"])
def test_an_engine_measures_on_the_cpu(engine: str, wasm_trials: list[Trial]) -> None:
    """One trial follows the other in the same threads."""
    broken = replace(wasm_trials[0], module=b"not a module")
    queue = measure_in(engine, "wasm", *wasm_trials, broken, wasm_trials[1])
    one, two, none, again = queue.results
    for measurement in (one, two, again):
        check_wasm(measurement)
    assert isinstance(none, str)
    assert "magic" in none, "the engine's reason"
    assert queue.platform["engine"].startswith(f"{engine} ")
    assert {"simd128", "relaxed"} <= set(queue.platform["cpu"]["features"])
    assert queue.platform["cpu"]["cores"] > 0
    assert queue.platform["threads"] is True


@pytest.fixture
def software_adapter(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("WEBMLC_WEBGPU_ADAPTER", "swiftshader")
    yield


@pytest.mark.usefixtures("software_adapter")
def test_chromium_measures_on_the_gpu() -> None:
    task = matmul_task("webgpu")
    good, other = good_candidates(task, 2)
    trial = trial_of(task, [good, other, idle(good), good, other])
    trial = replace(
        trial,
        shaders=(*trial.shaders[:3], "fn broken(", trial.shaders[4]),
        workgroups=(*trial.workgroups[:4], (1 << 16, 1, 1)),
    )
    huge = replace(trial, buffers=(*trial.buffers, replace(trial.buffers[0], size=1 << 40)))
    queue = measure_in("chromium", "webgpu", trial, huge)
    measurement, refusal = queue.results
    assert isinstance(measurement, Measurement), measurement
    first, second, wrong, refused, too_many = measurement.reasons
    assert (first, second, wrong) == ("", "", "wrong: the bytes of the results differ")
    assert refused.startswith("failed: ")
    assert "Invalid" not in refused, "the compiler's own message"
    assert too_many.startswith("failed: ")
    assert [len(row) > 0 for row in measurement.milliseconds] == [True, True, False, False, False]
    assert isinstance(refusal, str)
    assert "maxStorageBufferBindingSize of 1099511627776 bytes" in refusal
    assert queue.platform["adapter"]["architecture"] == "swiftshader"
