"""Run packages that are written by hand in the JavaScript runtime, in a real Chromium."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.browser.pages import Page, PageReport, open_pages
from tests.packages import expected, fixed, mixed, scaled

BLANK = '<!doctype html><meta charset="utf-8"><link rel="icon" href="data:,"><title>blank</title>'

RUN = """async ({ device, threads, variant, sizes }) => {
  const { load } = await import("/scaled/webmlc.js");
  const progress = [];
  const onProgress = (p) => progress.push(p);
  const model = await load("/PACKAGE/", { device, threads, variant, onProgress });
  const outputs = [];
  for (const n of sizes) {
    const data = Float32Array.from({ length: 4 * n }, (_, i) => Math.sin(i + n));
    const { y } = await model.run({ x: { dtype: "float32", shape: [n, 4], data } });
    outputs.push({ shape: y.shape, dtype: y.dtype, data: Array.from(y.data) });
  }
  const x = { dtype: "float32", shape: [1, 4], data: new Float32Array(4) };
  const steps = await model.profile({ x });
  const { device: chosen, threads: count, threadsReason, resources, variant: runs } = model;
  model.dispose();
  return { outputs, chosen, count, threadsReason, resources, variant: runs, progress, steps };
}"""
SIZES = [3, 1, 8, 1000, 3, 0]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A blank page beside a package of each kind."""
    root = tmp_path_factory.mktemp("site")
    (root / "index.html").write_text(BLANK)
    scaled(root / "scaled")
    mixed(root / "mixed")
    return root


def run_page(
    package: str, device: str, threads: int | None = None, variant: str | None = None
) -> Page:
    arg = {"device": device, "threads": threads, "variant": variant, "sizes": SIZES}
    arg = {key: value for key, value in arg.items() if value is not None}
    return Page("/", RUN.replace("PACKAGE", package), arg=arg)


def check(report: PageReport) -> dict[str, Any]:
    """Check outputs, steps and the console, and return the value that the page returned."""
    for n, output in zip(SIZES, report.value["outputs"], strict=True):
        x = np.sin(np.arange(4 * n) + n).astype(np.float32).reshape(n, 4)
        assert output["shape"] == [n, 4]
        assert output["dtype"] == "float32"
        np.testing.assert_allclose(np.reshape(output["data"], (n, 4)), expected(x), atol=1e-6)
    assert [(s["kernel"], s["origin"]) for s in report.value["steps"]] == [
        ("scale", ["/scale"]),
        ("relu", ["/relu"]),
    ]
    assert report.errors == []
    assert [line for line in report.console if line.startswith("error")] == []
    last = report.value["progress"][-1]
    assert last["loaded"] == last["total"] == report.value["resources"]["download"]
    return dict(report.value)


def test_every_device_computes_the_same(site: Path) -> None:
    reports = open_pages(
        {"/": site},
        run_page("scaled", "wasm", 1),
        run_page("scaled", "wasm", 2),
        run_page("scaled", "webgpu"),
        run_page("mixed", "webgpu", 1),
        run_page("mixed", "webgpu", 2),
        run_page("scaled", "auto"),
        run_page("scaled", "wasm", 2, "simd128"),
    )
    values = [check(report) for report in reports]
    assert [v["chosen"] for v in values[:4]] == ["wasm", "wasm", "webgpu", "webgpu"]
    assert [v["chosen"] for v in values[4:]] == ["webgpu", "wasm", "wasm"]
    assert [v["count"] for v in values[:2]] == [1, 2]
    assert [v["variant"] for v in values[:4]] == ["relaxed", "relaxed", None, "relaxed"]
    assert values[-1]["variant"] == "simd128"
    fetched = {r["path"] for r in reports[0].requests}
    assert "/scaled/model.relaxed.wasm.deflate" in fetched
    assert not fetched & {"/scaled/model.simd128.wasm.deflate", "/scaled/kernels.gpu.wgsl.deflate"}


