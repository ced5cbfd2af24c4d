"""Operators on element types that no case of their rows has, against numpy."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper

from webmlc.core.dtypes import DType
from webmlc.core.errors import InputError, UnsupportedError
from webmlc.core.machine import Device
from webmlc.graph.compute import identity
from webmlc.host.load import load
from webmlc.pipeline import build


def run(
    model: onnx.ModelProto, feeds: dict[str, np.ndarray], folder: Path, device: Device = "wasm"
) -> np.ndarray:
    build(model, folder, target=device, cache=False)
    package = load(folder, device=device)
    try:
        return np.asarray(package.run(feeds)["y"])
    finally:
        package.dispose()


def model_of(node: onnx.NodeProto, opset: int = 18, **arrays: np.ndarray) -> onnx.ModelProto:
    """A model of one node, whose inputs have the types of these arrays."""
    infos = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for name, a in arrays.items()
    ]
    graph = helper.make_graph([node], "g", infos, [onnx.ValueInfoProto(name="y")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


@pytest.mark.parametrize("device", ["wasm", "webgpu"])
def test_an_empty_list_of_axes_is_all_axes(device: Device, tmp_path: Path) -> None:
    """onnxruntime refuses it, and `onnx.helper` cannot write it."""
    x = np.random.default_rng(0).standard_normal((2, 4, 3, 5)).astype(np.float32)
    node = helper.make_node("MeanVarianceNormalization", ["x"], ["y"])
    node.attribute.append(onnx.AttributeProto(name="axes", type=onnx.AttributeProto.INTS))
    y = run(model_of(node, x=x), {"x": x}, tmp_path, device)
    np.testing.assert_allclose(y, (x - x.mean()) / x.std(), rtol=1e-4, atol=1e-5)


SMALL_FLOATS = [dtype for dtype in DType if dtype.is_float and dtype.bits <= 16]


@pytest.mark.parametrize("device", ["wasm", "webgpu"])
@pytest.mark.parametrize("operator", ["ArgMax", "ArgMin", "Hardmax"])
@pytest.mark.parametrize("dtype", [d for d in SMALL_FLOATS if d.bits >= 8])
def test_the_best_of_small_floats(
    dtype: DType, operator: str, device: Device, tmp_path: Path
) -> None:
    """Some of these types have no infinity, from which a maximum of others begins."""
    x = np.exp(np.random.default_rng(0).standard_normal((4, 9))).astype(dtype.numpy)
    wide = x.astype(np.float32)
    best = wide.argmin(1) if operator == "ArgMin" else wide.argmax(1)
    node = helper.make_node(operator, ["x"], ["y"], axis=1)
    y = run(model_of(node, x=x), {"x": x}, tmp_path, device)
    if operator == "Hardmax":
        best = np.eye(9)[best].astype(dtype.numpy).astype(np.float32)  # float8_e8m0fnu has no 0
    np.testing.assert_array_equal(y.astype(np.float32).reshape(best.shape), best)


@pytest.mark.parametrize("dtype", SMALL_FLOATS)
def test_folds_of_small_floats_begin_from_a_number(dtype: DType) -> None:
    for combine, start in (("max", -np.inf), ("min", np.inf)):
        value = np.array(identity(combine, dtype).value).astype(dtype.numpy)
        low, high = dtype.limits
        assert float(value) in (start, low, high)


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint32", "uint64"])
@pytest.mark.parametrize("operator", ["ReduceL2", "ReduceL1", "ReduceProd"])
def test_integers_are_reduced(operator: str, dtype: str, tmp_path: Path) -> None:
    x = np.array([[3, 4, 5], [7, 1, 2]], dtype)
    expected = {
        "ReduceL2": np.sqrt((x.astype(float) ** 2).sum(1)),
        "ReduceL1": x.sum(1),
        "ReduceProd": x.prod(1),
    }[operator]
    node = helper.make_node(operator, ["x", "axes"], ["y"], keepdims=0)
    model = model_of(node, x=x)
    model.graph.initializer.append(numpy_helper.from_array(np.array([1]), "axes"))
    y = run(model, {"x": x}, tmp_path)
    assert y.dtype == x.dtype
    assert y.tolist() == np.trunc(expected).tolist()


@pytest.mark.parametrize("device", ["wasm", "webgpu"])
@pytest.mark.parametrize(
    ("operator", "opset"),
    [("ReduceLogSum", 13), ("ReduceLogSum", 18), ("ReduceLogSumExp", 11), ("Erf", 9)],
)
def test_an_older_opset_takes_integers(
    operator: str, opset: int, device: Device, tmp_path: Path
) -> None:
    """The newest schemas of these operators list floats only."""
    x = np.array([[3, 4, 5, -4], [70, 1, 2, 0]], np.int32)
    axes = {} if operator == "Erf" else {"axes": [1], "keepdims": 0}
    expected = {
        "ReduceLogSum": np.log(x.sum(1)),
        "ReduceLogSumExp": np.log(np.exp(x.astype(float)).sum(1)),
        "Erf": np.vectorize(math.erf)(x).astype(np.float32),
    }[operator]
    names = ["x"]
    if opset >= 18:
        axes.pop("axes")
        names.append("axes")
    model = model_of(helper.make_node(operator, names, ["y"], **axes), opset, x=x)
    if opset >= 18:
        model.graph.initializer.append(numpy_helper.from_array(np.array([1]), "axes"))
    y = run(model, {"x": x}, tmp_path, device)
    assert y.dtype == np.int32
    assert y.tolist() == np.trunc(expected).tolist()


def test_integers_are_refused_where_the_imported_opset_refuses_them(tmp_path: Path) -> None:
    """A function's nodes count by the opset that the function imports."""
    x = np.array([[3, 4]], np.int32)
    node = helper.make_node("ReduceLogSum", ["x"], ["y"], keepdims=0)
    with pytest.raises(UnsupportedError, match="input 0 is int32; it takes bfloat16"):
        run(model_of(node, 28, x=x), {"x": x}, tmp_path)
    call = helper.make_node("Older", ["x"], ["y"], domain="local")
    model = model_of(call, 28, x=x)
    model.opset_import.append(helper.make_opsetid("local", 1))
    imports = [helper.make_opsetid("", 18)]
    model.functions.append(helper.make_function("local", "Older", ["x"], ["y"], [node], imports))
    assert run(model, {"x": x}, tmp_path).tolist() == 1


