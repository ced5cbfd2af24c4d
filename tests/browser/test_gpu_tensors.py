"""Values that stay on the GPU, and devices of the page, in a real Chromium."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.browser.pages import Page, open_pages
from tests.packages import begun_on_cpu, expected, fixed, mixed, scaled

BLANK = '<!doctype html><meta charset="utf-8"><link rel="icon" href="data:,"><title>blank</title>'
ROWS = 3
X = np.sin(np.arange(4 * ROWS)).astype(np.float32).reshape(ROWS, 4)

COMMON = """
  const { load } = await import("/scaled/webmlc.js");
  const newDevice = async () => (await navigator.gpu.requestAdapter()).requestDevice();
  const numbers = Float32Array.from(data);
  const onCpu = { dtype: "float32", shape: [data.length / 4, 4], data: numbers };
  const usage = GPUBufferUsage.STORAGE | GPUBufferUsage.COPY_SRC | GPUBufferUsage.COPY_DST;
  const upload = (device) => {
    const buffer = device.createBuffer({ size: numbers.byteLength, usage });
    device.queue.writeBuffer(buffer, 0, numbers);
    return { ...onCpu, data: buffer };
  };
  const read = async (tensor) => {
    const { dtype, shape, data } = await tensor.read();
    return [dtype, shape, Array.from(data)];
  };
  const failure = (promise) =>
    promise.then(
      () => null,
      ({ name, message }) => `${name}: ${message}`,
    );
