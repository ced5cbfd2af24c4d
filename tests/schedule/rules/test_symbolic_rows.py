"""Reductions of symbolic length on the CPU: each runs once, and no sum is one long one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx.parser
import pytest

import webmlc
from tests.graph.graphs import module
from webmlc.core.machine import RELAXED
from webmlc.graph.fuse.fuse import fuse
from webmlc.graph.layout.choose_layouts import choose_layouts
from webmlc.loops.kernel_form import CPU_FORM
from webmlc.loops.lower_module import lower_module
from webmlc.schedule.analysis import operations
from webmlc.schedule.rules import schedule_kernel


@pytest.mark.parametrize("shape", ["n", "1, n", "n, 4", "n, m"])
@pytest.mark.parametrize("axis", [0, -1])
def test_a_softmax_runs_its_reductions_once(shape: str, axis: int) -> None:
    text = f"g (float[{shape}] x) => (float[{shape}] y) {{ y = Softmax <axis: int = {axis}> (x) }}"
    (kernel,) = lower_module(fuse(choose_layouts(module(text))), CPU_FORM).kernels.values()
    scheduled = schedule_kernel(kernel, RELAXED).function
    assert operations(scheduled) <= 3 * operations(kernel)


def test_a_sum_along_several_symbolic_axes_counts_on(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 18]> g (float[n, c, m] x) => (float[c] y)'
        "<int64[2] axes = {0, 2}> { y = ReduceSum <keepdims: int = 0> (x, axes) }"
    )
    webmlc.build(model, tmp_path, target="wasm")
    loaded = webmlc.load(tmp_path, device="wasm")
    for shape in ((4100, 1, 4100), (1, 2, 3), (3, 2, 1), (0, 2, 5), (5, 3, 70)):
        result = loaded.run({"x": np.ones(shape, np.float32)})["y"]
        assert result.tolist() == [shape[0] * shape[2]] * shape[1]  # 4100² is more than 2²⁴