@pytest.mark.parametrize("operator", ["ScatterND", "ScatterElements"])
@pytest.mark.parametrize("reduction", ["add", "mul", "max", "min"])
def test_booleans_are_scattered(operator: str, reduction: str, tmp_path: Path) -> None:
    """A sum and a maximum are a disjunction, a product and a minimum a conjunction."""
    x, u = np.array([False, True, True, False]), np.array([True, False, True])
    i = np.array([0, 1, 3])
    indices = i[:, None] if operator == "ScatterND" else i
    attributes = {"axis": 0} if operator == "ScatterElements" else {}
    node = helper.make_node(operator, ["x", "i", "u"], ["y"], reduction=reduction, **attributes)
    expected = x.copy()
    expected[i] = x[i] | u if reduction in ("add", "max") else x[i] & u
    y = run(model_of(node, x=x, i=indices, u=u), {"x": x, "i": indices, "u": u}, tmp_path)
    assert y.tolist() == expected.tolist()


@pytest.mark.parametrize("device", ["wasm", "webgpu"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("zeros", ["uint8", "int8"])
def test_a_quantised_product_has_half_scales(
    zeros: str, dtype: str, device: Device, tmp_path: Path
) -> None:
    """onnxruntime has no scales in bfloat16: it computes with the same numbers in float32."""
    rng = np.random.default_rng(0)
    low, high = np.iinfo(zeros).min, np.iinfo(zeros).max
    arrays = {
        name: rng.integers(low, high, shape).astype(zeros)
        for name, shape in (("a", (40, 16)), ("a_zero", ()), ("b", (16, 40)), ("b_zero", ()))
    }
    arrays["zero"] = np.array(7, zeros)
    scales = {"a_scale": 0.013, "b_scale": 0.017, "scale": 0.31}
    names = ["a", "a_scale", "a_zero", "b", "b_scale", "b_zero", "scale", "zero"]
    node = helper.make_node("QLinearMatMul", names, ["y"])
    halves = {k: np.array(v, DType(dtype).numpy) for k, v in scales.items()}
    wide = arrays | {k: v.astype(np.float32) for k, v in halves.items()}
    session = onnxruntime.InferenceSession(model_of(node, 21, **wide).SerializeToString())
    (expected,) = session.run(None, wide)
    y = run(model_of(node, 21, **arrays, **halves), arrays | halves, tmp_path, device)
    assert y.tolist() == expected.tolist()


VECTORS = [1.0, 2.0, 3.0, 0.0, 1.0, 0.0, 2.0, 2.0, 2.0]
SUPPORT = {"kernel_type": "RBF", "kernel_params": [0.1, 0.0, 3.0], "rho": [0.2],
           "coefficients": [0.5, -0.5, 1.0], "support_vectors": VECTORS}  # fmt: skip
LINEAR = {"coefficients": [1.0, 2.0, 3.0, -1.0, 0.5, 2.0], "intercepts": [0.5, -0.5]}


@pytest.mark.parametrize(
    ("operator", "attributes"),
    [
        ("Scaler", {"offset": [1.0, 2.0, 3.0], "scale": [2.0, 2.0, 2.0]}),
        ("Imputer", {"imputed_value_floats": [1.0, 2.0, 3.0], "replaced_value_float": 0.0}),
        ("LinearRegressor", {"targets": 2, **LINEAR}),
        ("LinearClassifier", {"classlabels_ints": [4, 7], **LINEAR}),
        ("LinearClassifier", {"classlabels_ints": [4, 7, 9], "coefficients": VECTORS,
                              "intercepts": [0.0, 5.0, 1.0]}),
        ("SVMRegressor", {"n_supports": 3, **SUPPORT}),
        ("SVMRegressor", {**SUPPORT, "n_supports": 0, "kernel_type": "LINEAR"}),
        ("SVMClassifier", {"classlabels_ints": [3, 5], "vectors_per_class": [2, 1], **SUPPORT}),
    ],
)  # fmt: skip
def test_operators_need_all_their_features(
    operator: str, attributes: dict[str, Any], tmp_path: Path
) -> None:
    """A run compares a number of features that only it knows with that of the attributes."""
    results = ["y", "scores"] if operator.endswith("Classifier") else ["y"]
    node = helper.make_node(operator, ["x"], results, domain="ai.onnx.ml", **attributes)
    x = np.array([[0.0, 5.0, 6.0], [2.0, -1.0, 0.5]], np.float32)
    model = model_of(node, x=x)
    model.opset_import.append(helper.make_opsetid("ai.onnx.ml", 3))
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_param = "features"
    (expected,) = onnxruntime.InferenceSession(model.SerializeToString()).run(["y"], {"x": x})
    np.testing.assert_allclose(run(model, {"x": x}, tmp_path), expected, rtol=1e-5)
    package = load(tmp_path)
    for count in (1, 4, 6):
        with pytest.raises(InputError, match=f"features = {count}"):
            package.run({"x": np.ones((2, count), np.float32)})
    package.dispose()
