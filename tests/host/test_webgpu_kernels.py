"""In Python, a run compiles what it needs of a program's kernels and no earlier run needed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx.parser
import pytest

import webmlc
from webmlc.host.load import load
from webmlc.host.webgpu import WebGpuExecutor

SOFTMAX = (
    '<ir_version: 10, opset_import: ["": 18]> g (float[n,w] x) => (float[n,w] y) { y = Softmax(x) }'
)
BRANCHES = """<ir_version: 10, opset_import: ["": 18]>
g (float[4] x, bool c) => (float[4] y) {
    y = If (c) <
        then_branch = t () => (float[4] a) { a = Sin(x) },
        else_branch = e () => (float[4] b) { b = Cos(x) }
    >
}"""


def kernels_of(model: webmlc.Model) -> dict[str, tuple[bool, ...]]:
    """The sections of each compiled kernel."""
    executor = model._executors["webgpu"]
    assert isinstance(executor, WebGpuExecutor)
    return {entry: p.sections for entry, p in executor.kernels.pipelines.items()}


def build(text: str, folder: Path) -> webmlc.Model:
    model = onnx.parser.parse_model(text)
    webmlc.build(model, folder, target="webgpu", adapter="software")
    return load(folder, "webgpu")


def test_a_run_compiles_the_sections_that_it_needs(tmp_path: Path) -> None:
    model = build(SOFTMAX, tmp_path)
    assert kernels_of(model) == {}
    compiled = []
    for rows in (64, 3, 64):  # a section for eight rows and more, and another for fewer
        x = np.random.default_rng(rows).standard_normal((rows, 40)).astype(np.float32)
        exact = np.exp(x) / np.exp(x).sum(axis=-1, keepdims=True)
        np.testing.assert_allclose(model.run({"x": x})["y"], exact, atol=1e-6)
        compiled.append(kernels_of(model)["softmax"])
    assert compiled == [(False, True), (True, True), (True, True)]


@pytest.mark.parametrize("condition", [True, False])
def test_a_run_compiles_the_branch_that_it_takes(tmp_path: Path, condition: bool) -> None:
    model = build(BRANCHES, tmp_path)
    assert kernels_of(model) == {}
    x = np.arange(4, dtype=np.float32)
    result = model.run({"x": x, "c": np.array(condition)})["y"]
    np.testing.assert_allclose(result, np.sin(x) if condition else np.cos(x), atol=1e-6)
    assert len(kernels_of(model)) == 1
