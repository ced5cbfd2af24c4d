"""Layouts and fusion: the layout of each operator, and the operators of each kernel."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tests.graph.graphs import module, zeros
from webmlc.core.machine import WASM_MACHINES, WEBGPU
from webmlc.graph.fuse.fuse import fuse
from webmlc.graph.fuse.fusion_limits import FusionLimits
from webmlc.graph.ir import Module
from webmlc.graph.layout.choose_layouts import choose_layouts
from webmlc.graph.layout.weights import pack_convolution, pack_matrix
from webmlc.graph.ops.layout import PACK
from webmlc.graph.simplify.simplify_graph import simplify_graph


def operators(graph: Module) -> list[str]:
    return [node.op for node in graph.main.nodes]


def groups(graph: Module, limits: FusionLimits | None = None) -> list[str]:
    """The names of the kernels, which list their operators."""
    fused = fuse(simplify_graph(choose_layouts(graph)), limits)
    return [
        node.attributes["body"].name if node.op == "fused" else node.op for node in fused.main.nodes
    ]


RESIDUAL = f"""
g (float[1,8,6,6] x) => (float[1,8,6,6] y)
<{zeros("w", 8, 8, 3, 3)}, {zeros("b", 8)}, {zeros("v", 8, 8, 1, 1)}> {{
  a = Conv <pads = [1,1,1,1]> (x, w, b)
  c = Relu(a)
  d = Conv(c, v)
  e = Add(d, c)
  y = Relu(e)
}}
"""


def test_feature_maps_are_transposed_only_at_inputs_and_outputs() -> None:
    graph = choose_layouts(module(RESIDUAL))
    expected = "Transpose Pad Conv Add Relu Conv Add Relu Transpose"
    assert operators(graph) == expected.split()
    assert {n.domain for n in graph.main.nodes if n.op == "Conv"} == {"webmlc"}


def test_local_responses_are_normalised_with_channels_last() -> None:
    text = f"""
    g (float[1,8,9,9] x) => (float[1,8,4,4] y) <{zeros("w", 8, 8, 1, 1)}> {{
      a = Conv (x, w)
      b = LRN <size = 5> (a)
      y = MaxPool <kernel_shape = [3,3], strides = [2,2]> (b)
    }}
    """
    graph = choose_layouts(module(text))
    assert operators(graph) == ["Transpose", "Conv", "LRN", "MaxPool", "Transpose"]
    assert graph.main.nodes[2].attributes["axis"] == 3


def test_one_dimensional_feature_maps_have_channels_last() -> None:
    text = f"""
    g (float[1,8,12] x) => (float[1,6,8] y)
    <{zeros("w", 8, 8, 3)}, {zeros("v", 8, 8, 3)}> {{
      a = Conv <pads = [1,1]> (x, w)
      b = Erf(a)
      c = Conv <pads = [1,1], strides = [2]> (b, v)
      y = Transpose <perm = [0,2,1]> (c)
    }}
    """
    graph = simplify_graph(choose_layouts(module(text)))
    assert operators(graph) == ["Transpose", "Pad", "Conv", "Erf", "Pad", "Conv"]
    shapes = [graph.main.type(node.outputs[0]).static_shape for node in graph.main.nodes]
    assert shapes[2:] == [(1, 12, 8), (1, 12, 8), (1, 13, 8), (1, 6, 8)]


def test_views_that_keep_the_channels_keep_them_last() -> None:
    """Detector heads join the pixels of feature maps of several sizes, then put channels last."""
    text = f"""
    g (float[1,8,6,4] x) => (float[1,30,8] y)
    <{zeros("w", 8, 8, 1, 1)}, {zeros("v", 8, 8, 2, 2)}, int64[3] joined = {{1, 8, -1}}> {{
      a = Conv (x, w)
      b = Conv <strides = [2,2]> (x, v)
      c = Reshape (a, joined)
      d = Reshape (b, joined)
      e = Concat <axis = 2> (c, d)
      y = Transpose <perm = [0,2,1]> (e)
    }}
    """
    graph = simplify_graph(choose_layouts(module(text)))
    assert operators(graph) == ["Transpose", "Conv", "Conv", "View", "View", "Concat"]
    assert graph.main.nodes[-1].attributes["axis"] == 1


def test_a_view_that_splits_the_channels_reads_nchw() -> None:
    text = f"""
    g (float[1,8,6,4] x) => (float[1,2,96] y)
    <{zeros("w", 8, 8, 1, 1)}, int64[3] split = {{1, 2, 96}}> {{
      a = Conv (x, w)
      y = Reshape (a, split)
    }}
    """
    graph = simplify_graph(choose_layouts(module(text)))
    assert operators(graph) == ["Transpose", "Conv", "Transpose", "View"]


@pytest.mark.parametrize("name", ["MaxPool", "AveragePool", "LpPool"])
def test_pools_follow_the_layout_of_their_input(name: str) -> None:
    text = f"""g (float[1,8,6,6] x, float[8,8,1,1] w) => (float[1,8,2,2] y) {{
        c = Conv (x, w)
        p = {name} <kernel_shape = [3,3], strides = [2,2]> (c)
        y = Conv (p, w)
    }}"""
    nodes = choose_layouts(module(text)).main.nodes
    pools = [node for node in nodes if node.op == name]
    assert [node.domain for node in pools] == ["webmlc"]
    assert sum(node.op == "Transpose" for node in nodes) == 2  # of the model's input and output


@pytest.mark.parametrize(
    ("kernel", "stride", "pools"), [(5, 1, 2), (3, 1, 1), (7, 2, 2), (7, 7, 1)]
)
def test_a_maximum_over_large_windows_is_taken_along_rows_first(
    kernel: int, stride: int, pools: int
) -> None:
    sizes = f"kernel_shape = [{kernel},{kernel}], strides = [{stride},{stride}]"
    pool = f"MaxPool <{sizes}, pads = [1,1,1,1]> (x)"
    text = f"g (float[1,8,20,20] x) => (float[1,8,s,s] y) {{ y = {pool} }}"
    graph = simplify_graph(choose_layouts(module(text)))
    windows = [n.attributes["windows"] for n in graph.main.nodes if n.op == "MaxPool"]
    assert len(windows) == pools
    assert math.prod(math.prod(w.kernel) for w in windows) == kernel**2


@pytest.mark.parametrize(
    ("shape", "perm", "expected"),
    [
        ([1, 8, 36], [0, 2, 1], "Transpose Conv View"),  # of patches, a token each
        ([1, 8, 3, 2, 6], [0, 2, 3, 4, 1], "Transpose Conv View"),
        ([1, 4, 2, 6, 6], [0, 2, 1, 3, 4], "Transpose Conv Transpose View Transpose"),
    ],
)
def test_a_view_that_keeps_the_channels_keeps_them_last(
    shape: list[int], perm: list[int], expected: str
) -> None:
    result = ",".join(str(shape[d]) for d in perm)
    sizes = ",".join(map(str, shape))
    text = f"""
    g (float[1,8,6,6] x) => (float[{result}] y)
    <{zeros("w", 8, 8, 1, 1)}, int64[{len(shape)}] s = {{{sizes}}}> {{
      a = Conv(x, w)
      b = Reshape(a, s)
      y = Transpose <perm = {perm}> (b)
    }}
    """
    assert operators(simplify_graph(choose_layouts(module(text)))) == expected.split()


NEAREST = 'mode = "nearest", coordinate_transformation_mode = "asymmetric"'


@pytest.mark.parametrize(
    ("resize", "expected"),
    [
        ('<mode = "linear">', "Resample Resample"),
        (f'<{NEAREST}, nearest_mode = "ceil">', "Gather Gather"),
        (f'<{NEAREST}, nearest_mode = "floor">', "Repeat"),
    ],
)
def test_resized_feature_maps_keep_channels_last(resize: str, expected: str) -> None:
    text = f"""
    g (float[1,8,6,6] x) => (float[1,8,12,18] y)
    <{zeros("w", 8, 8, 1, 1)}, float[4] s = {{1.0, 1.0, 2.0, 3.0}}> {{
      a = Conv(x, w)
      b = Resize {resize} (a, , s)
      y = Conv(b, w)
    }}
    """
    graph = simplify_graph(choose_layouts(module(text)))
    assert operators(graph) == ["Transpose", "Conv", *expected.split(), "Conv", "Transpose"]


def test_shuffled_channels_stay_last() -> None:
    text = f"""
    g (float[1,8,6,6] x) => (float[1,8,6,6] y)
    <{zeros("w", 8, 4, 1, 1)}, {zeros("v", 8, 1, 3, 3)},
     int64[5] apart = {{1, 2, 4, 6, 6}}, int64[4] whole = {{1, 8, 6, 6}}> {{
      a = Conv <group = 2> (x, w)
      b = Reshape(a, apart)
      c = Transpose <perm = [0,2,1,3,4]> (b)
      d = Reshape(c, whole)
      e = Relu(d)
      y = Conv <group = 8, pads = [1,1,1,1]> (e, v)
    }}
    """
    graph = ["transpose", "conv_relu", "channelshuffle_pad", "depthwiseconv", "transpose"]
    assert groups(module(text)) == graph


def test_epilogues_join_their_contraction() -> None:
    assert groups(module(RESIDUAL)) == [
        "transpose_pad",
        "conv_relu",
        "conv_add_relu",
        "transpose",
    ]


def test_a_value_read_elsewhere_ends_the_group() -> None:
    text = f"""
    g (float[2,8] x) => (float[2,8] y, float[2,8] z)
    <{zeros("w", 8, 8)}> {{
      a = MatMul(x, w)
      y = Relu(a)
      b = Tanh(a)
      z = Mul(b, y)
    }}
    """
    assert groups(module(text)) == ["matmul", "relu", "tanh_mul"]


PADDED = f"""
g (float[1,8,HEIGHT,96] x) => (float[1,8,HEIGHT,96] y)
<{zeros("w", 8, 8, 1, 1)}, {zeros("v", 8, 1, 3, 3)}> {{
  a = Conv (x, w)
  b = Relu(a)
  c = Conv <group = 8, pads = [1,1,1,1]> (b, v)
  y = LAST
}}
"""


@pytest.mark.parametrize(
    ("height", "last", "expected"),
    [
        ("96", "Relu(c)", ["conv_relu_pad", "depthwiseconv_relu"]),
        ("80", "Relu(c)", ["conv_relu", "pad", "depthwiseconv_relu"]),
        ("96", "Add(c, b)", ["conv_relu", "pad", "depthwiseconv_add"]),
        ("h", "Relu(c)", ["conv_relu_pad", "depthwiseconv_relu"]),
    ],
    ids=["read once", "too small", "read twice", "of a symbolic size"],
)
def test_a_feature_map_is_written_into_its_padding(
    height: str, last: str, expected: list[str]
) -> None:
    text = PADDED.replace("HEIGHT", height).replace("LAST", last)
    names = groups(module(text), FusionLimits(pads="chosen"))
    assert [name for name in names if name != "transpose"] == expected
    assert "pad" in groups(module(text))


def test_branches_that_join_again_are_one_group() -> None:
    text = f"""
    g (float[2,8] x) => (float[2,8] y)
    <{zeros("w", 8, 8)}> {{
      a = MatMul(x, w)
      b = Sigmoid(a)
      y = Mul(a, b)
    }}
    """
    assert groups(module(text)) == ["matmul_sigmoid_mul"]


def test_the_limit_of_buffers_ends_a_group() -> None:
    inputs = ", ".join(f"float[4] x{i}" for i in range(6))
    sums = "\n".join(f"s{i} = Add({'x0' if i == 1 else f's{i - 1}'}, x{i})" for i in range(1, 6))
    text = f"g ({inputs}) => (float[4] y) {{\n{sums}\ny = Relu(s5)\n}}"
    assert groups(module(text)) == ["add_add_add_add"]
    assert len(groups(module(text), FusionLimits(buffers=4))) > 1


def test_a_transpose_that_moves_no_bytes_is_a_view() -> None:
    text = "g (float[1,8,1] x) => (float[8,1,1] y) { y = Transpose <perm = [1,2,0]> (x) }"
    assert operators(choose_layouts(module(text))) == ["View"]


def test_two_shapes_of_one_value_are_two_views() -> None:
    text = """
    g (float[2,6] x) => (float[2,6] y, float[6,2] z)
    <int64[2] s = {6,2}> {
      a = Relu(x)
      b = Reshape(a, s)
      z = Neg(b)
      y = Neg(a)
    }
    """
    graph = simplify_graph(choose_layouts(module(text)))
    shapes = {n.outputs[0]: graph.main.type(n.outputs[0]).static_shape for n in graph.main.nodes}
    assert sorted(s for s in shapes.values() if s) == [(2, 6), (2, 6), (6, 2), (6, 2)]


def test_a_matrix_too_large_for_a_gpu_binding_is_multiplied_in_parts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("webmlc.graph.layout.matrix_layouts.MAX_BINDING_BYTES", 2 * 4 * 8 * 4)
    weights = ",".join(["1"] * 80)
    text = f"""
    g (float[2,4] x) => (float[2,20] y) <float[4,20] w = {{{weights}}}> {{ y = MatMul(x, w) }}
    """
    graph = choose_layouts(module(text))
    assert operators(graph) == ["MatMul", "MatMul", "Concat"]
    columns = [str(graph.main.type(n.outputs[0]).shape[-1]) for n in graph.main.nodes]
    assert columns == ["16", "4", "20"]


def test_weights_are_packed_in_panels_of_eight() -> None:
    import numpy as np

    matrix = np.arange(30, dtype=np.float32).reshape(3, 10)
    packed = pack_matrix(matrix)
    assert packed.shape == (2, 3, 8)
    assert packed[0, 1].tolist() == matrix[1, :8].tolist()
    assert packed[1, 2].tolist() == [*matrix[2, 8:].tolist(), 0, 0, 0, 0, 0, 0]
    weights = np.arange(2 * 3 * 4, dtype=np.float32).reshape(4, 3, 2, 1)
    grouped = pack_convolution(weights, 2)
    assert grouped.shape == (2, 1, 2, 1, 3, 8)
    assert grouped[1, 0, 1, 0, 2, 1] == weights[3, 2, 1, 0]
    single = pack_convolution(weights[:1], 1)
    assert single.shape == (1, 2, 1, 3, 1)
    assert single[0, 1, 0, :, 0].tolist() == weights[0, :, 1, 0].tolist()


def test_a_transposed_convolution_becomes_a_convolution_with_an_epilogue() -> None:
    text = f"""
    g (float[1,8,4,4] x) => (float[1,1,8,8] y)
    <{zeros("w", 8, 1, 2, 2)}, {zeros("b", 1)}> {{
      a = ConvTranspose <strides = [2,2]> (x, w, b)
      y = Sigmoid(a)
    }}
    """
    names = [name for name in groups(module(text)) if name != "View"]
    assert names == ["transpose", "conv_sigmoid", "transpose"]


def test_a_concat_fuses_the_parts_that_only_it_reads() -> None:
    text = """
    g (float[1,2,8] x, float[1,2,4] z) => (float[1,2,8] y) <int64[1] s = {1}, int64[1] e = {8},
      int64[1] a = {2}, int64[1] t = {2}> {
      p = Slice(x, s, e, a, t)
      q = Tanh(z)
      y = Concat <axis = 2> (p, q)
    }
    """
    assert groups(module(text)) == ["slice_tanh_concat"]


def test_a_pointwise_group_fuses_the_values_that_only_it_reads() -> None:
    """The order of operands does not matter. Symbolic sizes count as equal unless one is
    broadcast.
    """
    text = """
    g (float[n,m,8] x, float[p,q,8] z) => (float[n,m,8] y) {
      a = Tanh(x)
      b = Sigmoid(z)
      c = Relu(b)
      y = Add(a, c)
    }
    """
    assert groups(module(text)) == ["tanh_sigmoid_relu_add"]


def test_a_broadcast_value_is_computed_once() -> None:
    text = """
    g (float[4,8] x, float[8] z) => (float[4,8] y) {
      a = Tanh(x)
      b = Sigmoid(z)
      y = Add(a, b)
    }
    """
    assert groups(module(text)) == ["sigmoid", "tanh_add"]


def test_a_packed_panel_is_as_wide_as_every_machine_s_register_tile() -> None:
    machines: list[Any] = [*WASM_MACHINES.values(), WEBGPU]
    assert {machine.tile.columns for machine in machines} == {PACK}
