"""Sessions in a real Chromium, against onnxruntime."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from gguf import GGMLQuantizationType

import webmlc
from tests import recurrent
from tests.browser.pages import Page, open_pages
from tests.decoders import DECODER, check_session, session_data
from tests.generate.test_real_model import SMALL, TOKENS, check_tokens
from tests.host.test_outputs import MODEL
from tests.js.test_outputs import DATA, check_outputs
from tests.language_models.small_models import write_model

BLANK = '<!doctype html><meta charset="utf-8"><link rel="icon" href="data:,"><title>blank</title>'
RUN = """async ({ options, data, script }) => {
  const { load } = await import("/model/webmlc.js");
  const { exercise } = await import(`/scripts/${script}.mjs`);
  const model = await load("/model/", options);
  const results = await exercise(model, data);
  model.dispose();
  return results;
}"""


LOAD = """async () => {
  const { load } = await import("/model/webmlc.js");
  const model = await load("/model/", { device: "wasm" });
  const script = new URL("/model/session.js", location).href;
  const hasScript = () => performance.getEntriesByName(script).length > 0;
  const pause = () => new Promise((resolve) => setTimeout(resolve, 20));
  for (let i = 0; i < 100 && !hasScript(); i++) await pause();
  model.dispose();
  return hasScript();
}"""
FEW = 60
"""Tokens: one takes a tenth of a second on a software GPU in Chromium."""
SETTINGS = [("wasm", 1, True), ("wasm", 2, True), ("wasm", 1, False), ("webgpu", 1, True)]


@pytest.mark.parametrize(("device", "threads", "isolated"), SETTINGS)
def test_states_grow_in_place(tmp_path: Path, device: str, threads: int, isolated: bool) -> None:
    webmlc.build(DECODER, tmp_path / "model")
    data = session_data()
    options = {"device": device, "threads": threads}
    check_session(data, exercised(tmp_path, options, isolated, "session", data))


@pytest.mark.parametrize(("device", "threads", "isolated"), SETTINGS)
def test_states_are_replaced(tmp_path: Path, device: str, threads: int, isolated: bool) -> None:
    webmlc.build(recurrent.RECURRENT, tmp_path / "model")
    data = recurrent.session_data()
    options = {"device": device, "threads": threads}
    results = exercised(tmp_path, options, isolated, "recurrent", data)
    recurrent.check_session(data, results)


def test_the_script_of_sessions_arrives_while_the_model_loads(tmp_path: Path) -> None:
    """A first run does not wait for it."""
    webmlc.build(recurrent.RECURRENT, tmp_path / "model", target="wasm")
    (tmp_path / "index.html").write_text(BLANK)
    [report] = open_pages({"/": tmp_path}, Page("/", LOAD))
    assert report.value is True


def test_options_of_a_run(tmp_path: Path) -> None:
    """On the GPU, with segments on both devices."""
    webmlc.build(MODEL, tmp_path / "model")
    check_outputs(exercised(tmp_path, {"device": "webgpu"}, True, "outputs", DATA))


def test_a_token_is_one_pass_one_submission_and_one_readback(tmp_path: Path) -> None:
    """On the GPU, no buffer, bind group or pipeline is made meanwhile."""
    model = replace(SMALL, hidden=64, types=(GGMLQuantizationType.F32,))
    write_model(tmp_path / "small.gguf", model)
    webmlc.build(tmp_path / "small.gguf", tmp_path / "model")
    data = {**TOKENS, "count": FEW}
    results = exercised(tmp_path, {"device": "webgpu"}, True, "tokens", data)
    calls = ("createCommandEncoder", "beginComputePass", "submit", "copyBufferToBuffer", "mapAsync")
    copies = 2  # the token, and the count of indices out of range
    assert results["calls"] == dict.fromkeys(calls, FEW) | {"copyBufferToBuffer": copies * FEW}
    check_tokens(results, tmp_path / "model", FEW)


def exercised(
    folder: Path, options: dict[str, Any], isolated: bool, script: str, data: dict[str, Any]
) -> Any:
    """The results of a script that exercises the sessions of the package in `folder / "model"`."""
    (folder / "page").mkdir()
    (folder / "page" / "index.html").write_text(BLANK)
    mounts = {
        "/": folder / "page",
        "/model": folder / "model",
        "/scripts": Path(__file__).parents[1] / "js",
    }
    arg = {"options": options, "data": data, "script": script}
    [report] = open_pages(mounts, Page("/", RUN, arg=arg), isolated=isolated)
    return report.value
