"""Maps of one, two and three spatial dimensions: channels last inside, whatever their rank."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import webmlc


def model(rank: int) -> onnx.ModelProto:
    """Dense, grouped, depthwise and strided convolutions, pools, Pad, Concat, a scale a channel."""
    rng = np.random.default_rng(rank)

    def weights(outputs: int, inputs: int, size: int) -> np.ndarray:
        return rng.standard_normal((outputs, inputs, *(size,) * rank)).astype(np.float32)

    pads = [1] * (2 * rank)
    constants = {
        "dense": weights(16, 8, 3),
        "bias": weights(16, 1, 1).reshape(16),
        "grouped": weights(16, 16 // 2, 3),
        "depthwise": weights(16, 1, 3),
        "pointwise": weights(5, 32, 1),
        "scale": weights(16, 1, 1).reshape(16, *(1,) * rank),
        "amounts": np.array([0, 0, *(1,) * rank, 0, 0, *(0,) * rank], np.int64),
    }
    node = helper.make_node
    nodes = [
        node("Conv", ["x", "dense", "bias"], ["a"], strides=[2] * rank, pads=pads),
        node("Mul", ["a", "scale"], ["b"]),
        node("Conv", ["b", "grouped"], ["c"], group=2, pads=pads),
        node("Conv", ["b", "depthwise"], ["d"], group=16, pads=pads),
        node("MaxPool", ["c"], ["e"], kernel_shape=[3] * rank, pads=pads),
        node("AveragePool", ["d"], ["f"], kernel_shape=[3] * rank, pads=pads),
        node("Concat", ["e", "f"], ["g"], axis=1),
        node("Pad", ["g", "amounts"], ["h"]),
        node("Conv", ["h", "pointwise"], ["i"]),
        node("Sigmoid", ["i"], ["y"]),
        node("GlobalAveragePool", ["i"], ["z"]),
    ]
    value = helper.make_tensor_value_info
    shape = ["batch", 8, *(f"size{d}" for d in range(rank))]
    result = ["b", 5, *(None,) * rank]
    graph = helper.make_graph(
        nodes,
        "maps",
        [value("x", TensorProto.FLOAT, shape)],
        [value(name, TensorProto.FLOAT, result) for name in "yz"],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("device", ["wasm", "webgpu"])
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_maps_are_as_in_onnxruntime(tmp_path: Path, rank: int, device: str) -> None:
    made = model(rank)
    webmlc.build(made, tmp_path / "package", target=device)  # type: ignore[arg-type]
    package = webmlc.load(tmp_path / "package", device)  # type: ignore[arg-type]
    session = onnxruntime.InferenceSession(made.SerializeToString())
    rng = np.random.default_rng(0)
    for sizes in ((7, 6, 9)[:rank], (12, 5, 4)[:rank]):
        x = rng.standard_normal((2, 8, *sizes)).astype(np.float32)
        for name, wanted in zip("yz", session.run(["y", "z"], {"x": x}), strict=True):
            np.testing.assert_allclose(package.run({"x": x})[name], wanted, rtol=1e-4, atol=2e-5)
    package.dispose()
