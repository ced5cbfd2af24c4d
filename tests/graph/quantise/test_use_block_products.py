"""Products and gathers with weights that are, or become, quantised in blocks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import webmlc
from tests.against_onnxruntime import ERRORS_ONLY, SETTINGS
from tests.small_models import decoder, text_encoder
from webmlc.core.errors import InputError, UserError
from webmlc.frontend.read_model import read_model
from webmlc.graph.infer.evaluate import evaluate_module
from webmlc.graph.infer.infer_shapes import infer_shapes
from webmlc.graph.infer.normalise import normalise
from webmlc.graph.ir import Module
from webmlc.graph.quantise.compute_in_integers import QUANTISED_CONSTANTS
from webmlc.graph.quantise.quantise_weights import Quantisation, quantise_matrix
from webmlc.graph.quantise.use_block_products import use_block_products
from webmlc.graph.simplify.constants import fold_constants
from webmlc.graph.simplify.simplify_graph import simplify_graph

Array = np.ndarray[Any, Any]
INT4, UINT4, INT8, UINT8 = (
    TensorProto.INT4, TensorProto.UINT4, TensorProto.INT8, TensorProto.UINT8,
)  # fmt: skip
LIMITS: dict[int, tuple[int, int]] = {
    INT4: (-8, 7),
    UINT4: (0, 15),
    INT8: (-128, 127),
    UINT8: (0, 255),
}
QUANTISATIONS: tuple[Quantisation, ...] = ("int8", "int4")


def graph_of(model: onnx.ModelProto) -> Module:
    """A model before the pass."""
    typed = infer_shapes(normalise(read_model(model)))
    return simplify_graph(fold_constants(typed, keep=QUANTISED_CONSTANTS))


def operators(module: Module) -> set[str]:
    return {node.op for node in module.main.nodes}


def dequantised(
    op: str,
    dtype: int,
    axis: int = 0,
    block: int = 32,
    zeros: bool = True,
    shape: tuple[int, int] = (64, 24),
    element: type = np.float32,
    transposed: bool = False,
) -> tuple[onnx.ModelProto, Array]:
    """A model of one product or gather with dequantised weights of a shape, and an input.

    With a `block` of 0, there is one scale for each element of the axis.
    """
    rng = np.random.default_rng(dtype * 100 + block)
    low, high = LIMITS[dtype]
    size = list(shape) if block else [shape[axis]]
    if block:
        size[axis] = -(-shape[axis] // block)
    number = numpy_helper.from_array(np.zeros(0, element)).data_type
    constants = [
        helper.make_tensor("q", dtype, shape, rng.integers(low, high + 1, shape).ravel().tolist()),
        numpy_helper.from_array(rng.uniform(0.01, 0.1, size).astype(element), "scales"),
    ]
    if zeros:
        points = rng.integers(low, high + 1, size)
        constants.append(helper.make_tensor("zeros", dtype, size, points.ravel().tolist()))
    names = [tensor.name for tensor in constants]
    blocks: dict[str, Any] = {"block_size": block} if block else {}
    nodes = [helper.make_node("DequantizeLinear", names, ["w"], axis=axis, **blocks)]
    weights = "w"
    if transposed:
        nodes.append(helper.make_node("Transpose", ["w"], ["t"], perm=[1, 0]))
        weights, shape = "t", shape[::-1]
    if op == "Gather":
        nodes.append(helper.make_node("Gather", [weights, "x"], ["y"]))
        x, kind = rng.integers(-shape[0], shape[0], (2, 3)), int(TensorProto.INT64)
    else:
        depth, columns = shape if op == "MatMul" else shape[::-1]
        x, kind = rng.standard_normal((3, depth)).astype(element), number
        if op == "MatMul":
            nodes.append(helper.make_node("MatMul", ["x", weights], ["y"]))
        else:
            addend: Array = rng.standard_normal(columns).astype(element)
            constants.append(numpy_helper.from_array(addend, "c"))
            factors: dict[str, Any] = {"alpha": 0.5, "beta": 2.0, "transB": 1}
            nodes.append(helper.make_node("Gemm", ["x", weights, "c"], ["y"], **factors))
    value = helper.make_tensor_value_info
    output = value("y", number, ["a", "b", shape[1]] if op == "Gather" else ["a", columns])
    graph = helper.make_graph(nodes, "g", [value("x", kind, list(x.shape))], [output], constants)
    opset = helper.make_opsetid("", 21)
    return helper.make_model(graph, opset_imports=[opset], ir_version=10), x


def by_onnxruntime(model: onnx.ModelProto, feeds: dict[str, Array]) -> Array:
    """The first output. (With optimisations, onnxruntime quantises the activations of blocks.)"""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = ERRORS_ONLY
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    output: Array = session.run(None, feeds)[0]
    return output


@pytest.mark.parametrize(
    ("op", "dtype", "options"),
    [
        ("MatMul", INT4, {}),
        ("MatMul", INT4, {"zeros": False}),
        ("MatMul", UINT4, {"block": 16}),
        ("MatMul", UINT4, {"zeros": False, "shape": (128, 9), "block": 128}),
        ("MatMul", INT4, {"shape": (50, 24)}),
        ("MatMul", INT4, {"axis": 1, "shape": (24, 64), "transposed": True}),
        ("MatMul", UINT4, {"axis": 1, "block": 0}),
        ("MatMul", INT4, {"axis": 1, "block": 0, "shape": (50, 24), "zeros": False}),
        ("MatMul", INT8, {}),
        ("MatMul", UINT8, {"zeros": False}),
        ("MatMul", INT4, {"element": np.float16}),
        ("Gemm", UINT4, {"axis": 1, "shape": (24, 64)}),
        ("Gather", INT4, {"axis": 1, "shape": (24, 64)}),
        ("Gather", UINT4, {"axis": -1, "shape": (24, 50), "element": np.float16}),
    ],
)
def test_dequantised_weights_stay_packed(op: str, dtype: int, options: dict[str, Any]) -> None:
    model, x = dequantised(op, dtype, **options)
    module = use_block_products(graph_of(model))
    names = operators(module)
    assert ("BlockGather" if op == "Gather" else "PackedBlockProduct") in names
    assert names.isdisjoint({op, "DequantizeLinear", "QuantiseBlocks"})
    expected = by_onnxruntime(model, {"x": x})
    (got,) = evaluate_module(module, {"x": x}).values()
    tolerance = 2e-3 if expected.dtype == np.float16 else 2e-6
    assert got.dtype == expected.dtype
    np.testing.assert_allclose(got, expected, rtol=0, atol=tolerance * np.abs(expected).max())


@pytest.mark.parametrize(
    ("op", "dtype", "options"),
    [
        ("MatMul", INT4, {"axis": 1, "block": 8}),  # blocks along the columns
        ("MatMul", INT4, {"block": 4}),  # half a word
        ("Gather", INT4, {"axis": 0, "block": 8}),
        ("MatMul", INT8, {"axis": 1, "block": 0}),  # products of bytes
    ],
)
def test_blocks_that_do_not_fit_stay_dequantised(
    op: str, dtype: int, options: dict[str, Any]
) -> None:
    model, _ = dequantised(op, dtype, **options)
    assert {op, "DequantizeLinear"} <= operators(use_block_products(graph_of(model)))


@pytest.mark.parametrize("op", ["MatMul", "Gemm", "Gather"])
@pytest.mark.parametrize("dtype", [INT4, UINT4, INT8, UINT8])
def test_the_axis_of_a_single_scale_is_ignored(op: str, dtype: int, tmp_path: Path) -> None:
    model, x = dequantised(op, dtype, axis=1, block=0, zeros=False)
    dequantise, scales = model.graph.node[0], model.graph.initializer[1]
    scales.CopyFrom(numpy_helper.from_array(np.float32(0.25), "scales"))
    dequantise.attribute[0].i = 5
    expected = by_onnxruntime(model, {"x": x})
    webmlc.build(model, tmp_path, target="wasm")
    got = webmlc.load(tmp_path).run({"x": x})["y"]
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())


def test_a_product_of_dequantised_blocks_on_each_device(tmp_path: Path) -> None:
    model, x = dequantised("Gemm", INT4, axis=1, shape=(24, 50))
    expected = by_onnxruntime(model, {"x": x})
    webmlc.build(model, tmp_path)
    for device, threads in SETTINGS:
        got = webmlc.load(tmp_path, device, threads).run({"x": x})["y"]
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("form", "limit"), [("int8", 0.006), ("int4", 0.08)])
def test_a_quantised_matrix_is_close(form: Quantisation, limit: float) -> None:
    matrix = np.random.default_rng(0).standard_normal((40, 100)).astype(np.float32)
    matrix[3] = 0
    matrix[5] *= 1e-9  # too small for scales in half precision
    floats = quantise_matrix(matrix, form).floats()
    assert floats.shape == (40, 128)
    errors = np.linalg.norm(floats[:, :100] - matrix, axis=1)
    assert (errors <= 1.3 * limit * np.linalg.norm(matrix, axis=1)).all()
    assert np.abs(floats[:, 100:]).max() <= (0 if form == "int8" else 0.2)


@pytest.mark.parametrize("form", QUANTISATIONS)
def test_products_and_embeddings_of_a_text_encoder_are_quantised(form: Quantisation) -> None:
    model, feeds = text_encoder()
    module = use_block_products(graph_of(model), form)
    assert {"BlockGather", "PackedBlockProduct"} <= operators(module)
    expected = by_onnxruntime(model, feeds)
    (got,) = evaluate_module(module, feeds).values()
    cosine = (got * expected).sum(-1) / np.linalg.norm(got, axis=-1)
    cosine /= np.linalg.norm(expected, axis=-1)
    assert cosine.min() > (0.9995 if form == "int8" else 0.98)


def test_a_quantised_model_on_each_device(tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["": 17]>
        g (int64[n] i) => (float[n, 24] y) {
            x = Gather(table, i) a = MatMul(x, up) r = Relu(a) y = Gemm(r, down, bias)
        }"""
    model, rng = onnx.parser.parse_model(text), np.random.default_rng(0)
    for name, shape in {"table": (50, 40), "up": (40, 96), "down": (96, 24), "bias": (24,)}.items():
        weights = rng.standard_normal(shape).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(weights, name))
    feeds = {"i": np.array([3, -1, 49])}
    expected = by_onnxruntime(model, feeds)
    webmlc.build(model, tmp_path, quantise="int8")
    results = [
        webmlc.load(tmp_path, device, threads).run(feeds)["y"] for device, threads in SETTINGS
    ]
    with pytest.raises(InputError, match="1 of its indices or sizes is out of range"):
        webmlc.load(tmp_path, "wasm").run({"i": np.array([50])})
    for logits in results:
        error = np.linalg.norm(logits - expected) / np.linalg.norm(expected)
        assert 1e-5 < error < 0.03
        np.testing.assert_allclose(logits, results[0], atol=1e-2 * np.abs(expected).max())


