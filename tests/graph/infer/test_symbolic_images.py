"""Images of any size: strided convolutions, pools and a skip connection over symbolic sizes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import webmlc


@pytest.mark.parametrize("device", ["wasm", "webgpu"])
def test_one_package_runs_images_of_any_size(tmp_path: Path, device: str) -> None:
    rng = np.random.default_rng(0)
    weights = {
        "w0": rng.standard_normal((8, 3, 3, 3)).astype(np.float32),
        "w1": rng.standard_normal((8, 1, 3, 3)).astype(np.float32),
        "w2": rng.standard_normal((5, 8, 1, 1)).astype(np.float32),
        "w3": rng.standard_normal((1, 5, 1, 1)).astype(np.float32),
    }
    node = helper.make_node
    nodes = [
        node("Conv", ["x", "w0"], ["a"], strides=[2, 2], pads=[1, 1, 1, 1]),
        node("Relu", ["a"], ["b"]),
        node("Conv", ["b", "w1"], ["c"], strides=[2, 2], pads=[1, 1, 1, 1], group=8),
        node("MaxPool", ["b"], ["d"], kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]),
        node("Add", ["c", "d"], ["e"]),
        node("Conv", ["e", "w2"], ["f"]),
        node("Conv", ["f", "w3"], ["g"]),
        node("Sigmoid", ["g"], ["y"]),
    ]
    shape = ["batch", 3, "height", "width"]
    graph = helper.make_graph(
        nodes,
        "images",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["b", 1, "h", "w"])],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    opset = helper.make_opsetid("", 17)
    model = helper.make_model(graph, opset_imports=[opset], ir_version=8)
    webmlc.build(model, tmp_path / "package", target=device)  # type: ignore[arg-type]
    package = webmlc.load(tmp_path / "package", device)  # type: ignore[arg-type]
    session = onnxruntime.InferenceSession(model.SerializeToString())
    for sizes in ((1, 3, 8, 8), (2, 3, 17, 5), (1, 3, 33, 62)):
        x = rng.standard_normal(sizes).astype(np.float32)
        (wanted,) = session.run(None, {"x": x})
        np.testing.assert_allclose(package.run({"x": x})["y"], wanted, rtol=1e-4, atol=1e-5)
    package.dispose()
