"""Convolutions by float16 constants that a Cast widens: in NHWC, and with halves in the package."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import webmlc
from webmlc.pipeline import shared_graph

SHAPES = {"Conv": (192, 128, 3, 3), "ConvTranspose": (128, 192, 3, 3)}
"""The shapes of the weights, which are too large to be widened in the package."""


def model(op: str) -> Any:
    random = np.random.default_rng(0)
    weights = random.standard_normal(SHAPES[op]).astype(np.float16)
    nodes = [
        helper.make_node("Cast", ["halves"], ["w"], to=TensorProto.FLOAT),
        helper.make_node(op, ["x", "w"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["y"]),
    ]
    infos = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", channels, 5, 6])
        for name, channels in (("x", 128), ("y", 192))
    ]
    constants = [numpy_helper.from_array(weights, "halves")]
    graph = helper.make_graph(nodes, "g", infos[:1], infos[1:], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("op", SHAPES)
def test_a_convolution_by_widened_halves(op: str, tmp_path: Path) -> None:
    source = model(op)
    main = shared_graph(source).main
    (convolution,) = (node for node in main.nodes if node.op == "Conv")
    (cast,) = (node for node in main.nodes if node.op == "Cast")
    assert convolution.domain == "webmlc"
    assert convolution.inputs[1] == cast.outputs[0]
    assert main.constants[cast.inputs[0]].dtype == np.float16
    webmlc.build(source, tmp_path, target="wasm")
    x = np.random.default_rng(1).standard_normal((2, 128, 5, 6)).astype(np.float32)
    (expected,) = onnxruntime.InferenceSession(source.SerializeToString()).run(None, {"x": x})
    actual = webmlc.load(tmp_path, device="wasm").run({"x": x})["y"]
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-3)
