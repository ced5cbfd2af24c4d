"""GPU paths that fail, in Python: `auto` runs on the CPU and says why, lost devices and traps are
restored, and larger limits are asked for where they are needed.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from tests.packages import TRAP_ROWS, WGSL, expected, parts, scaled, trapping
from webmlc.core.errors import AdapterError, DeviceLostError, InternalError, UserError
from webmlc.host import load as host
from webmlc.host.load import Model, load
from webmlc.host.webgpu import WebGpuExecutor
from webmlc.host.webgpu_adapter import DEFAULT_LIMITS, find_adapter, larger_limits
from webmlc.package.manifest import Resources
from webmlc.package.write import write_package

MIB = 1 << 20
BINDING, BUFFER = DEFAULT_LIMITS


def check(model: Model, rows: int) -> None:
    x = np.random.default_rng(rows).standard_normal((rows, 4)).astype(np.float32)
    np.testing.assert_allclose(model.run({"x": x})["y"], expected(x), atol=1e-6)


class HardwareAdapter:
    """This machine's adapter, as if it were hardware."""

    def __init__(self) -> None:
        self.info = {"adapter_type": "DiscreteGPU"}


def load_as_hardware(folder: Path) -> Model:
    with patch.object(host, "find_adapter", HardwareAdapter):
        return load(folder)


def test_auto_takes_the_cpu_where_the_gpu_fails(tmp_path: Path) -> None:
    write_package(
        tmp_path, replace(parts(), shaders={"gpu": WGSL.replace("scale_w[0];", "scale_w;")})
    )
    model = load_as_hardware(tmp_path)
    assert model.device == "wasm"
    assert "kernels.gpu.wgsl" in model.device_reason
    check(model, 3)
    with pytest.raises(InternalError, match=r"kernels\.gpu\.wgsl"):
        load(tmp_path, "webgpu")


def test_auto_takes_a_gpu_that_works(tmp_path: Path) -> None:
    scaled(tmp_path)
    model = load_as_hardware(tmp_path)
    assert (model.device, model.device_reason) == ("webgpu", "the GPU adapter is hardware")
    check(model, 3)


class FullAdapter:
    """An adapter whose driver has no memory for a device."""

    def __init__(self) -> None:
        self.limits, self.features = find_adapter().limits, find_adapter().features

    def request_device_sync(self, **needs: object) -> object:
        raise RuntimeError("Request device failed (3):\n  Not enough memory left.")


def test_an_adapter_without_memory_says_so(tmp_path: Path) -> None:
    scaled(tmp_path)
    with (
        patch("webmlc.host.webgpu_adapter.find_adapter", FullAdapter),
        pytest.raises(AdapterError, match=r"opened no device: .* Not enough memory left\."),
    ):
        check(load(tmp_path, "webgpu"), 3)


def test_a_lost_device_is_restored(tmp_path: Path) -> None:
    scaled(tmp_path)
    model = load(tmp_path, "webgpu")
    check(model, 3)
    executor = model._executors["webgpu"]
    assert isinstance(executor, WebGpuExecutor)
    executor.device.destroy()
    for rows in (3, 5):
        with pytest.raises(DeviceLostError, match=r"call model.restore\(\)"):
            check(model, rows)
    with (
        patch("webmlc.host.webgpu_adapter.find_adapter", side_effect=AdapterError("no GPU")),
        pytest.raises(AdapterError, match="no GPU"),
    ):
        model.restore()
    with pytest.raises(DeviceLostError):
        check(model, 3)
    model.restore()
    for rows in (3, 2000, 1):
        check(model, rows)
    restored = model._executors["webgpu"]
    model.restore()  # nothing is wrong
    assert model._executors["webgpu"] is restored
    model.dispose()
    with pytest.raises(UserError, match="disposed"):
        model.restore()


@pytest.mark.parametrize("threads", [1, 2])
def test_runs_after_a_trap_are_right(tmp_path: Path, threads: int) -> None:
    """With and without a call of `restore`."""
    trapping(tmp_path)
    model = load(tmp_path, "wasm", threads)
    for restores in (False, True):
        broken = model._executors["wasm"]
        with pytest.raises(InternalError, match="unreachable"):
            check(model, TRAP_ROWS)
        if restores:
            model.restore()
        for rows in (3, 2000):
            check(model, rows)
        assert model._executors["wasm"] is not broken
    model.dispose()


@pytest.mark.parametrize(
    ("largest", "arena", "limits"),
    [
        (128 * MIB, 256 * MIB, {}),
        (128 * MIB + 4, 256 * MIB, {BINDING: 128 * MIB + 16}),
        (100, 300 * MIB, {BUFFER: 300 * MIB}),
        (400 * MIB, 300 * MIB, {BINDING: 400 * MIB, BUFFER: 400 * MIB}),
        (None, None, {BINDING: 1 << 30, BUFFER: 2 << 30}),
    ],
)
def test_larger_limits_are_asked_for_where_the_program_needs_them(
    largest: int | None, arena: int | None, limits: dict[str, int]
) -> None:
    resources = Resources(0, {"webgpu": arena}, None, largest, 0, ())
    assert larger_limits(resources, {BINDING: 1 << 30, BUFFER: 2 << 30}) == limits


def test_a_device_has_the_limits_that_were_asked_for(tmp_path: Path) -> None:
    scaled(tmp_path)
    model = load(tmp_path, "webgpu")
    executor: Any = model._executors["webgpu"]
    for name in DEFAULT_LIMITS:  # its sizes depend on n
        assert executor.device.limits[name] == find_adapter().limits[name]
