"""Whole models on WebGPU in Chromium, whose shader compiler is Tint, against onnxruntime.

The small ones of `tests/small_models.py` always run; real architectures, where `shared/models` is
beside the project's folder.
"""

from __future__ import annotations

import base64
import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

import webmlc
from tests.browser.pages import ROOT, Page, open_pages
from tests.small_models import SMALL_MODELS

SHARED = ROOT.parent / "shared" / "models"
BLANK = '<!doctype html><meta charset="utf-8"><link rel="icon" href="data:,"><title>blank</title>'
TOLERANCE = 1e-3
"""The largest error of an output, relative to its largest element."""
ERRORS_ONLY = 4

Inputs = Mapping[str, np.ndarray[Any, Any]]


@dataclass(frozen=True, slots=True)
class Architecture:
    """A file of `shared/models`: the sizes of its symbols, and the ranges of its integers."""

    file: str
    sizes: Mapping[str, int] = field(default_factory=dict)
    integers: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return Path(self.file).stem

    def make(self) -> tuple[onnx.ModelProto, Inputs]:
        """The model, with seeded random weights where it has none, and random inputs."""
        model = onnx.load(SHARED / self.file)
        if self.file.startswith("light/"):
            model = materialise(model)
        rng = np.random.default_rng(0)
        weights = {t.name for t in model.graph.initializer}
        inputs: dict[str, np.ndarray[Any, Any]] = {}
        for port in (p for p in model.graph.input if p.name not in weights):
            tensor = port.type.tensor_type
            dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
            shape = [d.dim_value or self.sizes.get(d.dim_param, 1) for d in tensor.shape.dim]
            low, high = self.integers.get(port.name, (0, 2))
            random = rng.normal(size=shape) if dtype.kind == "f" else rng.integers(low, high, shape)
            inputs[port.name] = np.asarray(random, dtype)
        return model, inputs


ARCHITECTURES = (
    Architecture("light/minilm_l6.onnx", {"batch": 2, "sequence": 16}, {"input_ids": (0, 30522)}),
    Architecture("light/deit_tiny_dynamo.onnx"),
    Architecture("light/whisper_tiny_encoder.onnx"),
    Architecture(
        "light/llama_15m.onnx",
        {"past": 8, "total": 12, "sequence": 4},
        {"input_ids": (0, 32000), "attention_mask": (1, 2), "position_ids": (8, 12)},
    ),
    Architecture("real/maui_test_model.onnx"),
)


def materialise(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with seeded random weights, by the script that comes with the light models."""
    spec = importlib.util.spec_from_file_location("materialise", SHARED / "materialise.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    result: onnx.ModelProto = module.materialise(model)
    return result


RUN = """async (inputs) => {
  const { load } = await import("/model/webmlc.js");
  const { arrayOf } = await import("/model/shared.js");
  const model = await load("/model/", { device: "webgpu" });
  const feeds = {};
  for (const { name, dtype } of model.inputs) {
    const { shape, data } = inputs[name];
    feeds[name] = { dtype, shape, data: new (arrayOf(dtype))(Uint8Array.fromBase64(data).buffer) };
  }
  const outputs = Object.entries(await model.run(feeds)).map(([name, { shape, data }]) =>
    [name, { shape, data: new Uint8Array(data.buffer).toBase64() }]);
  model.dispose();
  return Object.fromEntries(outputs);
}"""


def check(model: onnx.ModelProto, inputs: Inputs, folder: Path) -> None:
    """The model's package computes on the GPU, in a page, what onnxruntime does."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = ERRORS_ONLY
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    results = session.run(None, dict(inputs))
    (folder / "index.html").write_text(BLANK)
    manifest = webmlc.build(model, folder / "model")
    assert {step.device for step in manifest.programs["webgpu"].steps} == {"webgpu"}
    arg = {
        name: {"shape": list(array.shape), "data": base64.b64encode(array.tobytes()).decode()}
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
        assert error <= TOLERANCE, f"{info.name}: relative error {error:.1e}"
    assert report.errors == []
    assert report.console == []


@pytest.mark.parametrize("make", SMALL_MODELS, ids=lambda make: make.__name__)
def test_small_models_match_onnxruntime(
    make: Callable[[], tuple[onnx.ModelProto, Inputs]], tmp_path: Path
) -> None:
    check(*make(), tmp_path)


if SHARED.is_dir():

    @pytest.mark.parametrize("architecture", ARCHITECTURES, ids=lambda a: a.name)
    def test_real_architectures_match_onnxruntime(
        architecture: Architecture, tmp_path: Path
    ) -> None:
        check(*architecture.make(), tmp_path)