FIXED = """async (device) => {
  const { load } = await import("/fixed/webmlc.js");
  const model = await load("/fixed/", { device });
  const data = Float32Array.from([1, 2, 3, 4]);
  const { same, w } = await model.run({ x: { dtype: "float32", shape: [1, 4], data } });
  return [Array.from(same.data), Array.from(w.data), same.data !== data];
}"""


def test_a_program_without_steps_returns_inputs_and_constants(site: Path) -> None:
    fixed(site / "fixed")
    reports = open_pages({"/": site}, *(Page("/", FIXED, arg=d) for d in ("wasm", "webgpu")))
    assert [r.value for r in reports] == [[[1, 2, 3, 4], [1, -2, 0.5, 3], True]] * 2


def test_without_isolation_there_is_one_thread_and_a_reason(site: Path) -> None:
    [report] = open_pages({"/": site}, run_page("scaled", "wasm", 2), isolated=False)
    value = check(report)
    assert value["count"] == 1
    assert "Cross-Origin-Opener-Policy" in value["threadsReason"]


REPEATS = """async ({ threads, sizes }) => {
  const { load } = await import("/scaled/webmlc.js");
  const model = await load("/scaled/", { device: "wasm", threads });
  let messages = 0;
  const { postMessage } = Worker.prototype;
  Worker.prototype.postMessage = function (...args) {
    if (args[0].type === "execute") messages++;
    postMessage.apply(this, args);
    const begin = performance.now();
    while (performance.now() - begin < 10); // the worker answers before the page continues
  };
  const sent = [];
  const outputs = [];
  for (const [run, n] of sizes.entries()) {
    const data = Float32Array.from({ length: 4 * n }, (_, i) => i + run);
    const before = messages;
    const { y } = await model.run({ x: { dtype: "float32", shape: [n, 4], data } });
    outputs.push(Array.from(y.data));
    sent.push(messages - before);
  }
  await new Promise((resolve) => setTimeout(resolve, 50));
  Atomics.notify = () => 0; // the worker does not wake up
  const last = model.run({ x: { dtype: "float32", shape: [1, 4], data: new Float32Array(4) } });
  for (let i = 0; i < 5; i++) await null; // until the run has begun
  model.dispose();
  const after = await last.then(() => "ran", (error) => error.name);
  return { outputs, sent, after };
}"""


@pytest.mark.parametrize("isolated", [True, False])
def test_requests_are_repeated_with_new_bytes(site: Path, isolated: bool) -> None:
    """Also after other shapes and larger memories. Without shared memory, messages are posted."""
    sizes = [1, 1, 1, 20_000, 1, 1, 20_000]
    pages = [Page("/", REPEATS, arg={"threads": t, "sizes": sizes}) for t in (1, 2)]
    for report in open_pages({"/": site}, *pages, isolated=isolated):
        for run, (n, output) in enumerate(zip(sizes, report.value["outputs"], strict=True)):
            x = np.arange(run, run + 4 * n, dtype=np.float32).reshape(n, 4)
            np.testing.assert_allclose(np.reshape(output, (n, 4)), expected(x), rtol=1e-6)
        # A larger input replaces the memory, so earlier requests need messages again.
        assert report.value["sent"] == ([1, 0, 0, 1, 1, 0, 0] if isolated else [1] * 7)
        assert report.value["after"] == "DisposedError"


SHORT_RUNS = """async ({ threads }) => {
  const { load } = await import("/scaled/webmlc.js");
  const model = await load("/scaled/", { device: "wasm", threads });
  let rings = 0;
  const { notify } = Atomics;
  Atomics.notify = (...args) => {
    rings++;
    return notify(...args);
  };
  let count = 0;
  const outputs = [];
  async function run(n) {
    const data = Float32Array.from({ length: 4 * n }, (_, i) => i + count);
    const before = rings;
    const { y } = await model.run({ x: { dtype: "float32", shape: [n, 4], data } });
    outputs.push([count++, n, Array.from(y.data)]);
    return rings - before;
  }
  async function until(expected, n) {
    let last = 0;
    for (let i = 0; i < 200 && (!i || last !== expected); i++) last = await run(n);
    return last;
  }
  const story = [await until(0, 1)]; // short: the page executes it after some runs
  story.push(await run(3), await run(1)); // each time memory is bound for another shape
  story.push(await until(0, 1));
  const { now } = performance;
  let time = 0;
  performance.now = () => (time += 10); // so long that the worker executes it again
  story.push(await until(1, 1));
  performance.now = now;
  model.dispose();
  return { story, outputs };
}"""


