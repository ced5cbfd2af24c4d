"""Long attention from end to end, against onnxruntime: heads, scale, mask, rows that are masked."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper

import webmlc

pytestmark = pytest.mark.xdist_group("attention")  # one worker builds what the tests share

QUERIES, KEYS, CHANNELS = 28, 43, 12


@pytest.fixture(scope="module")
def model() -> bytes:
    node = helper.make_node
    nodes = [
        node("Transpose", ["k"], ["kt"], perm=[0, 1, 3, 2]),
        node("MatMul", ["q", "kt"], ["scores"]),
        node("Constant", [], ["root"], value_float=3.5),
        node("Div", ["scores", "root"], ["scaled"]),
        node("Add", ["scaled", "mask"], ["logits"]),
        node("Softmax", ["logits"], ["p"], axis=-1),
        node("MatMul", ["p", "v"], ["y"]),
    ]
    shapes = {
        "q": [2, 3, QUERIES, CHANNELS],
        "k": [2, 3, KEYS, CHANNELS],
        "v": [2, 3, KEYS, CHANNELS],
        "mask": [2, 1, 1, KEYS],
        "y": [2, 3, QUERIES, CHANNELS],
    }
    values = {n: helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in shapes.items()}
    graph = helper.make_graph(
        nodes, "g", [values[n] for n in ("q", "k", "v", "mask")], [values["y"]]
    )
    opset = helper.make_opsetid("", 17)
    made = helper.make_model(graph, opset_imports=[opset], ir_version=8)
    return made.SerializeToString()


@pytest.fixture(scope="module")
def package(model: bytes, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("attention")
    (folder / "model.onnx").write_bytes(model)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("webmlc.graph.algorithms.attention.use_attention.SMALLEST", 0)
        manifest = webmlc.build(folder / "model.onnx", folder / "package", target="wasm")
    assert "attention" in [step.kernel for step in manifest.programs["wasm"].steps]
    return folder / "package"


@pytest.mark.parametrize("features", ["relaxed", "simd128"])
@pytest.mark.parametrize("threads", [1, 2])
def test_results_are_those_of_onnxruntime(
    model: bytes, package: Path, features: str, threads: int
) -> None:
    rng = np.random.default_rng(0)
    inputs = {n: rng.standard_normal((2, 3, QUERIES, CHANNELS)).astype(np.float32) for n in "q"}
    inputs |= {n: rng.standard_normal((2, 3, KEYS, CHANNELS)).astype(np.float32) for n in "kv"}
    inputs["mask"] = np.where(np.arange(KEYS) < [[[[30]]], [[[KEYS]]]], 0, -np.inf)
    inputs["mask"] = inputs["mask"].astype(np.float32)
    (wanted,) = onnxruntime.InferenceSession(model).run(None, inputs)
    loaded = webmlc.load(package, "wasm", threads, features)
    np.testing.assert_allclose(loaded.run(inputs)["y"], wanted, rtol=1e-5, atol=1e-6)
    loaded.dispose()
