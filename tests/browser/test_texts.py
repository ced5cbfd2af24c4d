"""Texts in Chromium: the page of a package, a model on both devices, and ONNX Runtime's names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import webmlc
from tests.browser.pages import ROOT, Page, open_pages
from tests.text_models import TEXT_MODELS, expected, model_of

SCRIPT = """export default async ({ page, arg }) => {
  await page.getByRole("button", { name: "Run" }).waitFor();
  await page.getByLabel("x", { exact: true }).fill("Good dog, good DOG\\nbad cat\\n");
  await page.getByLabel("z", { exact: true }).fill("1 1");
  await page.getByRole("button", { name: "Run" }).click();
  await page.getByText("Ran in").waitFor();
  const seen = await page.locator("#outputs").innerText();
  if (arg.picture) await page.screenshot({ path: arg.picture, fullPage: true });
  const results = await page.evaluate(async () => {
    const { load } = await import("/model/webmlc.js");
    const x = ["Good dog, good DOG", "bad cat", ""];
    const z = { dtype: "float32", shape: [3, 1], data: new Float32Array(3).fill(1) };
    const results = {};
    for (const device of ["wasm", "webgpu"]) {
      const model = await load("/model/", { device });
      const { label, scores } = await model.run({ x, z });
      const only = await model.run({ x, z }, { outputs: ["label"] });
      results[device] = { label, scores: Array.from(scores.data), only: Object.keys(only) };
      results.inputs = model.inputs;
      await model.dispose();
    }
    const ort = await import("/runtime/onnxruntime/onnxruntime.js");
    const session = await ort.InferenceSession.create("/model/");
    const numbers = new ort.Tensor("float32", z.data, [3, 1]);
    const { label } = await session.run({ x: new ort.Tensor("string", x, [3, 1]), z: numbers });
    results.ort = { type: label.type, dims: label.dims, data: label.data };
    return results;
  });
  return { seen, ...results };
};"""


def test_a_page_takes_texts_and_shows_labels(tmp_path: Path) -> None:
    graph, inputs = TEXT_MODELS["pipeline"]
    model = model_of(graph)
    wanted = expected(model, inputs)
    webmlc.build(model, tmp_path / "model")
    script = tmp_path / "enter.mjs"
    script.write_text(SCRIPT)
    folders = {"/": tmp_path, "/runtime/": ROOT / "runtime_js"}
    arg = {"picture": str(tmp_path / "page.png")}
    page = Page("/model/?device=wasm", script=str(script), arg=arg)
    [report] = open_pages(folders, page)
    value: Any = report.value
    labels = wanted["label"].tolist()
    assert "string[2]" in value["seen"] and labels[0] in value["seen"]
    for device in ("wasm", "webgpu"):
        assert value[device]["label"] == {"dtype": "string", "shape": [3], "data": labels}
        np.testing.assert_allclose(value[device]["scores"], wanted["scores"].ravel(), 1e-6)
        assert value[device]["only"] == ["label"]
    assert value["ort"] == {"type": "string", "dims": [3], "data": labels}
    assert value["inputs"][0] == {"name": "x", "dtype": "string", "shape": ["n", 1]}
    assert report.errors == []