def test_an_embedding_and_its_transpose_share_their_weights() -> None:
    rng = np.random.default_rng(0)
    table = rng.standard_normal((100, 64)).astype(np.float32)
    text = """<ir_version: 8, opset_import: ["": 17]>
        g (int64[n] i) => (float[n, 100] y) { x = Gather(table, i) y = MatMul(x, head) }"""
    model = onnx.parser.parse_model(text)
    for name, array in (("table", table), ("head", np.ascontiguousarray(table.T))):
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    constants = use_block_products(graph_of(model), "int8").main.constants
    assert len(constants) == 2  # values and scales


def test_float_weights_of_other_nodes_stay() -> None:
    text = """<ir_version: 8, opset_import: ["": 17]>
        g (float[n, 64] x) => (float[n, 64] y, float[n, 2] z) {
            a = MatMul(x, w)
            b = Sin(w)
            c = ReduceSum<keepdims = 0>(b)
            d = Add(a, w)
            y = Add(d, c)
            z = MatMul(x, narrow)
        }"""
    model = onnx.parser.parse_model(text)
    rng = np.random.default_rng(0)
    for name, shape in (("w", (64, 64)), ("narrow", (64, 2))):
        weights = rng.standard_normal(shape).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(weights, name))
    module = use_block_products(graph_of(model), "int8")
    products = [node for node in module.main.nodes if node.op == "MatMul"]
    assert [node.outputs[0] for node in products] == ["a", "z"]


def test_an_unknown_quantisation_is_an_error(tmp_path: Path) -> None:
    model, _ = decoder()
    with pytest.raises(UserError, match="unknown quantisation 'int3': choose int4 or int8"):
        webmlc.build(model, tmp_path, quantise="int3")  # type: ignore[arg-type]
