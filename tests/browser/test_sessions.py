"""Sessions in a real Chromium, against onnxruntime."""

from pathlib import Path

import pytest

import webmlc
from tests.browser.pages import Page, open_pages
from tests.decoders import DECODER, check_session, session_data

BLANK = '<!doctype html><meta charset="utf-8"><link rel="icon" href="data:,"><title>blank</title>'
RUN = """async ({ options, data }) => {
  const { load } = await import("/model/webmlc.js");
  const { exercise } = await import("/scripts/session.mjs");
  const model = await load("/model/", options);
  const results = await exercise(model, data);
  model.dispose();
  return results;
}"""


@pytest.mark.parametrize(
    ("device", "threads", "isolated"),
    [("wasm", 1, True), ("wasm", 2, True), ("wasm", 1, False), ("webgpu", 1, True)],
)
def test_states_grow_in_place(tmp_path: Path, device: str, threads: int, isolated: bool) -> None:
    webmlc.build(DECODER, tmp_path / "model")
    (tmp_path / "page").mkdir()
    (tmp_path / "page" / "index.html").write_text(BLANK)
    data = session_data()
    mounts = {
        "/": tmp_path / "page",
        "/model": tmp_path / "model",
        "/scripts": Path(__file__).parents[1] / "js",
    }
    arg = {"options": {"device": device, "threads": threads}, "data": data}
    [report] = open_pages(mounts, Page("/", RUN, arg=arg), isolated=isolated)
    check_session(data, report.value)
