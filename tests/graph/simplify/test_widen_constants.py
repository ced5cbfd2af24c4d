"""Constants of half precision: Casts at load, or float32 for passes that read the numbers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type
from onnx import TensorProto, helper, numpy_helper

from tests.language_models.small_models import LLAMA, write_model
from webmlc.build_options import BuildOptions
from webmlc.core.dtypes import DType
from webmlc.core.stages import ignore
from webmlc.frontend.read_model import read_model
from webmlc.graph.infer.evaluate_module import evaluate_module
from webmlc.graph.infer.infer_shapes import infer_shapes
from webmlc.graph.infer.normalise import normalise
from webmlc.graph.ir import Module
from webmlc.graph.simplify.fold_constants import widen_constants
from webmlc.pipeline import kernel_module, shared_graph
from webmlc.target.targets import TARGETS

HALVES = (DType.float16, DType.bfloat16)


def product(weights: np.ndarray) -> Module:
    """A product with widened weights, which a Gather reads as halves, too."""
    nodes = [
        helper.make_node("Cast", ["w"], ["wide"], to=TensorProto.FLOAT),
        helper.make_node("MatMul", ["x", "wide"], ["y"]),
        helper.make_node("Gather", ["w", "i"], ["rows"]),
        helper.make_node("Cast", ["rows"], ["z"], to=TensorProto.FLOAT),
    ]
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [3, 8]),
        helper.make_tensor_value_info("i", TensorProto.INT64, [2]),
    ]
    outputs = [
        helper.make_tensor_value_info("y", TensorProto.FLOAT, [3, 5]),
        helper.make_tensor_value_info("z", TensorProto.FLOAT, [2, 5]),
    ]
    graph = helper.make_graph(nodes, "g", inputs, outputs, [numpy_helper.from_array(weights, "w")])
    opset = helper.make_opsetid("", 20)
    model = helper.make_model(graph, opset_imports=[opset], ir_version=10)
    return infer_shapes(normalise(read_model(model)))


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_casts_of_constants_are_folded(dtype: type) -> None:
    rng = np.random.default_rng(0)
    module = product(rng.standard_normal((8, 5)).astype(dtype))
    after = widen_constants(module)
    assert [node.op for node in after.main.nodes] == ["MatMul", "Gather", "Cast"]
    assert sorted(str(array.dtype) for array in after.main.constants.values()) == sorted(
        ["float32", np.dtype(dtype).name]
    )
    feeds = {"x": rng.standard_normal((3, 8)).astype(np.float32), "i": np.array([7, 1])}
    expected, results = evaluate_module(module, feeds), evaluate_module(after, feeds)
    for name, array in expected.items():
        np.testing.assert_array_equal(results[name], array)
    assert widen_constants(after) is after


@pytest.mark.parametrize("type_", [Type.F16, Type.BF16])
def test_a_decoder_stores_halves(type_: Type, tmp_path: Path) -> None:
    path = tmp_path / "small.gguf"
    model = replace(LLAMA, types=(type_,), layers=1, width=56, hidden=1000)
    write_model(path, model)
    module = shared_graph(path, watch=ignore)

    def stored(device: str) -> list[bool]:
        """For each large matrix, if it is stored in half precision. Small ones are folded."""
        constants = kernel_module(module, TARGETS[device], ignore).main.constants.values()
        return [DType.of(a.dtype) in HALVES for a in constants if a.size >= 56 * 1000]

    assert stored("wasm") == stored("webgpu") == [True] * 3
    operators = {n.op for n in shared_graph(path, BuildOptions(quantise="int8"), ignore).main.nodes}
    assert "PackedBlockProduct" in operators
    assert "MatMul" not in operators
