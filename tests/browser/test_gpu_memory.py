"""The limits that the runtime requests from the GPU, and the buffers that it destroys.

In a real Chromium.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

import webmlc
from tests.against_onnxruntime import parse
from tests.browser.pages import Page, open_pages
from tests.packages import expected, scaled

BLANK = '<!doctype html><meta charset="utf-8"><link rel="icon" href="data:,"><title>blank</title>'
MIB = 1 << 20
CACHED = 16
"""The number of plans that a model caches (`MAX_GPU_PLANS`)."""

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


COUNTED = """async ({ sizes }) => {
  const counts = { createBuffer: 0, createBindGroup: 0, submit: 0, mapAsync: 0 };
  const count = (prototype, name) => {
    const method = prototype[name];
    prototype[name] = function (...args) {
      counts[name]++;
      return method.apply(this, args);
    };
  };
  count(GPUDevice.prototype, "createBuffer");
  count(GPUDevice.prototype, "createBindGroup");
  count(GPUQueue.prototype, "submit");
  count(GPUBuffer.prototype, "mapAsync");
  const { load } = await import("/scaled/webmlc.js");
  const model = await load("/scaled/", { device: "webgpu" });
  const start = (n) => {
    const data = Float32Array.from({ length: 4 * n }, (_, i) => Math.sin(i + n));
    return model.run({ x: { dtype: "float32", shape: [n, 4], data } });
  };
  const runs = [];
  for (const size of sizes) {
    for (const name in counts) counts[name] = 0;
    const outputs = await Promise.all([size].flat().map(start));
    const ends = outputs.map(({ y }) => [y.shape[0], Array.from(y.data.slice(-4))]);
    runs.push({ ends, counts: { ...counts } });
  }
  model.dispose();
  return runs;
}"""


def count_runs(folder: Path, sizes: list[int | list[int]]) -> list[dict[str, Any]]:
    """The allocations of a model for runs of these sizes. The results are compared first. A list
    of sizes is runs that overlap.
    """
    (folder / "index.html").write_text(BLANK)
    scaled(folder / "scaled")
    (report,) = open_pages({"/": folder}, Page("/", COUNTED, arg={"sizes": sizes}))
    assert report.errors == []
    assert [line for line in report.console if line.startswith(("error", "warning"))] == []
    for size, run in zip(sizes, report.value, strict=True):
        for n, (rows, end) in zip(np.ravel(size), run["ends"], strict=True):
            assert rows == n
            x = np.sin(np.arange(4 * n - 4, 4 * n) + n).astype(np.float32)
            np.testing.assert_allclose(end, expected(x), atol=1e-6)
    return list(report.value)


def test_a_hundred_runs_allocate_no_buffer_and_build_no_bind_group(tmp_path: Path) -> None:
    """Every length has room in the plan of the longest one."""
    first, *others = count_runs(tmp_path, [100, *range(1, 101)])
    assert first["counts"]["createBuffer"] > 0 and first["counts"]["createBindGroup"] == 2
    steady = {"createBuffer": 0, "createBindGroup": 0, "submit": 1, "mapAsync": 1}
    assert [run["counts"] for run in others] == [steady] * 100


def test_a_length_that_grows_gets_room(tmp_path: Path) -> None:
    """So that few of them are planned."""
    runs = count_runs(tmp_path, [*range(1, 41), 1, 40, 2])
    assert sum(run["counts"]["createBindGroup"] for run in runs) == 2 * 9


TWO_SIZES = """async (sizes) => {
  const alive = new Set();
  const { createBuffer } = GPUDevice.prototype;
  const { destroy } = GPUBuffer.prototype;
  GPUDevice.prototype.createBuffer = function (descriptor) {
    const buffer = createBuffer.call(this, descriptor);
    if (descriptor.usage & GPUBufferUsage.UNIFORM) alive.add(buffer);
    return buffer;
  };
  GPUBuffer.prototype.destroy = function () {
    alive.delete(this);
    destroy.call(this);
  };
  const { load } = await import("/model/webmlc.js");
  const model = await load("/model/", { device: "webgpu" });
  const tensor = (n) => ({ dtype: "float32", shape: [n], data: new Float32Array(n).fill(n) });
  const runs = [];
  for (const [a, b] of sizes) {
    const { y, z } = await model.run({ a: tensor(a), b: tensor(b) });
    runs.push([y.data.length, y.data.at(-1), z.data.length, z.data.at(-1), alive.size]);
  }
  model.dispose();
  return runs;
}"""


def test_plans_beyond_those_that_are_cached_free_their_uniforms(tmp_path: Path) -> None:
    """No plan has room for the sizes of another."""
    (tmp_path / "index.html").write_text(BLANK)
    model = parse(
        "g (float[n] a, float[m] b) => (float[n] y, float[m] z) { y = Exp(a) z = Neg(b) }"
    )
    webmlc.build(model, tmp_path / "model", target="webgpu")
    sizes = [(1 << (20 - i), 1 << i) for i in range(20)]
    (report,) = open_pages({"/": tmp_path}, Page("/", TWO_SIZES, arg=[*sizes, sizes[0]]))
    counts = [count for *_, count in report.value]
    each = counts[0]
    assert counts == [each * min(run + 1, CACHED) for run in range(len(sizes) + 1)]
    for (a, b), (rows, _, columns, z, _) in zip([*sizes, sizes[0]], report.value, strict=True):
        assert (rows, columns, z) == (a, b, -b)


def test_runs_that_overlap_have_staging_buffers_of_their_own(tmp_path: Path) -> None:
    """Three at a time, however many wait: one after the other, and then again."""
    many: list[int | list[int]] = [list(range(1, 11)), [7] * 10]
    _, first, again = count_runs(tmp_path, [20, *many])
    assert first["counts"]["createBuffer"] == 2
    assert again["counts"]["createBuffer"] == 0
    assert again["counts"]["mapAsync"] == again["counts"]["submit"] == 10
