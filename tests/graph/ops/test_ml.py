"""The operators of ai.onnx.ml against onnxruntime, by numpy and as the emitted WASM."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

import webmlc
from webmlc.core.errors import UnsupportedError
from webmlc.frontend.read_model import read_model
from webmlc.graph.infer.evaluate import evaluate_module
from webmlc.graph.infer.infer_shapes import infer_shapes
from webmlc.graph.infer.normalise import normalise
from webmlc.graph.ir import Array

ROWS, FEATURES = 40, 5


def model(op: str, x: Array, outputs: dict[str, int], **attributes: Any) -> onnx.ModelProto:
    """A model of one node. The number of rows is symbolic."""
    element = helper.np_dtype_to_tensor_dtype(x.dtype)
    dimensions = ["n", *x.shape[1:]]
    ranks = {"y": 1 if len(outputs) == 2 else x.ndim, "z": 2}
    values = [
        helper.make_tensor_value_info(k, v, ["n", *[f"{k}{d}" for d in range(1, ranks[k])]])
        for k, v in outputs.items()
    ]
    node = helper.make_node(op, ["x"], list(outputs), domain="ai.onnx.ml", **attributes)
    inputs = [helper.make_tensor_value_info("x", element, dimensions)]
    graph = helper.make_graph([node], op, inputs, values)
    opsets = [helper.make_opsetid("ai.onnx.ml", 3), helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def check(proto: onnx.ModelProto, x: Array, folder: Path | None = None, atol: float = 2e-5) -> None:
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    expected = session.run(None, {"x": x})
    module = infer_shapes(normalise(read_model(proto)))
    results = [evaluate_module(module, {"x": x})]
    if folder is not None:
        webmlc.build(proto, folder, target="wasm")
        results.append(dict(webmlc.load(folder, device="wasm").run({"x": x})))
    for result in results:
        for info, want in zip(proto.graph.output, expected, strict=True):
            got = result[info.name]
            assert (got.dtype, got.shape) == (want.dtype, want.shape)
            np.testing.assert_allclose(got, want, rtol=2e-4, atol=atol)


def forest(
    rng: np.random.Generator,
    votes: str,
    targets: list[int],
    modes: tuple[str, ...] = ("BRANCH_LEQ",),
    low: float = -1.0,
) -> dict[str, Any]:
    """Random trees with branches of different lengths. Each leaf votes for all `targets`."""
    a: dict[str, list[Any]] = {k: [] for k in (
        "nodes_treeids", "nodes_nodeids", "nodes_featureids", "nodes_values", "nodes_modes",
        "nodes_truenodeids", "nodes_falsenodeids", "nodes_missing_value_tracks_true",
        *(f"{votes}_{n}" for n in ("treeids", "nodeids", "ids", "weights")))}  # fmt: skip

    def grow(tree: int, level: int) -> int:
        number = sum(1 for t in a["nodes_treeids"] if t == tree)
        place = len(a["nodes_treeids"])
        leaf = level == 4 or (level > 1 and rng.random() < 0.3)
        for key, value in (
            ("treeids", tree), ("nodeids", number), ("featureids", int(rng.integers(FEATURES))),
            ("values", float(np.round(rng.standard_normal()))), ("truenodeids", 0),
            ("falsenodeids", 0), ("modes", "LEAF" if leaf else str(rng.choice(modes))),
            ("missing_value_tracks_true", int(rng.integers(2))),
        ):  # fmt: skip
            a[f"nodes_{key}"].append(value)
        if leaf:
            for target in targets:
                a[f"{votes}_treeids"].append(tree)
                a[f"{votes}_nodeids"].append(number)
                a[f"{votes}_ids"].append(target)
                a[f"{votes}_weights"].append(float(rng.uniform(low, 1.0)))
        else:
            a["nodes_truenodeids"][place] = grow(tree, level + 1)
            a["nodes_falsenodeids"][place] = grow(tree, level + 1)
        return number

    for tree in range(3):
        grow(tree, 0)
    return a


def data(rng: np.random.Generator) -> Array:
    x = np.round(rng.standard_normal((ROWS, FEATURES)) * 2).astype(np.float32) / 2
    x[3, 2] = x[5, 0] = np.nan
    return x


MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ")
FLOAT = {"y": TensorProto.FLOAT}
LABELLED = {"y": TensorProto.INT64, "z": TensorProto.FLOAT}


@pytest.mark.parametrize("aggregate", ["SUM", "AVERAGE", "MIN", "MAX"])
def test_tree_regressor(aggregate: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    trees = forest(rng, "target", [0, 1], modes=MODES)
    x = data(rng)
    check(
        model("TreeEnsembleRegressor", x, FLOAT, n_targets=2, aggregate_function=aggregate,
              base_values=[0.5, -0.5], **trees), x, tmp_path)  # fmt: skip


@pytest.mark.parametrize("transform", ["NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO"])
def test_tree_classifier(transform: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    trees = forest(rng, "class", [0, 1, 2])
    x = data(rng)
    check(
        model("TreeEnsembleClassifier", x, LABELLED, classlabels_int64s=[4, 7, 9],
              post_transform=transform, **trees), x, tmp_path)  # fmt: skip


@pytest.mark.parametrize("low", [-1.0, 0.0])
@pytest.mark.parametrize("voted", [0, 1])
@pytest.mark.parametrize("transform", ["NONE", "LOGISTIC"])
def test_binary_tree_classifier(transform: str, voted: int, low: float) -> None:
    rng = np.random.default_rng(3)
    trees = forest(rng, "class", [voted], low=low)
    x = data(rng)
    check(
        model("TreeEnsembleClassifier", x, LABELLED, classlabels_int64s=[3, 8],
              post_transform=transform, **trees), x)  # fmt: skip


@pytest.mark.parametrize("op", ["TreeEnsembleRegressor", "TreeEnsembleClassifier"])
def test_interior_nodes_have_no_votes(op: str) -> None:
    rng = np.random.default_rng(14)
    votes = "target" if op == "TreeEnsembleRegressor" else "class"
    trees = forest(rng, votes, [0, 1, 2])
    for name, value in (("treeids", 1), ("nodeids", 0), ("ids", 1), ("weights", 5.0)):
        trees[f"{votes}_{name}"].insert(0, value)
    attributes: dict[str, Any] = {"n_targets": 3}
    outputs = FLOAT
    if votes == "class":
        attributes, outputs = {"classlabels_int64s": [0, 1, 2]}, LABELLED
    check(model(op, data(rng), outputs, **attributes, **trees), data(rng))


@pytest.mark.parametrize(("op", "attributes", "reason"), [
    ("LinearRegressor", {"coefficients": [1.0] * 10}, "weights of 10 features for an input of 5"),
    ("LinearRegressor", {"coefficients": [1.0] * 5, "intercepts": [1.0, 2.0]}, "2 intercepts"),
    ("FeatureVectorizer", {"inputdimensions": [3]}, "input 0 has 3 features; it has 5"),
    ("FeatureVectorizer", {"inputdimensions": [5, 5]}, "2 inputdimensions of 1 inputs"),
    ("TreeEnsembleRegressor", {"aggregate_function": "MEDIAN"}, "aggregate_function 'MEDIAN'"),
    ("TreeEnsembleRegressor", {"post_transform": "TANH"}, "post_transform 'TANH'"),
])  # fmt: skip
def test_contradictions_are_refused(op: str, attributes: dict[str, Any], reason: str) -> None:
    rng = np.random.default_rng(15)
    trees = forest(rng, "target", [0]) if op == "TreeEnsembleRegressor" else {}
    proto = model(op, data(rng), FLOAT, **trees, **attributes)
    with pytest.raises(UnsupportedError, match=reason):
        infer_shapes(normalise(read_model(proto)))


def test_missing_labels_are_refused() -> None:
    rng = np.random.default_rng(4)
    trees = forest(rng, "class", [0, 1, 2])
    proto = model("TreeEnsembleClassifier", data(rng), LABELLED, **trees)
    with pytest.raises(UnsupportedError, match="classlabels_int64s is missing"):
        infer_shapes(normalise(read_model(proto)))


def numbers(rng: np.random.Generator) -> Array:
    return rng.standard_normal((ROWS, FEATURES)).astype(np.float32)


@pytest.mark.parametrize("transform", ["NONE", "SOFTMAX", "LOGISTIC", "PROBIT"])
def test_linear_regressor(transform: str) -> None:
    rng = np.random.default_rng(5)
    x = rng.uniform(0, 1, (ROWS, FEATURES)).astype(np.float32)
    check(
        model("LinearRegressor", x, FLOAT, targets=2, intercepts=[0.1, 0.05],
              coefficients=(rng.uniform(0, 0.15, 2 * FEATURES)).tolist(),
              post_transform=transform), x)  # fmt: skip


@pytest.mark.parametrize("transform", ["NONE", "SOFTMAX", "LOGISTIC"])
@pytest.mark.parametrize("scores", [1, 2, 3])
def test_linear_classifier(scores: int, transform: str) -> None:
    rng = np.random.default_rng(6)
    x = numbers(rng)
    check(
        model("LinearClassifier", x, LABELLED, classlabels_ints=[3, 5, 8][: max(scores, 2)],
              coefficients=rng.standard_normal(scores * FEATURES).tolist(),
              intercepts=rng.standard_normal(scores).tolist(), post_transform=transform),
        x)  # fmt: skip


KERNELS = [("LINEAR", [0.0, 0.0, 0.0]), ("POLY", [0.3, 0.5, 3.0]), ("RBF", [0.4, 0.0, 0.0]),
           ("SIGMOID", [0.2, 0.1, 0.0])]  # fmt: skip


@pytest.mark.parametrize(("kernel", "parameters"), KERNELS)
@pytest.mark.parametrize("one_class", [0, 1])
def test_svm_regressor(kernel: str, parameters: list[float], one_class: int) -> None:
    rng = np.random.default_rng(7)
    x = numbers(rng)
    check(
        model("SVMRegressor", x, FLOAT, kernel_type=kernel, kernel_params=parameters, n_supports=6,
              coefficients=rng.standard_normal(6).tolist(), rho=[0.3], one_class=one_class,
              support_vectors=rng.standard_normal(6 * FEATURES).tolist()), x)  # fmt: skip


@pytest.mark.parametrize(("kernel", "parameters"), KERNELS)
@pytest.mark.parametrize("classes", [2, 3])
def test_svm_classifier(kernel: str, parameters: list[float], classes: int) -> None:
    rng = np.random.default_rng(8)
    x = numbers(rng)
    check(
        model("SVMClassifier", x, LABELLED, kernel_type=kernel, kernel_params=parameters,
              classlabels_ints=[2, 4, 6][:classes], vectors_per_class=[2, 3, 2][:classes],
              coefficients=rng.standard_normal((classes - 1) * (7 if classes > 2 else 5)).tolist(),
              rho=rng.standard_normal(classes * (classes - 1) // 2).tolist(),
              support_vectors=rng.standard_normal((7 if classes > 2 else 5) * FEATURES).tolist()),
        x)  # fmt: skip


def test_svm_probabilities_of_two_classes() -> None:
    rng = np.random.default_rng(9)
    x = numbers(rng)
    check(
        model("SVMClassifier", x, LABELLED, kernel_type="RBF", kernel_params=[0.3, 0.0, 0.0],
              classlabels_ints=[2, 4], vectors_per_class=[2, 3], prob_a=[-1.5], prob_b=[0.2],
              coefficients=rng.standard_normal(5).tolist(), rho=[0.1],
              support_vectors=rng.standard_normal(5 * FEATURES).tolist()),
        x, atol=5e-3)  # fmt: skip  # onnxruntime stops its iteration early


@pytest.mark.parametrize(("op", "attributes"), [
    ("Scaler", {"offset": [0.5], "scale": [2.0]}),
    ("Scaler", {"offset": [0.1, 0.2, 0.3, 0.4, 0.5], "scale": [1.0, 2.0, 3.0, 4.0, 5.0]}),
    ("Normalizer", {"norm": "L1"}), ("Normalizer", {"norm": "L2"}), ("Normalizer", {"norm": "MAX"}),
    ("Binarizer", {"threshold": 0.3}),
    ("Imputer", {"imputed_value_floats": [9.0], "replaced_value_float": float("nan")}),
    ("Imputer", {"imputed_value_floats": [1.0, 2.0, 3.0, 4.0, 5.0], "replaced_value_float": 0.5}),
    ("LabelEncoder", {"keys_floats": [0.5, 1.0, -1.0], "values_floats": [3.0, 4.0, 5.0],
                      "default_float": 7.0}),
])  # fmt: skip
def test_float_features(op: str, attributes: dict[str, Any]) -> None:
    x = data(np.random.default_rng(10))
    if op in ("Normalizer", "Binarizer"):
        x = np.nan_to_num(x, nan=0.25)
        x[1] = 0
    check(model(op, x, FLOAT, **attributes), x)


@pytest.mark.parametrize(("op", "output", "attributes"), [
    ("LabelEncoder", TensorProto.INT64, {"keys_int64s": [1, 2, 5], "values_int64s": [10, 20, 50]}),
    ("LabelEncoder", TensorProto.FLOAT, {"keys_int64s": [3, 4], "values_floats": [0.5, 1.5]}),
    ("OneHotEncoder", TensorProto.FLOAT, {"cats_int64s": [0, 2, 4]}),
    ("Imputer", TensorProto.INT64, {"imputed_value_int64s": [8], "replaced_value_int64": 2}),
])  # fmt: skip
def test_integer_features(op: str, output: int, attributes: dict[str, Any]) -> None:
    x = np.random.default_rng(11).integers(0, 6, (ROWS, 1)).astype(np.int64)
    proto = model(op, x, {"y": output}, **attributes)
    if op == "OneHotEncoder":
        proto.graph.output[0].type.tensor_type.shape.dim.add().dim_value = 3
    check(proto, x)
