"""Lowering fused groups to loops: golden text, and parts that cover their output."""

# ruff: noqa: E501  (golden text)

from __future__ import annotations

import numpy as np
import pytest

from tests.graph.graphs import module, zeros
from webmlc.graph.fuse.fuse import fuse
from webmlc.graph.layout.choose_layouts import choose_layouts
from webmlc.loops.interp import run
from webmlc.loops.ir import LoopFunction, blocks
from webmlc.loops.kernel_form import CPU_FORM, GPU_FORM, KernelForm
from webmlc.loops.lower_module import lower_module
from webmlc.loops.text import print_function
from webmlc.loops.verify import verify


def kernels(text: str, form: KernelForm = CPU_FORM) -> dict[str, LoopFunction]:
    lowered = lower_module(fuse(choose_layouts(module(text))), form)
    for kernel in lowered.kernels.values():
        verify(kernel)
    return dict(lowered.kernels)


GEMM = f"""
g (float[n,4] x) => (float[n,3] y)
<{zeros("w", 4, 3)}, {zeros("b", 3)}> {{
  a = Gemm(x, w, b)
  y = Relu(a)
}}
"""


def test_a_group_is_one_function_of_two_blocks() -> None:
    (kernel,) = kernels(GEMM).values()
    assert (
        print_function(kernel)
        == """\
@T.kernel(origin=['a', 'y'])
def matmul_add_relu(
    in0: T.Buffer((n, 4), "float32"),
    in1: T.Buffer((1, 4, 8), "float32"),
    in2: T.Buffer((3,), "float32"),
    out0: T.Output((n, 3), "float32"),
    n: T.symbol,
):
    matmul = T.alloc_buffer((n, 3), "float32")
    for matmul_0, matmul_1, matmul_r0 in T.grid(n, 3, 4):
        with T.block("matmul"):
            v_matmul_0, v_matmul_1, v_matmul_r0 = T.axis.remap("SSR", [matmul_0, matmul_1, matmul_r0])
            with T.init():
                matmul[v_matmul_0, v_matmul_1] = T.float32(0.0)
            matmul[v_matmul_0, v_matmul_1] = matmul[v_matmul_0, v_matmul_1] + in0[v_matmul_0, v_matmul_r0] * in1[v_matmul_1 // 8, v_matmul_r0, v_matmul_1 % 8]
    for relu_0, relu_1 in T.grid(n, 3):
        with T.block("relu"):
            v_relu_0, v_relu_1 = T.axis.remap("SS", [relu_0, relu_1])
            out0[v_relu_0, v_relu_1] = T.max(matmul[v_relu_0, v_relu_1] + in2[v_relu_1], T.float32(0.0))"""
    )


def test_equal_groups_are_one_kernel() -> None:
    text = (
        "g (float[2,3] x) => (float[2,3] y, float[2,3] z) { y = Tanh(x) a = Relu(y) z = Tanh(a) }"
    )
    made = kernels(text)
    assert sorted(made) == ["relu_tanh", "tanh"] or len(made) == 2


def test_pads_and_concats_write_disjoint_parts_that_cover_the_output() -> None:
    text = """
    g (float[1,2,3,4] x) => (float[1,2,6,7] y, float[2,2,3,4] z)
    <int64[8] p = {0,0,1,2,0,0,2,1}> {
      y = Pad <mode = "constant"> (x, p)
      z = Concat <axis = 0> (x, x)
    }
    """
    x = np.random.default_rng(0).normal(size=(1, 2, 3, 4)).astype(np.float32)
    expected = {
        "pad": np.pad(x, ((0, 0), (0, 0), (1, 2), (2, 1))),
        "concat": np.concatenate([x, x]),
    }
    for name, kernel in kernels(text).items():
        written = np.full(expected[name].shape, np.nan, np.float32)
        inputs = {b.name: x for b in kernel.params[: -kernel.outputs]}
        run(kernel, {**inputs, "out0": written}, {})
        assert np.array_equal(written, expected[name])
        assert len(list(blocks(kernel.body))) > 1
    for kernel in kernels(text, GPU_FORM).values():  # one dispatch: no block may wait for another
        assert len(list(blocks(kernel.body))) == 1


@pytest.mark.parametrize("mode", ["reflect", "edge", "wrap"])
@pytest.mark.parametrize("pads", [(0, 0, 0, 3), (0, 2, 0, 0), (2, 1, 1, 2)])
def test_a_map_padded_with_its_own_elements_is_copied_as_it_is(mode, pads) -> None:
    """Only what is past its ends is looked up, element by element."""
    text = f"""
    g (float[n,m] x) => (float[p,q] y) <int64[4] p = {{{",".join(map(str, pads))}}}> {{
      y = Pad <mode = "{mode}"> (x, p)
    }}
    """
    (kernel,) = kernels(text).values()
    assert len(list(blocks(kernel.body))) == 1 + sum(size > 0 for size in pads)
    x = np.random.default_rng(0).normal(size=(4, 5)).astype(np.float32)
    expected = np.pad(x, tuple(zip(pads[:2], pads[2:], strict=True)), mode)
    written = np.full(expected.shape, np.nan, np.float32)
    run(kernel, {"in0": x, "out0": written}, {"n": 4, "m": 5})
    assert np.array_equal(written, expected)


