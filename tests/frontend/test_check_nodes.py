"""Nodes that their operators do not permit, and what runs although ONNX's checker refuses it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

from webmlc.core.errors import ModelError
from webmlc.frontend.read_model import read_model
from webmlc.host.load import load
from webmlc.pipeline import build


def parse(body: str, opset: int = 21) -> onnx.ModelProto:
    text = (
        f'<ir_version: 8, opset_import: ["" : {opset}]> g (float[2, 4, 3] x) => (float[2, 4, 3] y)'
    )
    return onnx.parser.parse_model(f"{text} {{ {body} }}")


@pytest.mark.parametrize(
    ("body", "opset", "message"),
    [
        (
            "y = Gelu(x)",
            17,
            r"Gelu \(node 'y'\): the operator began with opset 20, and the model imports opset 17",
        ),
        ("y = Attention(x, x, x)", 18, "began with opset 23, and the model imports opset 18"),
        ("y = Add(x)", 21, r"Add \(node 'y'\) has 1 inputs; it takes 2"),
        ("y = Concat<axis: int = 0>()", 21, "has 0 inputs; it takes at least 1"),
        ("y, z = Relu(x)", 21, "has 2 outputs; it takes 1"),
        ("y = Relu<slope: int = 1>(x)", 21, "its operator has no attribute 'slope' in this opset"),
        ("y = Cast(x)", 21, "needs the attribute 'to'"),
        ("y = Elu<alpha: int = 1>(x)", 21, "attribute 'alpha' is of type INT; it must be FLOAT"),
    ],
)
def test_nodes_that_the_operator_refuses(body: str, opset: int, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        read_model(parse(body, opset))


def test_a_needed_input_without_a_name() -> None:
    model = parse("y = Add(x, x)")
    model.graph.node[0].input[1] = ""
    with pytest.raises(ModelError, match=r"Add \(node 'y'\) omits input 1, 'B': it needs it"):
        read_model(model)


def test_an_attribute_twice() -> None:
    model = parse("y = Elu<alpha: float = 1.0>(x)")
    model.graph.node[0].attribute.append(model.graph.node[0].attribute[0])
    with pytest.raises(ModelError, match=r"Elu \(node 'y'\) has the attribute 'alpha' twice"):
        read_model(model)


def without_shape(model: onnx.ModelProto) -> None:
    model.graph.output[0].type.tensor_type.ClearField("shape")


def without_type(model: onnx.ModelProto) -> None:
    model.graph.output[0].ClearField("type")


def without_name(model: onnx.ModelProto) -> None:
    model.graph.name = ""


def with_wrong_types(model: onnx.ModelProto) -> None:
    model.graph.value_info.append(helper.make_tensor_value_info("t", 1, [7, 7]))


def with_unused_domain(model: onnx.ModelProto) -> None:
    model.opset_import.append(helper.make_opsetid("not.used", 3))


@pytest.mark.parametrize(
    "change", [without_shape, without_type, without_name, with_wrong_types, with_unused_domain]
)
def test_parts_that_only_the_checker_needs(change: object, tmp_path: Path) -> None:
    model = parse("t = Relu(x) y = Neg(t)")
    assert callable(change)
    change(model)
    compare(model, tmp_path)


@pytest.mark.parametrize("opset", [18, 20])
def test_group_normalization_of_old_opsets(opset: int, tmp_path: Path) -> None:
    """It has a scale for each group, and was deprecated in these opsets."""
    nodes = """s = Constant<value_floats: floats = [0.5, 2.0]>()
        b = Constant<value_floats: floats = [1.0, -1.0]>()
        y = GroupNormalization<num_groups: int = 2>(x, s, b)"""
    compare(parse(nodes, opset), tmp_path)


def test_layer_normalization_of_old_opsets(tmp_path: Path) -> None:
    """onnxruntime runs it in opsets before the one that introduced it."""
    nodes = "s = Constant<value_floats: floats = [0.5, 2.0, 1.0]>() y = LayerNormalization(x, s)"
    compare(parse(nodes, 13), tmp_path)


def compare(model: onnx.ModelProto, folder: Path) -> None:
    """Compare the package of a model with onnxruntime."""
    x = np.random.default_rng(0).standard_normal((2, 4, 3)).astype(np.float32)
    expected = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})[0]
    build(model, folder, "wasm", cache=False)
    package = load(folder)
    assert np.allclose(package.run({"x": x})["y"], expected, 1e-4, 1e-5)
    package.dispose()
