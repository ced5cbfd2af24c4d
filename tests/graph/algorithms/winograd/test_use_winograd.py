"""Winograd's form: when it is chosen, and the operators that it becomes."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from tests.graph.graphs import module, zeros
from webmlc.core.expr import as_int, const
from webmlc.core.machine import RELAXED, AlgorithmCosts
from webmlc.core.rewrite import evaluate
from webmlc.core.simplify import simplify
from webmlc.graph.algorithms.winograd.cost_model import (
    MAX_BLOCK_TAPS,
    TILES,
    Layer,
    best_forms,
    goes_by_rows,
)
from webmlc.graph.algorithms.winograd.operators import MANY_POINTS, Form
from webmlc.graph.algorithms.winograd.use_winograd import use_winograd
from webmlc.graph.ir import Module
from webmlc.graph.layout.choose_layouts import choose_layouts
from webmlc.graph.simplify.constants import hand_down_constants


def operators(graph: Module) -> list[str]:
    return [node.op for node in graph.main.nodes]


def convolution(channels: int, size: int, attributes: str = "pads = [1,1,1,1]") -> Module:
    text = f"""
    g (float[n,{channels},{size},{size}] x) => (float[n,o,h,w] y)
    <{zeros("w", 64, channels, 3, 3)}> {{ y = Conv <{attributes}> (x, w) }}
    """
    return use_winograd(choose_layouts(module(text)), RELAXED)


def test_a_convolution_becomes_transforms_around_products() -> None:
    graph = convolution(64, 60)
    assert operators(graph) == [
        "Transpose",
        "Pad",
        "WinogradWeights",
        "WinogradInput",
        "WinogradProduct",
        "WinogradOutput",
        "Transpose",
    ]
    (pad,) = [node for node in graph.main.nodes if node.op == "Pad"]
    # One row and column around the map; tiles of 3x5 cover it.
    assert graph.main.constants[pad.inputs[1]].tolist() == [0, 1, 1, 0, 0, 1, 1, 0]


def test_a_large_feature_map_is_transformed_by_rows_of_tiles() -> None:
    graph = convolution(64, 112)
    around = ["Transpose", "Pad"], ["Transpose"]
    assert operators(graph) == [*around[0], "WinogradWeights", "WinogradConv", *around[1]]
    (node,) = [node for node in graph.main.nodes if node.op == "WinogradConv"]
    *sizes, channels = graph.main.types[node.outputs[0]].shape[1:]
    assert [as_int(n) for n in (*sizes, channels)] == [112, 112, 64]


def test_windows_of_one_tap_stay_direct() -> None:
    text = f"""
    g (float[n,64,56,56] x) => (float[n,o,h,w] y)
    <{zeros("w", 64, 64, 1, 1)}> {{ y = Conv (x, w) }}
    """
    assert operators(use_winograd(choose_layouts(module(text)), RELAXED))[1] == "Conv"


def test_a_feature_map_with_one_dimension_is_one_row() -> None:
    text = f"""
    g (float[n,64,3000] x) => (float[n,o,w] y)
    <{zeros("w", 64, 64, 3)}> {{ y = Conv <pads = [1,1]> (x, w) }}
    """
    graph = use_winograd(choose_layouts(module(text)), RELAXED)
    (product,) = [node for node in graph.main.nodes if node.op == "WinogradProduct"]
    *planes, _, down, across, _ = graph.main.types[product.inputs[0]].shape
    assert [as_int(n) for n in (*planes, down, across)] == [1, 8, 1, 500]


def test_a_symbolic_batch_is_not_merged_with_the_tiles_of_an_image() -> None:
    graph = convolution(64, 56)
    (product,) = [node for node in graph.main.nodes if node.op == "WinogradProduct"]
    *planes, batch, down, across, _ = graph.main.types[product.inputs[0]].shape
    assert [as_int(n) for n in (*planes, down, across)] == [6, 6, 14, 14] and str(batch) == "n"


def test_windows_of_a_symbolic_feature_map_have_padding_for_their_tiles(monkeypatch) -> None:
    monkeypatch.setattr("webmlc.graph.algorithms.winograd.cost_model.TILES", (4,))
    monkeypatch.setattr(
        "webmlc.graph.algorithms.winograd.use_winograd.goes_by_rows", lambda *_: False
    )
    text = f"""
    g (float[n,64,h,w] x) => (float[n,o,a,b] y, float[n,p,c,d] z)
    <{zeros("short", 64, 64, 3, 3)}, {zeros("long", 64, 64, 5, 5)}> {{
      y = Conv (x, short) z = Conv (x, long)
    }}
    """
    graph = use_winograd(choose_layouts(module(text)), RELAXED).main
    forms = [node for node in graph.nodes if node.op in ("WinogradInput", "WinogradConv")]
    assert len(forms) == 2
    for node in forms:
        present, sizes = graph.types[node.inputs[0]].shape[1:3], node.attributes["sizes"]
        for form, extent, size in zip(node.attributes["forms"], present, sizes, strict=True):
            for n in range(5, 200):
                at = {"h": n, "w": n}
                assert evaluate(extent, at) >= evaluate(form.inputs(size), at)


def test_convolutions_in_branches_are_replaced_too() -> None:
    text = f"""
    g (bool c, float[1,64,60,60] x) => (float[1,64,60,60] y) <{zeros("w", 64, 64, 3, 3)}> {{
      y = If (c) <
        then_branch = t () => (float[1,64,60,60] a) {{ a = Conv <pads = [1,1,1,1]> (x, w) }},
        else_branch = e () => (float[1,64,60,60] b) {{
          s = Conv <pads = [1,1,1,1]> (x, w) b = Relu (s) }}
      >
    }}
    """
    graph = use_winograd(hand_down_constants(choose_layouts(module(text))), RELAXED)
    nodes = [node.op for function in graph.functions.values() for node in function.nodes]
    assert nodes.count("WinogradProduct") == 2 and "Conv" not in nodes


def dilated(size: int, attributes: str) -> list[str]:
    text = f"""
    g (float[1,64,{size}] x) => (float[1,o,w] y)
    <{zeros("w", 64, 64, 3)}> {{ y = Conv <{attributes}> (x, w) }}
    """
    return operators(use_winograd(choose_layouts(module(text)), RELAXED))


def test_windows_with_holes_have_tiles_that_interleave() -> None:
    assert "WinogradProduct" in dilated(8000, "dilations = [512], pads = [1024, 0]")
    assert "Conv" in dilated(1600, "dilations = [512]")  # 576 outputs, no two at this distance
    assert "Conv" in dilated(8000, "dilations = [4], strides = [2]")
    assert "WinogradProduct" in operators(convolution(64, 54, "dilations = [2,2]"))


@pytest.mark.parametrize("tile", [2, 3, 6])
@pytest.mark.parametrize("dilation", [1, 2, 5])
def test_the_taps_of_an_output_are_inputs_of_its_tile(tile: int, dilation: int) -> None:
    form, size = Form(3, 1, tile, 3, dilation=dilation), 50
    tiles = as_int(form.tiles(const(size)))
    assert tiles is not None
    inputs = as_int(form.inputs(const(size)))
    for place, tap in itertools.product(range(size), range(3)):
        at, inside = (as_int(index) for index in map(simplify, form.output(const(place))))
        assert at is not None and inside is not None and at < tiles and inside < tile
        source = as_int(simplify(form.input(const(at), inside + tap)))
        assert source == place + tap * dilation and inputs is not None and source < inputs


def test_channels_that_fill_no_vector_stay_direct() -> None:
    assert "Conv" in operators(convolution(62, 54))


@pytest.mark.parametrize(
    ("layer", "tiles"),
    [
        (Layer(64, 64, (56, 56)), (4, 4)),
        (Layer(256, 256, (14, 14)), (3, 3)),  # 4x5 would save multiplications, and read 11 MB
        (Layer(128, 128, (28, 28)), (4, 4)),  # more weights would save little
        (Layer(16, 64, (55, 55)), (5, 5)),
        (Layer(512, 512, (7, 7)), (2, 4)),  # 25 MB of weights; 3x4 would be 31 MB
        (Layer(128, 32, (14, 14)), (2, 2)),
        (Layer(64, 128, (28, 28), strides=(2, 2)), (2, 4)),
        (Layer(256, 256, (14, 14), strides=(2, 2)), (2, 2)),
        (Layer(256, 512, (7, 7), strides=(2, 2)), None),
        (Layer(3, 64, (112, 112), kernel=(7, 7), strides=(2, 2)), (5, 5)),  # folded
        (Layer(3, 32, (112, 112), strides=(2, 2)), None),  # as many products folded
        (Layer(8, 8, (172, 264), kernel=(3, 39)), (6, 4)),  # ten blocks of four taps
        (Layer(8, 32, (172, 88), kernel=(5, 5), strides=(1, 3)), (4, 2)),
        (Layer(256, 512, (508, 1), kernel=(5, 1)), (8, 1)),
        (Layer(256, 512, (1, 508), kernel=(1, 3)), (1, 6)),
        (Layer(96, 256, (26, 26), kernel=(5, 5), groups=2), (4, 4)),
        (Layer(96, 252, (26, 26), kernel=(5, 5), groups=2), None),  # 126 outputs: no whole panels
        (Layer(32, 9, (224, 224)), (5, 6)),  # twelve are made
        (Layer(32, 1, (224, 224)), None),  # four would be made
        (Layer(96, 256, (26, 26), kernel=(5, 5), groups=32), None),  # groups too small to save much
    ],
)
def test_the_cost_model(layer, tiles) -> None:
    forms = best_forms([layer] * 4, RELAXED).get(layer)
    assert (None if forms is None else tuple(form.tile for form in forms)) == tiles


def test_strides_are_folded_into_channels_that_fill_no_vector() -> None:
    assert Layer(3, 64, (112, 112), (7, 7), (2, 2)).folded(RELAXED) == Layer(
        12, 64, (112, 112), (4, 4)
    )
    assert Layer(3, 96, (54, 54), (11, 11), (4, 4)).folded(RELAXED) == Layer(
        48, 96, (54, 54), (3, 3)
    )
    for layer in (Layer(4, 8, (9, 9), strides=(2, 2)), Layer(3, 8, (9, 9)), Layer(5, 8, (9, 9))):
        assert layer.folded(RELAXED) == layer


def test_layers_with_equal_shapes_share_their_code() -> None:
    layer = Layer(128, 32, (14, 14))
    assert best_forms([layer], RELAXED) == {} and layer in best_forms([layer] * 24, RELAXED)


def test_long_windows_have_no_large_tiles() -> None:
    """Their tiles would need more than seven finite points, or eleven for windows over one
    dimension.
    """
    rows = {forms[0].tile for forms in Layer(8, 8, (24, 24), kernel=(5, 3)).forms(RELAXED)}
    columns = {forms[1].tile for forms in Layer(8, 8, (24, 24), kernel=(5, 3)).forms(RELAXED)}
    assert (rows, columns) == ({2, 3, 4}, {2, 3, 4, 5, 6})
    alone = Layer(8, 8, (24, 24), kernel=(5, 1)), Layer(8, 8, (1, 24), kernel=(1, 6))
    assert [max(max(f.tile for f in forms) for forms in a.forms(RELAXED)) for a in alone] == [8, 6]


@pytest.mark.parametrize(
    ("layer", "by_rows"),
    [
        (Layer(64, 64, (224, 224)), True),
        (Layer(64, 64, (28, 28)), False),  # the planes stay in the cache
        (Layer(256, 256, (56, 56)), False),  # the weights do not
        (Layer(8, 8, (172, 264), kernel=(3, 39)), False),  # blocks of taps share inputs' planes
    ],
)
def test_planes_hold_rows_if_those_of_the_feature_map_exceed_the_cache(layer, by_rows) -> None:
    assert goes_by_rows(layer, best_forms([layer] * 9, RELAXED)[layer], RELAXED) == by_rows


FORMS = [
    form
    for tile, taps, stride in itertools.product(TILES, range(1, MAX_BLOCK_TAPS + 1), (1, 2, 3))
    if (form := Form(taps, stride, tile, taps)).points <= len(MANY_POINTS)
]


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_transforms_are_exact(form: Form) -> None:
    """Test unit vectors in rational numbers: output(input(x) * weights(w)) equals the
    convolution.
    """
    matrices = form.transforms
    assert {len(row) for row in matrices.input} == {form.span}
    for n, tap, output in itertools.product(range(form.span), range(form.taps), range(form.tile)):
        planes = zip(matrices.output[output], matrices.input, matrices.weights, strict=True)
        value = sum(o * i[n] * w[tap] for o, i, w in planes)
        assert value == (n == output * form.stride + tap)


def test_forms_are_those_of_the_machine() -> None:
    """Where larger weights stay in the cache, larger tiles pay."""
    layer, large = (
        Layer(256, 256, (14, 14)),
        replace(RELAXED, costs=AlgorithmCosts(l2_resident_bytes=64 << 20)),
    )
    forms = [best_forms([layer] * 4, machine)[layer] for machine in (RELAXED, large)]
    small_tile, large_tile = (rows.tile * columns.tile for rows, columns in forms)
    assert small_tile < large_tile
