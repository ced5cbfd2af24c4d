"""Test that long reductions are split into parts, and that the results of the parts are
combined.
"""

from __future__ import annotations

import numpy as np
import pytest

from tests.graph.graphs import module
from tests.schedule.checks import body_text
from tests.schedule.rules import kernels as k
from webmlc.core.expr import Expr
from webmlc.core.machine import WEBGPU
from webmlc.graph.fuse.fuse import fuse
from webmlc.graph.fuse.fusion_limits import FusionLimits
from webmlc.graph.layout.choose_layouts import choose_layouts
from webmlc.loops.interp import run
from webmlc.loops.ir import LoopFunction
from webmlc.loops.kernel_form import GPU_FORM
from webmlc.loops.lower_module import lower_module
from webmlc.loops.verify import verify
from webmlc.target.factor_reductions import factor_kernel, factor_reductions
from webmlc.target.split_kernels import fits_dispatch, split_kernels

S: Expr = k.S


def test_a_reduction_becomes_parts_and_a_sum_of_their_results() -> None:
    factored = factor_kernel(k.column_sums(4401, 4), WEBGPU)
    assert (
        body_text(factored)
        == """\
for sum_r0_0, sum_0, sum_r0_1 in T.grid(5, 4, 881):
    with T.block("sum_rf"):
        v_sum_0_1, vsum_r0_0, vsum_r0_1 = T.axis.remap("SSR", [sum_0, sum_r0_0, sum_r0_1])
        with T.init():
            sum_rf[vsum_r0_0, v_sum_0_1] = T.float32(0.0)
        sum_rf[vsum_r0_0, v_sum_0_1] = sum_rf[vsum_r0_0, v_sum_0_1] + T.select(\
vsum_r0_0 * 881 + vsum_r0_1 < 4401, x[vsum_r0_0 * 881 + vsum_r0_1, v_sum_0_1], T.float32(0.0))
for sum_0_2, sum_r0_0_1 in T.grid(4, 5):
    with T.block("sum"):
        v_sum_0_2, vsum_r0_0_1 = T.axis.remap("SR", [sum_0_2, sum_r0_0_1])
        with T.init():
            sum[v_sum_0_2] = T.float32(0.0)
        sum[v_sum_0_2] = sum[v_sum_0_2] + sum_rf[vsum_r0_0_1, v_sum_0_2]
for mean_0 in range(4):
    with T.block("mean"):
        v_mean_0 = T.axis.remap("S", [mean_0])
        out0[v_mean_0] = sum[v_mean_0] * T.float32(0.5)"""
    )
    assert not fits_dispatch(factored, WEBGPU)


FACTORED: dict[str, tuple[LoopFunction, dict[str, int]]] = {
    "columns": (k.column_sums(4200, 8), {}),
    "columns, symbolic": (k.column_sums(S, 8), {"s": 150}),
    "columns, fewer than parts": (k.column_sums(S, 8), {"s": 3}),
    "channels": (k.global_average(65, 4), {}),
    "channels, symbolic": (k.global_average(S, 8), {"s": 9}),
    "a row": (k.total(260, 260), {}),
    "a whole tensor, symbolic": (k.total(S, S), {"s": 21}),
    "a whole row, symbolic": (k.total(1, S, keep=1), {"s": 150}),
    "largest of a row": (k.total(1, 66_000, keep=1, combine="max"), {}),
    "softmax over channels": (k.softmax(1, 1100, 3, axis=1), {}),
}
"""Kernels whose reductions are split, with the values of their symbols."""
WHOLE: dict[str, LoopFunction] = {
    "columns that workgroups share": k.column_sums(4000, 8),
    "columns that fill the GPU": k.column_sums(5000, 40_000),
    "a row that a workgroup folds": k.total(2, 60_000, keep=1),
    "a symbolic row": k.total(2, S, keep=1),
    "no reduction": k.add(4, 5000),
}
"""Kernels that stay as they are."""


@pytest.mark.parametrize("case", FACTORED.values(), ids=FACTORED)
def test_split_reductions_have_the_same_results(
    case: tuple[LoopFunction, dict[str, int]],
) -> None:
    function, symbols = case
    factored = factor_kernel(function, WEBGPU)
    verify(factored)
    assert not fits_dispatch(factored, WEBGPU)
    data = k.arguments(function, symbols)
    run(factored, data, symbols)
    (expected,) = k.outputs_of(function, symbols)
    np.testing.assert_allclose(data[function.params[-1].name], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("function", WHOLE.values(), ids=WHOLE)
def test_other_reductions_are_unchanged(function: LoopFunction) -> None:
    assert factor_kernel(function, WEBGPU) is function


def test_each_part_becomes_a_separate_dispatch() -> None:
    text = """g (float[1,2,300,400] x) => (float[1,2,300,400] y) {
        m = ReduceMean<axes = [2, 3], keepdims = 1>(x)
        y = Sub(x, m)
    }"""
    fused = fuse(choose_layouts(module(text)), FusionLimits(buffers=8))
    lowered = lower_module(fused, GPU_FORM)
    cut = split_kernels(factor_reductions(lowered, WEBGPU), WEBGPU, fits_dispatch)
    names = [node.attributes["kernel"] for node in cut.main.nodes]
    assert len(names) == len(lowered.main.nodes) + 1
    parts = cut.kernels[names[0]].params[-1]
    assert [str(size) for size in parts.shape] == ["1", "2", "1", "1", "14"]
    assert all(fits_dispatch(cut.kernels[name], WEBGPU) for name in names)
