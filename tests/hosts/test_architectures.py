"""Real architectures on WebGPU in Chromium, against onnxruntime, where `shared/models` is beside
the project's folder.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from tests.browser.gpu_models import Inputs, check
from tests.browser.pages import ROOT

SHARED = ROOT.parent / "shared" / "models"


@dataclass(frozen=True, slots=True)
class Architecture:
    """A file of `shared/models`: the sizes of its symbols, the ranges of its integers, and the step
    of a quantised output, relative to its largest element.
    """

    file: str
    sizes: Mapping[str, int] = field(default_factory=dict)
    integers: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    step: float = 0

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
    Architecture("real/maui_test_model.onnx", step=1 / 15),
)


def materialise(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with seeded random weights, by the script that comes with the light models."""
    spec = importlib.util.spec_from_file_location("materialise", SHARED / "materialise.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    result: onnx.ModelProto = module.materialise(model)
    return result


if SHARED.is_dir():

    @pytest.mark.parametrize("architecture", ARCHITECTURES, ids=lambda a: a.name)
    def test_real_architectures_match_onnxruntime(
        architecture: Architecture, tmp_path: Path
    ) -> None:
        check(*architecture.make(), tmp_path, architecture.step)