def test_the_page_executes_short_runs(site: Path) -> None:
    """If they stay short, and if memory is bound for their shapes."""
    pages = [Page("/", SHORT_RUNS, arg={"threads": t}) for t in (1, 2)]
    for report in open_pages({"/": site}, *pages):
        assert report.value["story"] == [0, 1, 1, 0, 1]
        for run, n, output in report.value["outputs"]:
            x = np.arange(run, run + 4 * n, dtype=np.float32).reshape(n, 4)
            np.testing.assert_allclose(np.reshape(output, (n, 4)), expected(x), rtol=1e-6)


SHARED_RUNS = """async ({ runs, n }) => {
  const { load } = await import("/scaled/webmlc.js");
  const model = await load("/scaled/", { device: "wasm", threads: 2 });
  const { now } = performance;
  let time = 0;
  performance.now = () => (time += 1.5); // short enough for the page, and long enough for helpers
  const { notify } = Atomics;
  let woken = { worker: 0, helper: 0 };
  Atomics.notify = (words, ...args) => {
    woken[words.length === 4 ? "worker" : "helper"]++; // see repeats.js and threads.js
    return notify(words, ...args);
  };
  const outputs = [];
  let last = woken;
  for (let i = 0; i < runs; i++) {
    woken = { worker: 0, helper: 0 };
    const data = Float32Array.from({ length: 4 * n }, (_, k) => k + i);
    const { y } = await model.run({ x: { dtype: "float32", shape: [n, 4], data } });
    outputs.push(y.data[4 * n - 1]);
    last = { ...woken };
    await new Promise((resolve) => setTimeout(resolve, 100)); // the helper falls asleep
  }
  performance.now = now;
  model.dispose();
  return { outputs, last };
}"""


def test_the_page_leads_short_runs_of_helpers(site: Path) -> None:
    """The worker is not woken."""
    runs, n = 11, 20_000
    (report,) = open_pages({"/": site}, Page("/", SHARED_RUNS, arg={"runs": runs, "n": n}))
    x = np.arange(runs, dtype=np.float32)[:, None] + np.arange(4 * n - 4, 4 * n, dtype=np.float32)
    np.testing.assert_allclose(report.value["outputs"], expected(x)[:, -1], rtol=1e-6)
    assert report.value["last"] == {"worker": 0, "helper": 1}


PAUSES = """async ({ sizes, pause }) => {
  const { load } = await import("/scaled/webmlc.js");
  let started = 0;
  const OriginalWorker = Worker;
  globalThis.Worker = class extends OriginalWorker {
    constructor(...args) {
      super(...args);
      started++;
    }
  };
  const model = await load("/scaled/", { device: "wasm", threads: 2 });
  const outputs = [];
  for (const [run, n] of sizes.entries()) {
    const data = Float32Array.from({ length: 4 * n }, (_, i) => i + run);
    const { y } = await model.run({ x: { dtype: "float32", shape: [n, 4], data } });
    outputs.push(Array.from(y.data));
    await new Promise((resolve) => setTimeout(resolve, pause));
  }
  model.dispose();
  return { outputs, started };
}"""


def test_the_caller_wakes_sleeping_helpers(site: Path) -> None:
    """The caller starts in a pause. It wakes helpers for runs, and for another memory."""
    sizes = [20_000, 20_000, 20_000, 60_000, 60_000, 1, 60_000]
    (report,) = open_pages({"/": site}, Page("/", PAUSES, arg={"sizes": sizes, "pause": 250}))
    assert report.value["started"] == 3  # the leader, its helper and the caller
    for run, (n, output) in enumerate(zip(sizes, report.value["outputs"], strict=True)):
        x = np.arange(run, run + 4 * n, dtype=np.float32).reshape(n, 4)
        np.testing.assert_allclose(np.reshape(output, (n, 4)), expected(x), rtol=1e-6)


