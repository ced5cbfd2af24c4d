"""Weights are transformed while other weights are downloaded, in a real Chromium."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx.parser
import pytest
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator

import webmlc
from tests.browser.pages import Page, open_pages

BLANK = '<!doctype html><meta charset="utf-8"><link rel="icon" href="data:,"><title>blank</title>'
MODEL = """<ir_version: 8, opset_import: ["" : 17]>
g (float[1, 384, 14, 14] x) => (float[1, 384, 14, 14] y) {
    a = Conv<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(x, w)
    b = Relu(a)
    y = Conv<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(b, v)
}"""
RUN = """async ({ threads, x }) => {
  const { load } = await import("/model/webmlc.js");
  const model = await load("/model/", { device: "wasm", threads });
  const data = Float32Array.from(x);
  const results = [];
  for (let run = 0; run < 2; run++) {
    const { y } = await model.run({ x: { dtype: "float32", shape: [1, 384, 14, 14], data } });
    results.push(Array.from(y.data));
  }
  model.dispose();
  return results;
}"""


@pytest.mark.parametrize("isolated", [True, False])
def test_weights_are_transformed_during_the_download(tmp_path: Path, isolated: bool) -> None:
    """With memory that is shared with the page, and without."""
    rng = np.random.default_rng(0)
    model = onnx.parser.parse_model(MODEL)
    for name in ("w", "v"):
        w = rng.standard_normal((384, 384, 3, 3), np.float32) / 60
        model.graph.initializer.append(numpy_helper.from_array(w, name))
    (tmp_path / "index.html").write_text(BLANK)
    webmlc.build(model, tmp_path / "model")
    program = json.loads((tmp_path / "model" / "manifest.json").read_text())["programs"]["wasm"]
    assert [b.get("kind") for b in program["buffers"]].count("derived") == 2
    x = rng.standard_normal((1, 384, 14, 14), np.float32)
    (expected,) = ReferenceEvaluator(model).run(None, {"x": x})
    pages = [Page("/", RUN, arg={"threads": t, "x": x.ravel().tolist()}) for t in (1, 2)]
    for report in open_pages({"/": tmp_path}, *pages, isolated=isolated):
        assert report.errors == []
        for y in report.value:
            np.testing.assert_allclose(np.reshape(y, expected.shape), expected, atol=2e-4)
