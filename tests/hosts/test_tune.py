"""Browsers join a search by the URL of its page, and measure trials."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.tune.conftest import good_candidates, idle, matmul_task, trial_of
from tests.tune.measure.page_trials import check_engine, measure_in
from webmlc.core.machine import ADAPTERS
from webmlc.tune.measure.trial import Measurement


@pytest.mark.parametrize("engine", ["chromium", "firefox"])
def test_a_browser_measures_on_the_cpu(engine: str) -> None:
    check_engine(engine)


@pytest.fixture
def software_adapter(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("WEBMLC_WEBGPU_ADAPTER", "swiftshader")
    yield


@pytest.mark.usefixtures("software_adapter")
@pytest.mark.parametrize("adapter", ["gpu", "software-subgroups"])
def test_chromium_measures_on_the_gpu(adapter: str) -> None:
    task = matmul_task("webgpu", machine=ADAPTERS[adapter])
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