ERRORS = """async ({ calls }) => {
  const { load, InputError, WebmlcError } = await import("/scaled/webmlc.js");
  const model = await load("/scaled/", { device: "wasm", threads: 1 });
  const tensors = {
    good: { dtype: "float32", shape: [1, 4], data: new Float32Array(4) },
    rank: { dtype: "float32", shape: [4], data: new Float32Array(4) },
    extent: { dtype: "float32", shape: [1, 5], data: new Float32Array(5) },
    count: { dtype: "float32", shape: [1, 4], data: new Float32Array(3) },
    array: { dtype: "float32", shape: [1, 4], data: new Float64Array(4) },
    dtype: { dtype: "int32", shape: [1, 4], data: new Int32Array(4) },
    bare: new Float32Array(4),
  };
  const messages = [];
  for (const inputs of calls) {
    const named = Object.fromEntries(Object.entries(inputs).map(([k, v]) => [k, tensors[v]]));
    const error = await model.run(named).then(() => null, (e) => e);
    const typed = error instanceof InputError && error instanceof WebmlcError;
    messages.push([typed, error?.code, error?.message]);
  }
  const after = (await model.run({ x: tensors.good })).y.data.length;
  model.dispose();
  const late = await model.run({ x: tensors.good }).then(() => null, (e) => e.message);
  return { messages, after, late };
}"""


def test_errors_name_bad_inputs(site: Path) -> None:
    calls = {
        "is missing": {},
        'no input is named "z"': {"x": "good", "z": "good"},
        "has shape [4], expected [n, 4]": {"x": "rank"},
        "has shape [1, 5], expected [n, 4] = [1, 4] with n = 1": {"x": "extent"},
        "has 3 elements, expected 4": {"x": "count"},
        "holds Float64Array, expected float32": {"x": "array"},
        "has dtype int32, expected float32": {"x": "dtype"},
        "has the symbolic shape [n, 4]": {"x": "bare"},
    }
    [report] = open_pages({"/": site}, Page("/", ERRORS, arg={"calls": list(calls.values())}))
    for part, (typed, code, message) in zip(calls, report.value["messages"], strict=True):
        assert (typed, code) == (True, "input")
        assert part in message
    assert report.value["after"] == 4
    assert "disposed" in report.value["late"]


LOAD = """async ({ url, options, hide }) => {
  const { load } = await import("/scaled/webmlc.js");
  if (hide) navigator.gpu.requestAdapter = async () => null;
  return load(url, options).then(() => null, (e) => [e.name, e.code, e.message]);
}"""


def load_page(url: str, *, hide: bool = False, **options: Any) -> Page:
    return Page("/", LOAD, arg={"url": url, "options": options, "hide": hide})


def broken(site: Path, name: str) -> Path:
    folder = site / name
    scaled(folder)
    return folder


LOADS = """async ({ urls, options }) => {
  const { load } = await import("/scaled/webmlc.js");
  const errors = [];
  for (const url of urls) {
    errors.push(await load(url, options).then(() => [], (e) => [e.name, e.code, e.message]));
  }
  return errors;
}"""