def test_what_maps_a_concat_is_written_part_by_part() -> None:
    text = """
    g (float[n,3,4] a, float[n,3,2] b, float[6] k) => (float[n,3,6] y) {
      c = Concat <axis = -1> (a, b)
      d = Add(c, k)
      y = Relu(d)
    }
    """
    (kernel,) = kernels(text).values()
    assert len(list(blocks(kernel.body))) == 2
    assert "select" not in print_function(kernel)
    rng = np.random.default_rng(0)
    a, b, k = (rng.normal(size=s).astype(np.float32) for s in ((2, 3, 4), (2, 3, 2), (6,)))
    written = np.full((2, 3, 6), np.nan, np.float32)
    run(kernel, {"in0": a, "in1": b, "in2": k, "out0": written}, {"n": 2})
    assert np.array_equal(written, np.maximum(np.concatenate([a, b], -1) + k, 0))


def test_expensive_values_are_stored_for_the_stages_that_share_them() -> None:
    text = "g (float[4,16] x) => (float[4,16] y) { y = Softmax <axis = -1> (x) }"
    names = [b.name for b in next(iter(kernels(text).values())).allocations]
    assert len(names) == 3  # the maximum, the exponentials, their sum
    assert len(next(iter(kernels(text, GPU_FORM).values())).allocations) == 2


def test_what_only_a_cpu_can_hold_stays_there() -> None:
    text = "g (double[4] x, int64[4] f) => (double[4] y, int64[4] z) { y = Neg(x) z = Neg(f) }"
    made = lower_module(fuse(choose_layouts(module(text))), GPU_FORM)
    places = {n.outputs[0]: n.attributes["device"] for n in made.main.nodes}
    assert places == {"y": "wasm", "z": "webgpu"}
    reasons = {n.outputs[0]: n.attributes.get("reason") for n in made.main.nodes}
    assert reasons == {"y": "a shader has no values of float64", "z": None}


SCATTER = """
g (float[n,3] x, int64[m,1] i, float[m,3] u) => (float[n,3] y) {
  y = ScatterND <reduction = "add"> (x, i, u)
}
"""


def test_a_scatter_copies_then_updates_in_order() -> None:
    (kernel,) = kernels(SCATTER).values()
    assert (
        print_function(kernel)
        == """\
@T.kernel(origin=['y'])
def scatternd(
    in0: T.Buffer((n, 3), "float32"),
    in1: T.Buffer((m, 1), "int64"),
    in2: T.Buffer((m, 3), "float32"),
    out0: T.Output((n, 3), "float32"),
    m: T.symbol,
    n: T.symbol,
):
    for scatter_nd_0, scatter_nd_1 in T.grid(n, 3):
        with T.block("scatter_nd"):
            v_scatter_nd_0, v_scatter_nd_1 = T.axis.remap("SS", [scatter_nd_0, scatter_nd_1])
            out0[v_scatter_nd_0, v_scatter_nd_1] = in0[v_scatter_nd_0, v_scatter_nd_1]
    for scatter_nd_updates_0, scatter_nd_updates_r0 in T.grid(3, m):
        with T.block("scatter_nd_updates"):
            v_scatter_nd_updates_0, v_scatter_nd_updates_r0 = T.axis.remap("SR", [scatter_nd_updates_0, scatter_nd_updates_r0])
            T.where((T.select(T.cast(in1[scatter_nd_updates_r0, 0], 'int32') < 0, T.cast(in1[scatter_nd_updates_r0, 0], 'int32') + n, T.cast(in1[scatter_nd_updates_r0, 0], 'int32')) >= 0) & (T.select(T.cast(in1[scatter_nd_updates_r0, 0], 'int32') < 0, T.cast(in1[scatter_nd_updates_r0, 0], 'int32') + n, T.cast(in1[scatter_nd_updates_r0, 0], 'int32')) < n))
            out0[T.select(T.cast(in1[v_scatter_nd_updates_r0, 0], 'int32') < 0, T.cast(in1[v_scatter_nd_updates_r0, 0], 'int32') + n, T.cast(in1[v_scatter_nd_updates_r0, 0], 'int32')), v_scatter_nd_updates_0] = out0[T.select(T.cast(in1[v_scatter_nd_updates_r0, 0], 'int32') < 0, T.cast(in1[v_scatter_nd_updates_r0, 0], 'int32') + n, T.cast(in1[v_scatter_nd_updates_r0, 0], 'int32')), v_scatter_nd_updates_0] + in2[v_scatter_nd_updates_r0, v_scatter_nd_updates_0]"""
    )
    x, u = np.ones((2, 3), np.float32), np.full((4, 3), 2, np.float32)
    places = np.array([[1], [-1], [2], [-3]])  # the last two are outside
    out = np.empty_like(x)
    symbols = {symbol.name: 4 if symbol.name == "m" else 2 for symbol in kernel.symbols}
    run(kernel, {"in0": x, "in1": places, "in2": u, "out0": out}, symbols)
    np.testing.assert_array_equal(out, [[1, 1, 1], [5, 5, 5]])
