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
from webmlc.graph.evaluate import evaluate_function
from webmlc.graph.infer_shapes import infer_shapes
from webmlc.graph.ir import Array
from webmlc.graph.normalise import normalise

ROWS, FEATURES = 40, 5


def model(op: str, x: Array, outputs: dict[str, int], **attributes: Any) -> onnx.ModelProto:
    """One node; the number of rows stays symbolic."""
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


def check(proto: onnx.ModelProto, x: Array, folder: Path | None = None) -> None:
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    expected = session.run(None, {"x": x})
    module = infer_shapes(normalise(read_model(proto)))
    results = [evaluate_function(module.main, {"x": x})]
    if folder is not None:
        webmlc.build(proto, folder, target="wasm")
        results.append(dict(webmlc.load(folder, device="wasm").run({"x": x})))
    for result in results:
        for info, want in zip(proto.graph.output, expected, strict=True):
            got = result[info.name]
            assert (got.dtype, got.shape) == (want.dtype, want.shape)
            np.testing.assert_allclose(got, want, rtol=2e-4, atol=2e-5)


def forest(rng: np.random.Generator, votes: str, targets: list[int], trees: int = 3, depth: int = 4,
           modes: tuple[str, ...] = ("BRANCH_LEQ",), low: float = -1.0) -> dict[str, Any]:  # fmt: skip
    """Random trees, some branches shorter; each leaf votes for all `targets`."""
    a: dict[str, list[Any]] = {k: [] for k in (
        "nodes_treeids", "nodes_nodeids", "nodes_featureids", "nodes_values", "nodes_modes",
        "nodes_truenodeids", "nodes_falsenodeids", "nodes_missing_value_tracks_true",
        *(f"{votes}_{n}" for n in ("treeids", "nodeids", "ids", "weights")))}  # fmt: skip

    def grow(tree: int, level: int) -> int:
        number = sum(1 for t in a["nodes_treeids"] if t == tree)
        place = len(a["nodes_treeids"])
        leaf = level == depth or (level > 1 and rng.random() < 0.3)
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

    for tree in range(trees):
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


def test_string_labels_are_refused() -> None:
    rng = np.random.default_rng(4)
    trees = forest(rng, "class", [0, 1, 2])
    proto = model("TreeEnsembleClassifier", data(rng), LABELLED,
                  classlabels_strings=["a", "b", "c"], **trees)  # fmt: skip
    with pytest.raises(UnsupportedError, match="strings are not supported"):
        infer_shapes(normalise(read_model(proto)))
