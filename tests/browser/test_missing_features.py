"""If a host lacks a feature, the runtime throws a typed error, or uses one thread and says why."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.browser.pages import Page, open_pages
from tests.packages import scaled

BLANK = '<!doctype html><meta charset="utf-8"><link rel="icon" href="data:,"><title>blank</title>'

RUN = """async ({ lack, device }) => {
  const lacks = {
    nothing: () => {},
    WebAssembly: () => delete globalThis.WebAssembly,
    SIMD: () => (WebAssembly.validate = () => false),
    Worker: () => delete globalThis.Worker,
    SharedArrayBuffer: () => delete globalThis.SharedArrayBuffer,
  };
  lacks[lack]();
  GPUAdapter.prototype.__defineGetter__("info", () => ({})); // "auto" counts it as hardware
  const { load, HostError } = await import("/model/webmlc.js");
  try {
    const model = await load("/model/", { device, threads: 2 });
    const x = { dtype: "float32", shape: [1, 4], data: Float32Array.from([1, 2, 3, 4]) };
    const runs = [];
    for (let i = 0; i < 2; i++) runs.push(Array.from((await model.run({ x })).y.data));
    const { threads, threadsReason } = model;
    return { isolated: crossOriginIsolated, runs, threads, threadsReason };
  } catch (error) {
    return { typed: error instanceof HostError, code: error.code, message: error.message };
  }
}"""
ROW = [1, 0, 1.5, 12]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("site")
    (root / "index.html").write_text(BLANK)
    scaled(root / "model")
    return root


def page(lack: str, device: str = "wasm") -> Page:
    return Page("/", RUN, arg={"lack": lack, "device": device})


def test_errors_name_the_feature_that_the_cpu_lacks(site: Path) -> None:
    lacks = {
        "WebAssembly": "has no WebAssembly (",
        "SIMD": "has no WebAssembly SIMD",
        "Worker": "has no Worker",
    }
    reports = open_pages({"/": site}, *map(page, lacks))
    for part, report in zip(lacks.values(), reports, strict=True):
        value = report.value
        assert (value["typed"], value["code"]) == (True, "host")
        assert part in value["message"]
        assert 'load with device: "webgpu"' in value["message"]
        assert report.errors == []


def test_the_gpu_needs_no_feature_of_the_cpu(site: Path) -> None:
    """Not even with "auto", which tries to start a worker before it chooses the device."""
    lacks = ("WebAssembly", "SIMD", "Worker")
    pages = [page(lack, device) for lack in lacks for device in ("webgpu", "auto")]
    for report in open_pages({"/": site}, *pages):
        assert report.value["runs"] == [ROW, ROW]


def test_an_error_names_the_policy_that_forbids_webassembly(site: Path) -> None:
    """The runtime cannot compile its probes, so it takes the module that needs none."""
    manifest = json.loads((site / "model" / "manifest.json").read_text())
    modules = manifest["programs"]["wasm"]["modules"]
    dots = modules | {"dot": modules["relaxed"]}
    programs = manifest["programs"] | {"wasm": manifest["programs"]["wasm"] | {"modules": dots}}
    scaled(site / "dots")
    (site / "dots" / "manifest.json").write_text(json.dumps(manifest | {"programs": programs}))
    policy = {"Content-Security-Policy": "default-src 'self'"}
    dot = replace(page("nothing"), evaluate=RUN.replace("/model/", "/dots/"))
    for report in open_pages({"/": site}, page("nothing"), dot, headers=policy):
        value = report.value
        assert (value["typed"], value["code"]) == (True, "host")
        assert "model.simd128.wasm.deflate: cannot be compiled" in value["message"]
        assert "must allow 'wasm-unsafe-eval'" in value["message"]


def test_an_isolated_page_may_lack_shared_memory(site: Path, tmp_path: Path) -> None:
    """Its workers lack it, too."""
    (tmp_path / "index.html").write_text(BLANK)
    scaled(tmp_path / "model")
    worker = tmp_path / "model" / "wasm_worker.js"
    (tmp_path / "model" / "hide.js").write_text("delete globalThis.SharedArrayBuffer;")
    worker.write_text('import "./hide.js";\n' + worker.read_text())
    [report] = open_pages({"/": tmp_path}, page("SharedArrayBuffer"))
    assert report.value == {
        "isolated": True,
        "runs": [ROW, ROW],
        "threads": 1,
        "threadsReason": "this host has no SharedArrayBuffer",
    }
    assert report.errors == []
