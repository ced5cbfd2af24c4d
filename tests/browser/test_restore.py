"""Restore models in a real Chromium: after the loss of the GPU or of a worker, and after a trap."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.browser.pages import Page, open_pages
from tests.packages import TRAP_ROWS, expected, mixed, scaled, trapping

BLANK = '<!doctype html><meta charset="utf-8"><link rel="icon" href="data:,"><title>blank</title>'

COMMON = """
  const devices = [];
  const { requestDevice } = GPUAdapter.prototype;
  GPUAdapter.prototype.requestDevice = async function (...args) {
    devices.push(await requestDevice.apply(this, args));
    return devices.at(-1);
  };
  const info = { architecture: "", description: "" }; // of hardware
  Object.defineProperty(globalThis, "localStorage", { value: null }); // "auto" measures nothing
  Object.defineProperty(GPUAdapter.prototype, "info", { get: () => info });
  const workers = [];
  globalThis.Worker = class extends Worker {
    constructor(...args) {
      super(...args);
      workers.push(this);
    }
  };
  const { load } = await import("/scaled/webmlc.js");
  const start = (n) => {
    const data = Float32Array.from({ length: 4 * n }, (_, i) => Math.sin(i + n));
    return model.run({ x: { dtype: "float32", shape: [n, 4], data } });
  };
  const run = async (n) => Array.from((await start(n)).y.data);
  const rejection = (promise) =>
    promise.then(
      () => null,
      ({ name, message }) => ({ name, message }),
    );
"""

LOST = """async ({ url, device }) => {
  COMMON
  const model = await load(url, { device, threads: 2 });
  const before = await run(3);
  devices[0].destroy();
  await devices[0].lost;
  const errors = [await rejection(run(3)), await rejection(run(5))];
  await model.restore();
  const after = [await run(3), await run(2000), await run(1)];
  await model.restore(); // the model is intact
  const opened = devices.length;
  const interrupted = start(4);
  devices[1].destroy();
  const during = await rejection(interrupted);
  const { requestAdapter } = navigator.gpu;
  navigator.gpu.requestAdapter = async () => null;
  const refusal = await rejection(model.restore());
  const chosen = model.device;
  const reason = model.deviceReason;
  const without = refusal ? await rejection(run(3)) : await run(3);
  navigator.gpu.requestAdapter = requestAdapter;
  await model.restore();
  const last = await run(3);
  model.dispose();
  const disposed = await rejection(model.restore());
  const result = { before, errors, after, opened, during, refusal, chosen, reason };
  return { ...result, without, last, disposed };
}""".replace("COMMON", COMMON)


def rows(n: int) -> np.ndarray:
    return expected(np.sin(np.arange(4 * n) + n).astype(np.float32).reshape(n, 4)).ravel()


def compare(outputs: list[float], n: int) -> None:
    np.testing.assert_allclose(outputs, rows(n), atol=1e-6)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("site")
    (root / "index.html").write_text(BLANK)
    scaled(root / "scaled")
    mixed(root / "mixed")
    return root


def test_a_model_is_restored_on_another_device(site: Path) -> None:
    cases = [("scaled", "webgpu"), ("mixed", "webgpu"), ("scaled", "auto")]
    pages = [Page("/", LOST, arg={"url": f"/{name}", "device": device}) for name, device in cases]
    for (_, device), report in zip(cases, open_pages({"/": site}, *pages), strict=True):
        value = report.value
        compare(value["before"], 3)
        for error in (*value["errors"], value["during"]):
            assert error["name"] == "DeviceLostError"
            assert "await model.restore()" in error["message"]
        for outputs, n in zip(value["after"], (3, 2000, 1), strict=True):
            compare(outputs, n)
        assert value["opened"] == 2
        if device == "auto":  # without an adapter the model runs on the CPU
            assert value["refusal"] is None
            assert value["chosen"] == "wasm"
            assert "no GPU adapter" in value["reason"]
            compare(value["without"], 3)
        else:
            assert value["refusal"]["name"] == "AdapterError"
            assert value["chosen"] == "webgpu"
            assert value["without"]["name"] == "DeviceLostError"
        compare(value["last"], 3)
        assert value["disposed"]["name"] == "DisposedError"
        assert report.errors == []


CRASH = """export default async ({ page }) => {
  const run = () => page.evaluate(async () => {
    const x = { dtype: "float32", shape: [1, 4], data: new Float32Array([1, 2, 3, 4]) };
    return Array.from((await model.run({ x })).y.data);
  });
  await page.evaluate(async () => {
    const { load } = await import("/scaled/webmlc.js");
    globalThis.model = await load("/scaled/", { device: "webgpu" });
  });
  const before = await run();
  const browser = await page.context().browser().newBrowserCDPSession();
  await browser.send("Browser.crashGpuProcess");
  const error = await run().then(() => "", (error) => error.message);
  await page.evaluate(() => model.restore());
  return { before, error, after: await run() };
};"""


def test_a_model_is_restored_after_a_crash_of_the_gpu_process(site: Path) -> None:
    script = site / "crash.mjs"
    script.write_text(CRASH)
    (report,) = open_pages({"/": site}, Page("/", script=str(script)))
    assert "DeviceLostError" in report.value["error"]
    assert report.value["before"] == report.value["after"] == [1, 0, 1.5, 12]


DEAD = """async ({ threads }) => {
  COMMON
  const model = await load("/traps", { device: "wasm", threads });
  const trap = await rejection(run(TRAP_ROWS));
  const started = [workers.length];
  const outputs = [await run(3)]; // opens the program again
  started.push(workers.length);
  const count = workers.length;
  await model.restore(); // the model is intact
  const idle = workers.length - count;
  workers[started[0]].dispatchEvent(new ErrorEvent("error", { message: "out of memory" }));
  const dead = await rejection(run(3));
  const restored = model.restore();
  outputs.push(await run(3)); // after it
  await restored;
  const closing = model.restore().then(() => run(1));
  model.dispose();
  return { trap, dead, outputs, started, idle, closing: await rejection(closing) };
}""".replace("COMMON", COMMON).replace("TRAP_ROWS", str(TRAP_ROWS))


def test_a_model_is_restored_with_another_worker(site: Path) -> None:
    """After a trap, and after the worker died."""
    trapping(site / "traps")
    pages = [Page("/", DEAD, arg={"threads": threads}) for threads in (1, 2)]
    for report in open_pages({"/": site}, *pages):
        value = report.value
        assert value["trap"]["name"] == "InternalError"
        assert "unreachable" in value["trap"]["message"]
        assert value["dead"]["name"] == "InternalError"
        assert "out of memory" in value["dead"]["message"]
        before, after = value["started"]
        assert after > before
        assert value["idle"] == 0
        for outputs in value["outputs"]:
            compare(outputs, 3)
        assert value["closing"]["name"] == "DisposedError"
