"""The page of a package: what it says if it cannot load its model, and what it downloads."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.browser.pages import Page, open_pages
from tests.packages import scaled

SEE = """export default async ({ page, arg }) => {
  await page.getByRole("heading", { name: arg.heading }).waitFor();
  const visible = await page.locator("body").innerText();
  const progress = await page.locator("progress").isVisible();
  if (arg.picture) await page.screenshot({ path: arg.picture });
  return { visible, progress, title: await page.title() };
};"""


@pytest.fixture
def see(tmp_path: Path) -> str:
    """A script that waits for a heading, and returns what is visible."""
    script = tmp_path / "see.mjs"
    script.write_text(SEE)
    return str(script)


def test_a_file_says_that_it_needs_a_server(tmp_path: Path, see: str) -> None:
    """Module scripts do not run in a page from a file, so the page says it without a script."""
    scaled(tmp_path / "model")
    url = (tmp_path / "model" / "index.html").as_uri()
    arg = {"heading": "This page needs a web server", "picture": str(tmp_path / "file.png")}
    [report] = open_pages({"/": tmp_path}, Page(url, script=see, arg=arg))
    assert "webmlc serve ." in report.value["visible"]
    assert "Loading" not in report.value["visible"]
    assert not report.value["progress"]


def test_a_served_page_shows_no_notice(tmp_path: Path, see: str) -> None:
    scaled(tmp_path / "model")
    arg = {"heading": "scaled"}
    [report] = open_pages({"/": tmp_path}, Page("/model/", script=see, arg=arg))
    assert "server" not in report.value["visible"]


def test_the_page_says_that_its_model_did_not_load(tmp_path: Path, see: str) -> None:
    scaled(tmp_path / "model")
    (tmp_path / "model" / "wasm_worker.js").unlink()
    arg = {"heading": "The model did not load", "picture": str(tmp_path / "error.png")}
    [report] = open_pages({"/": tmp_path}, Page("/model/?device=wasm", script=see, arg=arg))
    assert "HostError: the worker http://127.0.0.1:" in report.value["visible"]
    assert "/model/wasm_worker.js did not start" in report.value["visible"]
    assert report.value["title"] == "The model did not load"
    assert "Outputs" not in report.value["visible"]
    assert "Loading" not in report.value["visible"]
    assert not report.value["progress"]


RUN = """async () => {
  const { load } = await import("/model/webmlc.js");
  const model = await load("/model/", { device: "wasm", threads: 2 });
  const x = { dtype: "float32", shape: [1, 4], data: new Float32Array(4) };
  await model.run({ x });
  await new Promise((resolve) => setTimeout(resolve, 500)); // helpers start after the first run
  model.dispose();
}"""


def test_each_file_is_downloaded_once(tmp_path: Path) -> None:
    """Pages and workers import the same scripts. A server that allows caching sends them once."""
    scaled(tmp_path / "model")
    (tmp_path / "index.html").write_text("<!doctype html>")
    headers = {"Cache-Control": "max-age=60"}
    [report] = open_pages({"/": tmp_path}, Page("/", RUN), headers=headers)
    paths = Counter(request["path"] for request in report.requests)
    assert {"/model/shared.js", "/model/wasm_worker.js"} <= paths.keys()
    assert set(paths.values()) == {1}