"""

CHAIN = """async ({ data, url }) => {
  COMMON
  const device = await newDevice();
  const uncaptured = [];
  device.addEventListener("uncapturederror", ({ error }) => uncaptured.push(error.message));
  const first = await load(url, { device });
  const second = await load("/scaled/", { device: first.gpuDevice });
  const x = upload(device);
  const once = await first.run({ x }, { results: "gpu" });
  const twice = await second.run({ x: once.y }, { results: { y: "gpu" } });
  const onHost = await second.run({ x: once.y });
  const own = device.createBuffer({ size: 4 * data.length, usage });
  const received = await first.run({ x }, { results: { y: own } });
  const results = {
    once: await read(once.y),
    twice: await read(twice.y),
    onHost: [onHost.y.dtype, onHost.y.shape, Array.from(onHost.y.data)],
    received: [...(await read(received.y)), received.y.data === own],
    isShared: first.gpuDevice === device && second.gpuDevice === device,
    reason: first.deviceReason,
  };
  once.y.dispose();
  const small = device.createBuffer({ size: 8, usage });
  const errors = [
    await failure(first.run({ x: { ...x, shape: [99, 4] } })),
    await failure(first.run({ x: { ...x, dtype: "int32" } })),
    await failure(first.run({ x: onCpu }, { results: { y: small } })),
  ];
  first.dispose();
  const after = await second.run({ x }); // the page's device is alive
  const alive = Array.from(after.y.data);
  second.dispose();
  const cpu = await load("/scaled/", { device: "wasm" });
  errors.push(await failure(cpu.run({ x: onCpu }, { results: "gpu" })));
  errors.push(await failure(cpu.run({ x })));
  const none = cpu.gpuDevice;
  cpu.dispose();
  return { ...results, errors, alive, none, uncaptured };
}""".replace("COMMON", COMMON)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("site")
    (root / "index.html").write_text(BLANK)
    scaled(root / "scaled")
    mixed(root / "mixed")
    fixed(root / "fixed")
    begun_on_cpu(root / "begun_on_cpu")
    return root


def check(result: list[Any], array: np.ndarray[Any, Any]) -> None:
    assert result[:2] == ["float32", list(array.shape)]
    np.testing.assert_allclose(result[2], array.ravel(), atol=1e-6)


@pytest.mark.parametrize("package", ["scaled", "mixed"])
def test_results_stay_on_a_device_of_the_page_and_feed_the_next_model(
    site: Path, package: str
) -> None:
    """The program of `mixed` ends on the CPU, so that its result is uploaded."""
    arg = {"data": X.ravel().tolist(), "url": f"/{package}/"}
    (report,) = open_pages({"/": site}, Page("/", CHAIN, arg=arg))
    value = report.value
    once, twice = expected(X), expected(expected(X))
    check(value["once"], once)
    check(value["twice"], twice)
    check(value["onHost"], twice)
    check(value["received"], once)
    assert value["received"][3] is True
    assert value["isShared"] is True
    assert value["reason"] == "the GPUDevice of the page"
    np.testing.assert_allclose(value["alive"], once.ravel(), atol=1e-6)
    too_small, wrong_type, receiver, on_cpu, from_gpu = value["errors"]
    assert too_small.startswith('InputError: input "x" has a GPUBuffer of 48 bytes, expected 1584')
    assert wrong_type == 'InputError: input "x" has dtype int32, expected float32'
    assert receiver == (
        'InputError: the GPUBuffer in results for "y" has 8 bytes, but the output has 48'
    )
    needs = "InputError: a GPUBuffer needs a model on the GPU; this one runs on the CPU: requested"
    assert on_cpu == from_gpu == needs
    assert value["none"] is None
    assert value["uncaptured"] == []
    assert report.errors == []


FIXED = """async ({ data }) => {
  COMMON
  const device = await newDevice();
  const model = await load("/fixed/", { device });
  const x = upload(device);
  const { same, w } = await model.run({ x }, { results: "gpu" });
  const results = [same.data !== x.data, await read(same), await read(w)];
  model.dispose();
  return results;
}""".replace("COMMON", COMMON)


def test_an_input_that_is_an_output_is_copied(site: Path) -> None:
    (report,) = open_pages({"/": site}, Page("/", FIXED, arg={"data": X.ravel().tolist()}))
    is_copy, same, weight = report.value
    assert is_copy is True
    check(same, X)
    check(weight, np.array([[1, -2, 0.5, 3]], np.float32)[0])


CHANGED = """async ({ data }) => {
  COMMON
  const model = await load("/begun_on_cpu/", { device: await newDevice() });
  const run = model.run({ x: onCpu }, { results: "gpu" });
  numbers.fill(9);
  const result = await read((await run).y);
  model.dispose();
  return result;
}""".replace("COMMON", COMMON)


def test_inputs_may_change_once_a_run_has_begun(site: Path) -> None:
    (report,) = open_pages({"/": site}, Page("/", CHANGED, arg={"data": X.ravel().tolist()}))
    check(report.value, np.maximum(X, 0))
    assert report.errors == []


FAILING = """async ({ data }) => {
  COMMON
  const device = await newDevice();
  const uncaptured = [];
  device.addEventListener("uncapturederror", ({ error }) => uncaptured.push(error.message));
  const model = await load("/scaled/", { device });
  const foreign = upload(await newDevice());
  const invalid = await failure(model.run({ x: foreign }));
  const lost = await load("/scaled/", { device });
  const before = Array.from((await lost.run({ x: onCpu })).y.data);
  device.destroy();
  await device.lost;
  return {
    invalid,
    before,
    after: await failure(lost.run({ x: onCpu })),
    restored: await failure(lost.restore()),
    uncaptured,
  };
}""".replace("COMMON", COMMON)


def test_errors_on_a_device_of_the_page_belong_to_the_run(site: Path) -> None:
    (report,) = open_pages({"/": site}, Page("/", FAILING, arg={"data": X.ravel().tolist()}))
    value = report.value
    assert value["invalid"].startswith("InternalError: WebGPU: ")
    np.testing.assert_allclose(value["before"], expected(X).ravel(), atol=1e-6)
    for error in (value["after"], value["restored"]):
        assert error.startswith("DeviceLostError: the GPU device was lost")
        assert error.endswith("load the model with another device")
    assert value["uncaptured"] == []
