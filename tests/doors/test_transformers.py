"""Models of Hugging Face's transformers compute what PyTorch computes, through two exporters: the
door's (`dynamo`), and the older one, which wrote most ONNX files that people have (`legacy`).

CI runs a dozen architectures. This command runs all of them:

    .venv-doors/bin/python -m pytest -q tests/doors/test_transformers.py --architectures all
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import webmlc
from tests.doors.architectures import ARCHITECTURES, ON_GPU, REFUSED, Exporter, Inputs
from webmlc.core.errors import ModelError

TOLERANCE = 1e-4
BATCHES = (1, 3)
AXES = {"input_ids": "tokens", "attention_mask": "tokens", "decoder_input_ids": "targets"}
"""The symbolic second axis of the inputs that have one."""

torch.set_num_threads(1)  # a second process runs the other doors
transformers.logging.set_verbosity_error()


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A cache, as users have one. Architectures share kernels."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WEBMLC_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def tensors(result: Any) -> list[Tensor]:
    """All tensors that a model returns, in their order."""
    return [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, Tensor)]


def made(architecture: str) -> nn.Module:
    """The model, with weights that are not what it was initialised with, such as biases of 0."""
    torch.manual_seed(0)
    model = ARCHITECTURES[architecture].model().eval()
    for parameter in model.parameters():
        parameter.data += 0.05 * torch.randn_like(parameter)
    return model


def inputs_of(architecture: str, batch: int) -> Inputs:
    torch.manual_seed(batch)
    return ARCHITECTURES[architecture].inputs(batch)


def dynamic_shapes(inputs: Inputs) -> dict[str, dict[int, str]]:
    """A symbolic batch, and symbolic lengths of texts."""
    shapes = {name: {0: "batch"} for name in inputs}
    for name, symbol in AXES.items():
        if name in inputs:
            shapes[name][1] = symbol
    return shapes


class Flat(nn.Module):
    """A model that takes its inputs in order and returns its tensors in order: what the legacy
    exporter can trace.
    """

    def __init__(self, model: nn.Module, names: list[str]) -> None:
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        return tuple(tensors(self.model(**dict(zip(self.names, inputs, strict=True)))))


def build(model: nn.Module, inputs: Inputs, exporter: Exporter, folder: Path, target: Any) -> None:
    if exporter == "dynamo":
        webmlc.build(
            model, folder, target, example_inputs=inputs, dynamic_shapes=dynamic_shapes(inputs)
        )
        return
    path = folder.with_suffix(".onnx")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            Flat(model, list(inputs)).eval(),  # else it leaves the model in training mode
            tuple(inputs.values()),
            str(path),
            input_names=list(inputs),
            dynamic_axes=dynamic_shapes(inputs),
            dynamo=False,
            opset_version=17,
        )
    webmlc.build(path, folder, target)


@pytest.mark.parametrize("exporter", ["dynamo", "legacy"])
def test_an_architecture_equals_pytorch(
    architecture: str, exporter: Exporter, tmp_path: Path
) -> None:
    model, inputs = made(architecture), inputs_of(architecture, 2)
    is_on_gpu = architecture in ON_GPU and exporter == "dynamo"
    folder, target = tmp_path / "package", "both" if is_on_gpu else "wasm"
    if (refusal := REFUSED.get((architecture, exporter))) is not None:
        with pytest.raises((ModelError, torch.onnx.errors.OnnxExporterError), match=refusal):
            build(model, inputs, exporter, folder, target)
        return
    build(model, inputs, exporter, folder, target)
    for device in ("wasm", "webgpu") if is_on_gpu else ("wasm",):
        package = webmlc.load(folder, device=device)  # type: ignore[arg-type]
        names = [port.name for port in package.inputs]
        for batch in BATCHES:
            feeds = inputs_of(architecture, batch)
            with torch.no_grad():
                expected = tensors(model(**feeds))
            outputs = package.run({name: feeds[name].numpy() for name in names})
            for (name, output), value in zip(outputs.items(), expected, strict=True):
                np.testing.assert_allclose(
                    output, value.numpy(), TOLERANCE, TOLERANCE, err_msg=f"{name}, batch {batch}"
                )
        package.dispose()
