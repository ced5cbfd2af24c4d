"""Winograd's form: where it is chosen, and what it is made of."""

from __future__ import annotations

import pytest

from tests.graph.graphs import module, zeros
from webmlc.core.expr import as_int
from webmlc.graph.choose_layouts import choose_layouts
from webmlc.graph.ir import Module
from webmlc.graph.use_winograd import Layer, best_tiles, use_winograd


def operators(made: Module) -> list[str]:
    return [node.op for node in made.main.nodes]


def convolution(channels: int, size: int, attributes: str = "pads = [1,1,1,1]") -> Module:
    text = f"""
    g (float[n,{channels},{size},{size}] x) => (float[n,o,h,w] y)
    <{zeros("w", 64, channels, 3, 3)}> {{ y = Conv <{attributes}> (x, w) }}
    """
    return use_winograd(choose_layouts(module(text)))


def test_a_convolution_is_transforms_around_products() -> None:
    made = convolution(64, 54)
    assert [name for name in operators(made) if name != "View"] == [
        "Transpose",
        "Pad",
        "WinogradInput",
        "WinogradWeights",
        "MatMul",
        "WinogradOutput",
        "Transpose",
    ]
    (pad,) = [node for node in made.main.nodes if node.op == "Pad"]
    # One row and column around the map, and two more after it for whole tiles.
    assert made.main.constants[pad.inputs[1]].tolist() == [0, 1, 1, 0, 0, 3, 3, 0]


def test_a_symbolic_batch_stays_apart_from_the_tiles_of_an_image() -> None:
    made = convolution(64, 54)
    (product,) = [node for node in made.main.nodes if node.op == "MatMul"]
    planes, batch, tiles, _ = made.main.types[product.inputs[0]].shape
    assert (as_int(planes), str(batch), as_int(tiles)) == (36, "n", 14 * 14)


@pytest.mark.parametrize("attributes", ["strides = [2,2]", "dilations = [2,2]"])
def test_other_windows_stay_direct(attributes) -> None:
    assert "Conv" in operators(convolution(64, 54, attributes))


def test_channels_that_fill_no_vector_stay_direct() -> None:
    assert "Conv" in operators(convolution(62, 54))


@pytest.mark.parametrize(
    ("channels", "outputs", "size", "expected"),
    [
        (64, 64, 56, 4),
        (256, 256, 14, 4),
        (16, 64, 55, 4),
        (512, 512, 7, 2),  # four tiles of 4x4 for 7x7 outputs would need 37 MB of weights
        (128, 32, 14, None),  # saves too little for its code
    ],
)
def test_the_cost_model(channels, outputs, size, expected) -> None:
    layer = Layer(channels, outputs, size, size)
    assert best_tiles([layer]).get(layer) == expected


def test_layers_of_one_shape_share_their_code() -> None:
    layer = Layer(128, 32, 14, 14)
    assert best_tiles([layer] * 24) == {layer: 4}