def test_errors_name_the_fault_of_a_package(site: Path) -> None:
    (broken(site, "missing") / "weights.safetensors").unlink()
    altered = broken(site, "altered") / "weights.safetensors"
    data = bytearray(altered.read_bytes())
    data[-1] ^= 1
    altered.write_bytes(data)
    short = broken(site, "short") / "weights.safetensors"
    short.write_bytes(short.read_bytes()[:-4])
    code = broken(site, "code") / "model.relaxed.wasm.deflate"
    code.write_bytes(code.read_bytes()[:-1] + b"\0")
    other = broken(site, "other") / "manifest.json"
    other.write_text('{"format": "other"}')
    page = broken(site, "page") / "manifest.json"
    page.write_text("<!doctype html>")
    newer = broken(site, "newer") / "manifest.json"
    newer.write_text(json.dumps(json.loads(newer.read_text()) | {"version": 99}))
    expected_parts = {
        "missing": "weights.safetensors: HTTP status 404",
        "altered": "weights.safetensors: its SHA-256 differs",
        "short": "weights.safetensors: has 268 bytes, expected 272",
        "code": "model.relaxed.wasm.deflate: its SHA-256 differs",
        "other": "not a webmlc package",
        "page": "manifest.json: this is an HTML page, which the server sent instead",
        "newer": "manifest.json: is a package of format 99, which hand wrote. This runtime, of ",
        "absent": "HTTP status 404; is the package's URL right?",
    }
    for device in ("wasm", "webgpu"):
        names = [name for name in expected_parts if name != "code" or device == "wasm"]
        arg = {"urls": [f"/{name}" for name in names], "options": {"device": device}}
        (report,) = open_pages({"/": site}, Page("/", LOADS, arg=arg))
        assert report.errors == []
        for package, (name, code_, message) in zip(names, report.value, strict=True):
            assert (name, code_) == ("PackageError", "package"), (device, package)
            assert expected_parts[package] in message


def test_a_variant_that_cannot_run_is_refused(site: Path) -> None:
    manifest = broken(site, "plain") / "manifest.json"
    plain = json.loads(manifest.read_text())
    del plain["programs"]["wasm"]["modules"]["relaxed"]
    manifest.write_text(json.dumps(plain))
    absent, unknown = open_pages(
        {"/": site},
        load_page("/plain", device="wasm", variant="relaxed"),
        load_page("/plain", device="wasm", variant="avx"),
    )
    assert absent.value[:2] == ["PackageError", "package"] and "relaxed" in absent.value[2]
    assert unknown.value[:2] == ["InputError", "input"] and "avx" in unknown.value[2]


def test_a_missing_adapter_is_an_adapter_error(site: Path) -> None:
    refused, fallback = open_pages(
        {"/": site},
        load_page("/scaled", hide=True, device="webgpu"),
        load_page("/scaled", hide=True, device="auto"),
    )
    assert refused.value[:2] == ["AdapterError", "adapter"]
    assert 'load with device: "wasm"' in refused.value[2]
    assert fallback.value is None


def test_wrong_options_are_input_errors(site: Path) -> None:
    device, threads = open_pages(
        {"/": site}, load_page("/scaled", device="npu"), load_page("/scaled", threads=0)
    )
    assert device.value[0] == threads.value[0] == "InputError"


LOST = """async () => {
  const { load } = await import("/scaled/webmlc.js");
  const request = GPUAdapter.prototype.requestDevice;
  let device;
  GPUAdapter.prototype.requestDevice = async function (...args) {
    return (device = await request.apply(this, args));
  };
  const model = await load("/scaled/", { device: "webgpu" });
  const x = { dtype: "float32", shape: [1, 4], data: new Float32Array(4) };
  await model.run({ x });
  device.destroy();
  await device.lost;
  return model.run({ x }).then(() => null, (e) => [e.name, e.code]);
}"""


def test_a_lost_device_is_a_typed_error(site: Path) -> None:
    [report] = open_pages({"/": site}, Page("/", LOST))
    assert report.value == ["DeviceLostError", "device-lost"]


def test_the_package_page_runs_under_its_own_policy(site: Path) -> None:
    script = site / "drive.mjs"
    script.write_text("""export default async ({ page }) => {
      await page.getByRole("button", { name: "Run" }).click();
      await page.getByText("Ran in").waitFor();
      return page.locator("main").innerText();
    };""")
    [report] = open_pages({"/": site}, Page("/scaled/?threads=2", script=str(script)))
    assert "scaled" in report.value
    assert "x float32[n, 4]" in report.value
    assert "y float32[1, 4]" in report.value
    assert re.search(r"Ran in [\d.]+ ms, then in [\d.]+ ms \(median of \d+\)", report.value)
    assert report.errors == []
    assert [line for line in report.console if line.startswith("error")] == []
