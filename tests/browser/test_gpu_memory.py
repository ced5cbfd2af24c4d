"""The limits that the runtime requests from the GPU, and the buffers that it destroys.

In a real Chromium.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from tests.browser.pages import Page, open_pages
from tests.packages import expected, scaled

BLANK = '<!doctype html><meta charset="utf-8"><link rel="icon" href="data:,"><title>blank</title>'
MIB = 1 << 20
CACHED = 16
"""The number of bindings of symbols that a model caches (`MAX_BINDINGS`)."""

LIMITS = """async (url) => {
  const { requestDevice } = GPUAdapter.prototype;
  let requested, offered, device;
  GPUAdapter.prototype.requestDevice = async function (descriptor) {
    [requested, offered] = [descriptor.requiredLimits, this.limits];
    return (device = await requestDevice.call(this, descriptor));
  };
  const { load } = await import(`${url}/webmlc.js`);
  (await load(url, { device: "webgpu" })).dispose();
  const pick = ({ maxBufferSize, maxStorageBufferBindingSize }) =>
    ({ maxBufferSize, maxStorageBufferBindingSize });
  return { requested, offered: pick(offered), granted: pick(device.limits) };
}"""


def write_stating(folder: Path, largest_binding: int, arena: int) -> None:
    """Write a package whose webgpu program states these bytes."""
    scaled(folder)
    file = folder / "manifest.json"
    manifest = json.loads(file.read_text())
    resources = {"largest_binding": largest_binding, "arena": {"webgpu": arena}}
    manifest["programs"]["webgpu"]["resources"] |= resources
    file.write_text(json.dumps(manifest))


def test_larger_limits_are_requested_if_the_program_needs_them(tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text(BLANK)
    write_stating(tmp_path / "small", 128 * MIB, 256 * MIB)
    write_stating(tmp_path / "binding", 128 * MIB + 4, 256 * MIB)
    write_stating(tmp_path / "arena", 100, 300 * MIB)
    write_stating(tmp_path / "both", 400 * MIB, 300 * MIB)
    scaled(tmp_path / "symbolic")
    requested: dict[str, dict[str, Any]] = {
        "small": {},
        "binding": {"maxStorageBufferBindingSize": 128 * MIB + 16},
        "arena": {"maxBufferSize": 300 * MIB},
        "both": {"maxStorageBufferBindingSize": 400 * MIB, "maxBufferSize": 400 * MIB},
    }
    pages = [Page("/", LIMITS, arg=f"/{name}") for name in (*requested, "symbolic")]
    *reports, symbolic = open_pages({"/": tmp_path}, *pages)
    defaults = {"maxBufferSize": 256 * MIB, "maxStorageBufferBindingSize": 128 * MIB}
    for report, limits in zip(reports, requested.values(), strict=True):
        assert report.value["requested"] == limits
        assert report.value["granted"] == defaults | limits
    assert symbolic.value["granted"] == symbolic.value["offered"]
    assert symbolic.value["offered"]["maxBufferSize"] > 256 * MIB


UNIFORMS = """async ({ sizes }) => {
  const { createBuffer } = GPUDevice.prototype;
  const { destroy } = GPUBuffer.prototype;
  const alive = new Set();
  GPUDevice.prototype.createBuffer = function (descriptor) {
    const buffer = createBuffer.call(this, descriptor);
    if (descriptor.usage & GPUBufferUsage.UNIFORM) alive.add(buffer);
    return buffer;
  };
  GPUBuffer.prototype.destroy = function () {
    alive.delete(this);
    destroy.call(this);
  };
  const { load } = await import("/scaled/webmlc.js");
  const model = await load("/scaled/", { device: "webgpu" });
  const outputs = [];
  const counts = [];
  for (const n of sizes) {
    const data = Float32Array.from({ length: 4 * n }, (_, i) => Math.sin(i + n));
    const { y } = await model.run({ x: { dtype: "float32", shape: [n, 4], data } });
    outputs.push(Array.from(y.data));
    counts.push(alive.size);
  }
  model.dispose();
  return { outputs, counts };
}"""


def test_uniform_buffers_of_dropped_bindings_are_destroyed(tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text(BLANK)
    scaled(tmp_path / "scaled")
    sizes = [*range(1, 41), 1, 40, 2]  # two dropped bindings again, then a cached one
    (report,) = open_pages({"/": tmp_path}, Page("/", UNIFORMS, arg={"sizes": sizes}))
    for n, outputs in zip(sizes, report.value["outputs"], strict=True):
        x = np.sin(np.arange(4 * n) + n).astype(np.float32).reshape(n, 4)
        np.testing.assert_allclose(np.reshape(outputs, (n, 4)), expected(x), atol=1e-6)
    assert report.value["counts"] == [min(run + 1, CACHED) for run in range(len(sizes))]
    assert report.errors == []
    assert [line for line in report.console if line.startswith(("error", "warning"))] == []
