"""Operators that people register by torch.library are nodes, which operators of webmlc define."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import webmlc
from webmlc import te
from webmlc.core.errors import ModelError, UnsupportedError
from webmlc.core.machine import Device


@torch.library.custom_op("example::smear", mutates_args=())
def torch_smear(x: Tensor, width: int = 3, *, scale: float = 1.0) -> Tensor:
    columns = torch.arange(x.shape[1])[:, None] + torch.arange(width)
    return scale * x[:, columns.clamp(max=x.shape[1] - 1)].sum(-1)


@torch_smear.register_fake
def _(x: Tensor, width: int = 3, *, scale: float = 1.0) -> Tensor:
    return torch.empty_like(x)


@webmlc.operator("example", "smear")
def smear(x: te.Tensor, *, width: int = 3, scale: float = 1.0) -> te.Tensor:
    k = te.reduce_axis((0, width), name="k")
    last = x.shape[1] - 1
    return te.compute(
        x.shape, lambda i, j: te.sum(scale * x[i, te.min(j + k, last)], axis=k), name="smear"
    )


torch.library.define(
    "example::extremes", "(Tensor x, Tensor? shift=None, int[] axes=[1]) -> (Tensor, Tensor)"
)


@torch.library.impl("example::extremes", "default")
def torch_extremes(x: Tensor, shift: Tensor | None = None, axes: Any = (1,)) -> Any:
    moved = x if shift is None else x + shift
    return moved.amin(tuple(axes)), moved.amax(tuple(axes))


@torch.library.register_fake("example::extremes")
def _(x: Tensor, shift: Tensor | None = None, axes: Any = (1,)) -> Any:
    return x.new_empty(x.shape[0]), x.new_empty(x.shape[0])


@webmlc.operator("example", "extremes")
def extremes(x: te.Tensor, shift: te.Tensor | None = None, *, axes: tuple[int, ...] = (1,)) -> Any:
    assert axes == (1,)
    n, m = x.shape
    k, r = te.reduce_axis((0, m), name="k"), te.reduce_axis((0, m), name="r")
    by = 0.0 if shift is None else shift[0]
    low = te.compute((n,), lambda i: te.min(x[i, k] + by, axis=k), name="low")
    high = te.compute((n,), lambda i: te.max(x[i, r] + by, axis=r), name="high")
    return low, high


@torch.library.custom_op("example::bend", mutates_args=())
def torch_bend(x: Tensor) -> Tensor:
    return torch.where(x > 1, x, 0.25 * x)


@torch_bend.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


@webmlc.operator("example", "bend")
def bend(x: te.Tensor) -> te.Tensor:
    return te.compute(x.shape, lambda *i: te.if_then_else(x[i] > 1.0, x[i], 0.25 * x[i]), "bend")


class Smeared(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        smeared = torch.ops.example.smear(x.relu(), 4, scale=0.5)
        low, high = torch.ops.example.extremes(smeared, y)
        least, _ = torch.ops.example.extremes(x)
        return torch_smear(smeared), low, high, least


class Bent(nn.Module):
    """The operator between two convolutions."""

    def __init__(self, middle: Any) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 4, 3, padding=1)
        self.middle = middle

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.middle(self.first(x)))


def compare(
    module: nn.Module, inputs: tuple[Tensor, ...], device: Device, folder: Path, *operators: Any
) -> int:
    """Compare a package with PyTorch; returns the number of its steps."""
    webmlc.build(module, folder, device, example_inputs=inputs, operators=operators)
    model = webmlc.load(folder, device=device)
    names = [port.name for port in model.inputs]
    outputs = model.run({n: x.numpy() for n, x in zip(names, inputs, strict=True)})
    expected = module(*inputs)
    expected = expected if isinstance(expected, tuple) else (expected,)
    for actual, wanted in zip(outputs.values(), expected, strict=True):
        np.testing.assert_allclose(actual, wanted.detach().numpy(), rtol=1e-4, atol=1e-5)
    steps = len(model.program.steps)
    model.dispose()
    return steps


@pytest.mark.parametrize("device", ["wasm", "webgpu"])
def test_arguments_are_attributes_and_tensors_are_inputs(device: Device, tmp_path: Path) -> None:
    inputs = (torch.randn(3, 6), torch.ones(1))
    compare(Smeared(), inputs, device, tmp_path, smear, extremes)


@pytest.mark.parametrize("device", ["wasm", "webgpu"])
def test_an_elementwise_operator_is_fused(device: Device, tmp_path: Path) -> None:
    inputs = (torch.randn(1, 3, 12, 12),)
    own = compare(Bent(torch_bend), inputs, device, tmp_path / "own", bend)
    assert own == compare(Bent(nn.LeakyReLU(0.25)), inputs, device, tmp_path / "theirs")


def test_the_code_of_the_documentation_runs(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "programs.md").read_text("utf-8")
    (block,) = re.findall(r"```py\n(.*?)```", page, re.S)
    (tmp_path / "page.py").write_text(block, "utf-8")
    result = subprocess.run(
        [sys.executable, "page.py"], cwd=tmp_path, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr


def test_a_missing_operator_names_the_page(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=r"example\.bend .*webmlc\.operator.*programs\.md"):
        webmlc.build(Bent(torch_bend), tmp_path, example_inputs=(torch.randn(1, 3, 8, 8),))


def test_arguments_that_onnx_does_not_have(tmp_path: Path) -> None:
    torch.library.define("example::typed", "(Tensor x, ScalarType kind) -> Tensor")
    torch.library.impl("example::typed", "default")(lambda x, kind: x.clone())
    torch.library.register_fake("example::typed")(lambda x, kind: torch.empty_like(x))

    class Typed(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.ops.example.typed(x, torch.int32)

    with pytest.raises(ModelError, match="operator typed has no translation"):
        webmlc.build(Typed(), tmp_path, example_inputs=(torch.zeros(2),))
