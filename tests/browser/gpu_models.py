"""A whole model on WebGPU in Chromium, whose shader compiler is Tint, against onnxruntime."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime

import webmlc
from tests.browser.pages import Page, open_pages

BLANK = '<!doctype html><meta charset="utf-8"><link rel="icon" href="data:,"><title>blank</title>'
TOLERANCE = 1e-3
"""The largest error of an output, relative to its largest element."""
ERRORS_ONLY = 4

Inputs = Mapping[str, np.ndarray[Any, Any]]

RUN = """async (inputs) => {
  const { load } = await import("/model/webmlc.js");
  const { arrayOf } = await import("/model/shared.js");
  const model = await load("/model/", { device: "webgpu" });
  const feeds = {};
  for (const [name, { dtype, shape, data }] of Object.entries(inputs)) {
    feeds[name] = { dtype, shape, data: new (arrayOf(dtype))(Uint8Array.fromBase64(data).buffer) };
  }
  const outputs = Object.entries(await model.run(feeds)).map(([name, { shape, data }]) =>
    [name, { shape, data: new Uint8Array(data.buffer).toBase64() }]);
  model.dispose();
  return Object.fromEntries(outputs);
}"""


def check(model: onnx.ModelProto, inputs: Inputs, folder: Path, step: float = 0) -> None:
    """The model's package computes on the GPU, in a page, what onnxruntime does.

    `step` is the step of a quantised output, relative to its largest element. Such a model is
    compared with the unoptimised one, which computes in floats: onnxruntime's products of bytes
    saturate on processors without VNNI. Roundings may then differ by a step.
    """
    options = onnxruntime.SessionOptions()
    options.log_severity_level = ERRORS_ONLY
    if step:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    results = session.run(None, dict(inputs))
    (folder / "index.html").write_text(BLANK)
    manifest = webmlc.build(model, folder / "model")
    assert {step.device for step in manifest.programs["webgpu"].steps} == {"webgpu"}
    arg = {
        name: {
            "dtype": str(array.dtype),
            "shape": list(array.shape),
            "data": base64.b64encode(array.tobytes()).decode(),
        }
        for name, array in inputs.items()
    }
    (report,) = open_pages({"/": folder}, Page("/", RUN, arg=arg, timeout=300_000))
    for info, expected in zip(session.get_outputs(), results, strict=True):
        output = report.value[info.name]
        actual = np.frombuffer(base64.b64decode(output["data"]), expected.dtype)
        largest = np.abs(expected).max()
        assert output["shape"] == list(expected.shape)
        assert expected.std() > TOLERANCE * largest  # a constant would prove nothing
        error = np.abs(actual.reshape(expected.shape) - expected).max() / largest
        assert error <= max(TOLERANCE, 1.01 * step), f"{info.name}: relative error {error:.1e}"
    assert report.errors == []
    assert report.console == []
