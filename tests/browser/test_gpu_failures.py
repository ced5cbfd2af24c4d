"""Failures of the GPU in a real Chromium.

With `auto` the model runs on the CPU and says why. With `webgpu` a typed error names the cause.

The pages see SwiftShader's adapter as hardware, because `auto` would not use it otherwise. The
fault is in the package, or in the answers of the browser's WebGPU.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.browser.pages import Page, PageReport, open_pages
from tests.packages import WGSL, W, mixed, parts, scaled
from webmlc.package.manifest import Buffer
from webmlc.package.write import write_package

BLANK = '<!doctype html><meta charset="utf-8"><link rel="icon" href="data:,"><title>blank</title>'

LOAD = """async ({ url, devices: names, fault }) => {
  const answer = (name, value) =>
    Object.defineProperty(GPUAdapter.prototype, name, { get: () => value });
  answer("info", { architecture: "", description: "" });
  // Without a storage, nothing is measured.
  Object.defineProperty(globalThis, "localStorage", { value: null });
  const fail = (type, message) => () => {
    throw new type(message);
  };
  const reject = (message) => async () => fail(TypeError, message)();
  const adapters = GPUAdapter.prototype;
  const devices = GPUDevice.prototype;
  const { requestDevice } = adapters;
  const faults = {
    none() {},
    "adapter throws": () => (navigator.gpu.requestAdapter = fail(TypeError, "no GPU today")),
    "adapter rejects": () => (navigator.gpu.requestAdapter = reject("no GPU today")),
    "no adapter": () => (navigator.gpu.requestAdapter = async () => null),
    "no WebGPU": () => Object.defineProperty(navigator, "gpu", { value: undefined }),
    "small limits"() {
      answer("limits", { maxBufferSize: 64, maxStorageBufferBindingSize: 64 });
    },
    "no device": () => (adapters.requestDevice = reject("no device")),
    "lost device"() {
      adapters.requestDevice = async function (...args) {
        const device = await requestDevice.apply(this, args);
        device.destroy();
        return device;
      };
    },
    "no memory": () => (devices.createBuffer = fail(RangeError, "allocation failed")),
    "no layout": () => (devices.createBindGroupLayout = fail(TypeError, "no layout")),
  };
  faults[fault]();
  const { load, WebmlcError } = await import(`${url}/webmlc.js`);
  const run = async (device) => {
    let last;
    const onProgress = (progress) => (last = progress);
    const model = await load(url, { device, threads: 2, onProgress });
    const data = new Float32Array([1, 2, 3, 4]);
    const { y } = await model.run({ x: { dtype: "float32", shape: [1, 4], data } });
    const { device: chosen, deviceReason, variant, resources } = model;
    model.dispose();
    const { download } = resources;
    return { chosen, deviceReason, variant, y: Array.from(y.data), last, download };
  };
  const results = {};
  for (const name of names) {
    results[name] = await run(name).catch((error) => {
      return { name: error.name, typed: error instanceof WebmlcError, message: error.message };
    });
  }
  return results;
}"""


def shaders(change: Callable[[str], str]) -> Callable[[Path], None]:
    """Write a package with changed shaders, and with their hashes."""

    def write(folder: Path) -> None:
        assert change(WGSL) != WGSL
        write_package(folder, replace(parts(), shaders={"gpu": change(WGSL)}))

    return write


def alter_shaders(folder: Path) -> None:
    """Write a package whose shaders do not match their hash in the manifest."""
    scaled(folder)
    file = folder / "kernels.gpu.wgsl.deflate"
    file.write_bytes(file.read_bytes()[::-1])


def without(file: str) -> Callable[[Path], None]:
    """Write a package that lacks a file."""

    def write(folder: Path) -> None:
        scaled(folder)
        (folder / file).unlink()

    return write


def needs(**resources: Any) -> Callable[[Path], None]:
    """Write a package whose webgpu program states these resources."""

    def write(folder: Path) -> None:
        scaled(folder)
        file = folder / "manifest.json"
        manifest = json.loads(file.read_text())
        manifest["programs"]["webgpu"]["resources"] |= resources
        file.write_text(json.dumps(manifest))

    return write


@dataclass(frozen=True, slots=True)
class Case:
    """A package, the fault of the page that loads it, and the error: its name and message parts."""

    write: Callable[[Path], Any]
    fault: str
    error: str
    parts: tuple[str, ...]


CASES = {
    "a_literal_that_tint_rejects": Case(
        shaders(lambda s: s.replace("vec4<f32>(0.0)", "vec4<f32>(-3.4028235e+38f)")),
        "none",
        "InternalError",
        ("kernel relu", "cannot be represented as 'f32'", "-3.4028235e+38f"),
    ),
    "no_entry_point": Case(
        shaders(lambda s: s.replace("fn relu(", "fn other(")),
        "none",
        "InternalError",
        ("kernel relu", "Entry point"),
    ),
    "a_type_error": Case(
        shaders(lambda s: s.replace("scale_w[0];", "scale_w;")),
        "none",
        "InternalError",
        ("kernel scale", "scale_t[id.x] = scale_x[id.x] * scale_w;"),
    ),
    "altered_shaders": Case(alter_shaders, "none", "PackageError", ("kernels.gpu.wgsl", "SHA-256")),
    "no_shaders": Case(
        without("kernels.gpu.wgsl.deflate"), "none", "PackageError", ("kernels.gpu.wgsl", "404")
    ),
    "no_runtime": Case(without("webgpu_device.js"), "none", "InternalError", ("webgpu_device.js",)),
    "a_feature": Case(
        needs(features=["shader-f16"]), "none", "AdapterError", ("lacks shader-f16",)
    ),
    "a_binding_too_large": Case(
        needs(largest_binding=2**40),
        "none",
        "AdapterError",
        ("maxStorageBufferBindingSize", str(2**40)),
    ),
    "an_arena_too_large": Case(
        needs(largest_binding=64, arena={"webgpu": 2**40}),
        "none",
        "AdapterError",
        ("maxBufferSize", str(2**40)),
    ),
    "small_limits": Case(
        needs(largest_binding=256, arena={"webgpu": 1024}),
        "small limits",
        "AdapterError",
        ("maxStorageBufferBindingSize of 256 bytes", "offers 64"),
    ),
    "adapter_throws": Case(scaled, "adapter throws", "AdapterError", ("no GPU today",)),
    "adapter_rejects": Case(scaled, "adapter rejects", "AdapterError", ("no GPU today",)),
    "no_adapter": Case(scaled, "no adapter", "AdapterError", ("no GPU adapter",)),
    "no_webgpu": Case(scaled, "no WebGPU", "AdapterError", ("no WebGPU",)),
    "no_device": Case(scaled, "no device", "AdapterError", ("no device",)),
    "lost_device": Case(scaled, "lost device", "DeviceLostError", ("model.restore()",)),
    "no_memory": Case(scaled, "no memory", "AdapterError", ("weights", "allocation failed")),
    "no_layout": Case(scaled, "no layout", "InternalError", ("no layout",)),
    "cpu_steps": Case(mixed, "lost device", "DeviceLostError", ("model.restore()",)),
}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("site")
    (root / "index.html").write_text(BLANK)
    scaled(root / "scaled")
    for name, case in CASES.items():
        case.write(root / name)
    return root


def load_page(name: str, *devices: str, fault: str) -> Page:
    return Page("/", LOAD, arg={"url": f"/{name}", "devices": devices, "fault": fault})


@pytest.fixture(scope="module")
def reports(site: Path) -> dict[str, PageReport]:
    """A page for each case, which loads its package for any device and then for the GPU."""
    pages = [load_page(name, "auto", "webgpu", fault=case.fault) for name, case in CASES.items()]
    return dict(zip(CASES, open_pages({"/": site}, *pages), strict=True))


@pytest.mark.parametrize("name", CASES)
def test_auto_uses_the_cpu_if_the_gpu_fails(reports: dict[str, PageReport], name: str) -> None:
    value = reports[name].value["auto"]
    assert value.get("chosen") == "wasm", value
    for part in CASES[name].parts:
        assert part in value["deviceReason"]
    np.testing.assert_allclose(value["y"], np.maximum(np.array([1, 2, 3, 4]) * W, 0))
    assert value["last"] == {"loaded": value["download"], "total": value["download"]}
    assert value["variant"] == "relaxed"
    assert reports[name].errors == []


@pytest.mark.parametrize("name", CASES)
def test_webgpu_throws_an_error_that_names_the_cause(
    reports: dict[str, PageReport], name: str
) -> None:
    value = reports[name].value["webgpu"]
    assert value.get("name") == CASES[name].error, value
    assert value["typed"]
    for part in CASES[name].parts:
        assert part in value["message"]


SLOW = """async (slice) => {
  Object.defineProperty(globalThis, "localStorage", { value: null });
  const info = { architecture: "", description: "" };
  Object.defineProperty(GPUAdapter.prototype, "info", { get: () => info });
  const downloads = [];
  const { fetch } = globalThis;
  globalThis.fetch = async (url, ...args) => {
    const response = await fetch(url, ...args);
    if (!`${url}`.endsWith("weights.safetensors")) return response;
    const bytes = new Uint8Array(await response.arrayBuffer());
    const download = { total: bytes.length, sent: 0, cancelled: false };
    downloads.push(download);
    const body = new ReadableStream({
      type: "bytes",
      async pull(controller) {
        if (downloads.length === 1) await new Promise((resolve) => setTimeout(resolve, 50));
        if (download.cancelled) return;
        controller.enqueue(bytes.slice(download.sent, (download.sent += slice)));
        if (download.sent >= bytes.length) controller.close();
      },
      cancel() {
        download.cancelled = true;
      },
    });
    return new Response(body);
  };
  const { load } = await import("/large/webmlc.js");
  (await load("/large/", { threads: 2 })).dispose();
  await new Promise((resolve) => setTimeout(resolve, 500));
  return downloads;
}"""


def test_a_failure_of_the_gpu_stops_its_download(tmp_path: Path) -> None:
    """The weights for the GPU arrive slowly. The second download is for the CPU."""
    (tmp_path / "index.html").write_text(BLANK)
    package = parts()
    large = Buffer("large", (6 << 20,), kind="constant", tensor="large")
    programs = {
        device: replace(program, buffers=(*program.buffers, large))
        for device, program in package.programs.items()
    }
    constants = {**package.constants, "large": np.ones(6 << 20, np.float32)}
    wrong = WGSL.replace("fn relu(", "fn other(")
    write_package(
        tmp_path / "large",
        replace(package, programs=programs, constants=constants, shaders={"gpu": wrong}),
    )
    (report,) = open_pages({"/": tmp_path}, Page("/", SLOW, arg=1 << 18))
    first, second = report.value
    assert first["cancelled"] and first["sent"] < first["total"]
    assert not second["cancelled"] and second["sent"] >= second["total"]


def test_auto_uses_a_gpu_that_works(site: Path) -> None:
    (report,) = open_pages({"/": site}, load_page("scaled", "auto", fault="none"))
    assert report.value["auto"]["chosen"] == "webgpu"
    assert report.value["auto"]["deviceReason"] == "the GPU adapter is hardware"


MEASURED = """async () => {
  const info = { architecture: "", description: "of hardware" };
  Object.defineProperty(GPUAdapter.prototype, "info", { get: () => info });
  const { mapAsync } = GPUBuffer.prototype;
  GPUBuffer.prototype.mapAsync = async function (...args) {
    await new Promise((resolve) => setTimeout(resolve, 400));
    return mapAsync.apply(this, args);
  };
  let devices = 0;
  const { requestDevice } = GPUAdapter.prototype;
  GPUAdapter.prototype.requestDevice = function (...args) {
    devices++;
    return requestDevice.apply(this, args);
  };
  const { load } = await import("/scaled/webmlc.js");
  const loads = [];
  for (let i = 0; i < 2; i++) {
    const model = await load("/scaled/");
    const x = { dtype: "float32", shape: [1, 4], data: new Float32Array([1, 2, 3, 4]) };
    const y = Array.from((await model.run({ x })).y.data);
    loads.push([model.device, model.deviceReason, y, devices]);
    model.dispose();
  }
  return { loads, keys: Object.keys(localStorage) };
}"""


def test_auto_measures_and_remembers_the_faster_device(site: Path) -> None:
    """Reading from this GPU takes long."""
    (report,) = open_pages({"/": site}, Page("/", MEASURED))
    (device, reason, y, devices), again = report.value["loads"]
    assert device == "wasm" and y == [1, 0, 1.5, 12] and devices == 1
    assert re.fullmatch(r"measured: webgpu \d+\.\d ms, wasm \d+\.\d ms", reason)
    assert again == [device, reason, y, devices]  # the GPU is not opened again
    (key,) = report.value["keys"]
    assert key.startswith("webmlc device: http") and "/scaled/ |" in key and "of hardware" in key
    assert report.errors == []
