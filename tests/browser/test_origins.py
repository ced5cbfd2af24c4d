"""The page is on one origin, and the runtime or the package is on another."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.browser.pages import Page, PageReport, open_pages
from tests.packages import expected, scaled

BLANK = '<!doctype html><meta charset="utf-8"><link rel="icon" href="data:,"><title>blank</title>'
POLICY = (
    "default-src 'none'; script-src 'self' 'wasm-unsafe-eval' {other}; connect-src 'self' {other}"
)
ANY_PORT = "http://127.0.0.1:*"

RUN = """async ({ runtime, model, threads }, other) => {
  const place = (path) => path.replace("OTHER", other);
  const { load, WebmlcError } = await import(place(runtime) + "webmlc.js");
  try {
    const loaded = await load(place(model), { device: "wasm", threads });
    const outputs = [];
    for (const n of [3, 20_000, 3]) {
      const data = Float32Array.from({ length: 4 * n }, (_, i) => i - 5);
      const { y } = await loaded.run({ x: { dtype: "float32", shape: [n, 4], data } });
      outputs.push(Array.from(y.data.slice(-12)));
      await new Promise((resolve) => setTimeout(resolve, 150)); // helpers and their caller come up
    }
    loaded.dispose();
    return { threads: loaded.threads, outputs };
  } catch (error) {
    return { typed: error instanceof WebmlcError, name: error.name, message: error.message, other };
  }
}"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("site")
    (root / "index.html").write_text(BLANK)
    scaled(root / "model")
    return root


def page(runtime: str, model: str, threads: int = 1) -> Page:
    return Page("/", RUN, arg={"runtime": runtime, "model": model, "threads": threads})


def check(report: PageReport, threads: int) -> None:
    assert report.value.get("threads") == threads, report.value
    for n, output in zip([3, 20_000, 3], report.value["outputs"], strict=True):
        x = np.arange(4 * n, dtype=np.float32).reshape(n, 4)[-3:] - 5
        np.testing.assert_allclose(np.reshape(output, (3, 4)), expected(x), rtol=1e-6)
    assert report.errors == []


@pytest.mark.parametrize("isolated", [True, False])
def test_runtime_and_package_may_be_on_another_origin(site: Path, isolated: bool) -> None:
    places = [
        ("OTHER/model/", "OTHER/model/"),
        ("/model/", "OTHER/model/"),
        ("OTHER/model/", "/model/"),
    ]
    pages = [page(*place, threads) for place in places for threads in (1, 2)]
    reports = open_pages({"/": site}, *pages, isolated=isolated, other={"/": site})
    for report, threads in zip(reports, [1, 2] * len(places), strict=True):
        check(report, threads if isolated else 1)


def test_a_policy_that_allows_blobs_runs(site: Path) -> None:
    policy = POLICY.format(other=ANY_PORT) + f"; worker-src blob: {ANY_PORT}"
    [report] = open_pages(
        {"/": site},
        page("OTHER/model/", "OTHER/model/", 2),
        headers={"Content-Security-Policy": policy},
        other={"/": site},
    )
    check(report, 2)


def test_an_error_says_what_to_host_if_a_policy_forbids_blobs(site: Path) -> None:
    policy = POLICY.format(other=ANY_PORT) + "; worker-src 'self'"
    other, runtime_here = open_pages(
        {"/": site},
        page("OTHER/model/", "OTHER/model/"),
        page("/model/", "OTHER/model/"),
        headers={"Content-Security-Policy": policy},
        other={"/": site},
    )
    value = other.value
    assert (value["typed"], value["name"]) == (True, "HostError")
    assert f"{value['other']}/model/wasm_worker.js did not start" in value["message"]
    assert "serve the package from the page's origin" in value["message"]
    assert f"worker-src blob: {value['other']}" in value["message"]
    check(runtime_here, 1)  # its worker needs no blob


def test_an_error_says_what_a_server_without_cors_must_send(site: Path) -> None:
    [report] = open_pages(
        {"/": site}, page("/model/", "OTHER/model/"), other={"/": site}, other_headers={}
    )
    value = report.value
    assert (value["typed"], value["name"]) == (True, "PackageError")
    assert f"{value['other']}/model/manifest.json" in value["message"]
    assert "must send Access-Control-Allow-Origin" in value["message"]


def test_an_error_names_a_missing_worker(site: Path, tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text(BLANK)
    scaled(tmp_path / "model")
    (tmp_path / "model" / "wasm_worker.js").unlink()
    [report] = open_pages({"/": tmp_path}, page("/model/", "/model/", 2))
    value = report.value
    assert (value["typed"], value["name"]) == (True, "HostError")
    assert "/model/wasm_worker.js did not start" in value["message"]
    assert "serve the whole package there" in value["message"]
    assert "http://127.0.0.1" in value["message"]
