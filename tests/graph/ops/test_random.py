"""Random numbers: published test vectors of the generator, the distributions, and their streams."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto, helper

from webmlc.core.dtypes import DType
from webmlc.core.expr import const
from webmlc.frontend.read_model import read_model
from webmlc.graph.compute import Tensor, compute
from webmlc.graph.infer.evaluate import evaluate, evaluate_module
from webmlc.graph.infer.infer_shapes import infer_shapes
from webmlc.graph.infer.normalise import normalise
from webmlc.graph.ir import Array
from webmlc.graph.ops.random import threefry

N, U32 = 40_000, DType.uint32


def draw(op: str, x: Array, output: int = TensorProto.FLOAT, **attributes: Any) -> Array:
    element = helper.np_dtype_to_tensor_dtype(x.dtype)
    inputs = [helper.make_tensor_value_info("x", element, x.shape)]
    shape = (len(x), attributes["sample_size"]) if op == "Multinomial" else x.shape
    outputs = [helper.make_tensor_value_info("y", output, shape)]
    node = helper.make_node(op, ["x"], ["y"], **attributes)
    graph = helper.make_graph([node], op, inputs, outputs)
    opset = helper.make_opsetid("", 22)
    model = helper.make_model(graph, opset_imports=[opset], ir_version=8)
    module = infer_shapes(normalise(read_model(model)))
    return evaluate_module(module, {"x": x})["y"]


def test_threefry_gives_its_authors_known_answer() -> None:
    def word(number: int) -> Tensor:
        return compute("word", (const(1),), lambda i: threefry((0, 0), i.astype(U32))[number])

    words = evaluate([word(0), word(1)], {})
    assert [int(w[0]) for w in words] == [0x6B200159, 0x99BA4EFE]


def test_uniform_numbers() -> None:
    y = draw("RandomUniformLike", np.zeros(N, np.float32), low=2.0, high=4.0)
    assert 2.0 <= y.min() < 2.01
    assert 3.99 < y.max() < 4.0
    histogram, _ = np.histogram(y, 16, (2.0, 4.0))
    assert abs(histogram / N * 16 - 1).max() < 0.08


def test_normal_numbers() -> None:
    y = draw("RandomNormalLike", np.zeros((200, 200), np.float32), mean=1.0, scale=2.0)
    assert y.shape == (200, 200)
    assert abs(y.mean() - 1) < 0.05
    assert abs(y.std() - 2) < 0.05
    assert abs(np.corrcoef(y[:-1].ravel(), y[1:].ravel())[0, 1]) < 0.02


def test_multinomial_follows_the_probabilities() -> None:
    p = np.array([[0.1, 0.6, 0.3]], np.float32)
    y = draw("Multinomial", np.log(p), TensorProto.INT32, sample_size=N)
    assert y.dtype == np.int32
    np.testing.assert_allclose(np.bincount(y.ravel(), minlength=3) / N, p[0], atol=0.01)


def test_training_drops_by_the_ratio() -> None:
    x = np.ones(N, np.float32)
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)]
    outputs = [
        helper.make_tensor_value_info("y", TensorProto.FLOAT, x.shape),
        helper.make_tensor_value_info("mask", TensorProto.BOOL, x.shape),
    ]
    constants = [
        helper.make_tensor("ratio", TensorProto.FLOAT, (), [0.25]),
        helper.make_tensor("training", TensorProto.BOOL, (), [True]),
    ]
    node = helper.make_node("Dropout", ["x", "ratio", "training"], ["y", "mask"])
    graph = helper.make_graph([node], "dropout", inputs, outputs, constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=8)
    result = evaluate_module(infer_shapes(normalise(read_model(model))), {"x": x})
    assert abs(result["mask"].mean() - 0.75) < 0.01
    np.testing.assert_allclose(result["y"], result["mask"] / 0.75, rtol=1e-6)


def test_each_seed_has_a_stream_of_its_own() -> None:
    x = np.zeros(100, np.float32)
    a, b = (draw("RandomUniformLike", x, seed=s, name=n) for s, n in ((1.0, "a"), (1.0, "b")))
    c, d = (draw("RandomUniformLike", x, name=n) for n in ("c", "d"))
    assert np.array_equal(a, b)
    assert not np.array_equal(c, d)
