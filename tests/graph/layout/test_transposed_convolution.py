"""Transposed convolutions by constant weights, from end to end: every stride, padding and group."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import webmlc

CASES: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "as wide as its stride": ((16, 1, 2, 2), (6, 8), {"strides": [2, 2]}),
    "overlapping": ((4, 3, 3, 3), (5, 7), {"strides": [2, 2], "pads": [1, 1, 1, 1]}),
    "larger output": (
        (4, 3, 3, 3),
        (5, 7),
        {"strides": [2, 2], "pads": [1, 1, 1, 1], "output_padding": [1, 1]},
    ),
    "of groups": ((4, 2, 4, 4), (5, 7), {"strides": [2, 2], "pads": [1] * 4, "group": 2}),
    "of channels": ((4, 1, 3, 3), (5, 7), {"strides": [2, 2], "group": 4}),
    "of channels, stride 1": ((3, 1, 3, 3), (5, 7), {"pads": [1, 1, 1, 1], "group": 3}),
    "dilated": ((3, 2, 3, 3), (5, 7), {"dilations": [2, 2], "pads": [0, 1, 1, 0]}),
    "dilated, strided": (
        (3, 2, 5, 5),
        (5, 7),
        {"strides": [3, 3], "dilations": [2, 2], "pads": [4] * 4, "output_padding": [1, 2]},
    ),
    "along one dimension": ((3, 2, 1, 5), (5, 7), {"strides": [1, 2], "pads": [0, 2, 0, 2]}),
    "with gaps": ((3, 2, 2, 2), (5, 7), {"strides": [3, 3]}),
    "of one spatial dimension": ((4, 3, 4), (9,), {"strides": [3], "pads": [1, 0]}),
    "of three": ((2, 3, 2, 3, 2), (3, 2, 4), {"strides": [2, 1, 3], "pads": [0, 1, 0, 1, 0, 0]}),
    "padded by more than the kernel": ((4, 2, 3, 3), (5, 7), {"strides": [2, 2], "pads": [3] * 4}),
}


@pytest.mark.parametrize("name", CASES)
def test_transposed_convolution_equals_onnxruntime(name: str, tmp_path: Path) -> None:
    weights, size, attributes = CASES[name]
    random = np.random.default_rng(0)
    outputs = weights[1] * attributes.get("group", 1)
    arrays = {"w": random.standard_normal(weights), "b": random.standard_normal(outputs)}
    constants = [numpy_helper.from_array(a.astype(np.float32), n) for n, a in arrays.items()]
    nodes = [
        helper.make_node("ConvTranspose", ["x", "w", "b"], ["c"], **attributes),
        helper.make_node("Sigmoid", ["c"], ["y"]),
    ]
    shape = [2, weights[0], *size]
    x_info = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
    y_info = helper.make_tensor_value_info(
        "y", TensorProto.FLOAT, [2, outputs, *"dhw"[: len(size)]]
    )
    graph = helper.make_graph(nodes, "g", [x_info], [y_info], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    x = random.standard_normal(shape).astype(np.float32)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    (expected,) = session.run(None, {"x": x})
    webmlc.build(model, tmp_path, target="wasm")
    found = webmlc.load(tmp_path, device="wasm").run({"x": x})["y"]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
