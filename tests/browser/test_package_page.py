"""The page of a package: what it says if it cannot load its model, and what it downloads."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import onnx.parser
import pytest

import webmlc
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


PICTURES = """<ir_version: 8, opset_import: ["" : 17]>
pictures (float[n, 1, 16, 16] drawing, float[1, 3, h, w] photo, int64[n, tokens] ids)
    => (float[n, 1, 16, 16] negative, float[1, 3, a, b] softer, int64[n, tokens] doubled,
        float[n, 4] shares) {
  one = Constant <value_float = 1.0> ()
  negative = Sub (one, drawing)
  softer = AveragePool <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (photo)
  doubled = Add (ids, ids)
  columns = ReduceMean <axes = [1, 2], keepdims = 0> (drawing)
  quarter = Constant <value_ints = [0, 0, 4]> ()
  parts = Constant <value_ints = [0, 4, 4]> ()
  cut = Reshape (columns, parts)
  shares = ReduceMean <axes = [2], keepdims = 0> (cut)
}
"""
"""A model of a drawing, a picture and numbers, whose outputs are pictures, a table and bars."""


@pytest.mark.parametrize("width", [1280, 390])
def test_values_are_drawn_dropped_and_typed(tmp_path: Path, width: int) -> None:
    webmlc.build(onnx.parser.parse_model(PICTURES), tmp_path / "model", "wasm")
    context = {"viewport": {"width": width, "height": 800}, "colorScheme": "dark"}
    arg = {"picture": str(tmp_path / "page.png")}
    script = str(Path(__file__).with_name("enter_values.mjs"))
    [report] = open_pages(
        {"/": tmp_path}, Page("/model/?device=wasm", script=script, arg=arg, context=context)
    )
    value: Any = report.value
    assert value["error"] == "Error: ids: x is no number"
    assert value["drawn"][0] < 64 and value["empty"] == [255, 255, 255, 255]  # its negative
    assert value["sizes"] == [[16, 16], [40, 24]]
    assert dict(value["symbols"]) == {"n": "1", "h": "24", "w": "40", "tokens": "3"}
    assert value["table"] == ["2", "4", "10"]
    assert len(value["bars"]) == 4 and value["bars"][0].startswith("0 ")  # the column drawn on
    assert value["overflow"] <= 0
    assert report.errors == []
    assert not [line for line in report.console if line.startswith("error")]


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
