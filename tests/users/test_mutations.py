"""Mutants of models are right, or refused by one clear error; and the judge notices what is not.

`python -m tests.users.mutations` judges any number of others.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from tests.users.mutations.__main__ import devices
from tests.users.mutations.family import Mutant
from tests.users.mutations.onnx_bases import GRAPHS, graph_base
from tests.users.mutations.onnx_changes import Change
from tests.users.mutations.onnx_family import OnnxFamily
from tests.users.mutations.onnx_writings import WRITINGS
from tests.users.mutations.outcome import Kind, outcome_of_error
from tests.users.mutations.worker import Worker, draw
from webmlc.core.dtypes import DType
from webmlc.core.errors import InternalError, ModelError

SEED, COUNT, SHARE = 0, 300, 100


@pytest.mark.parametrize("first", range(0, COUNT, SHARE))
def test_onnx_models(first: int) -> None:
    worker, failures = Worker("onnx"), []
    for number in range(first, first + SHARE):
        for device in devices(number, "both"):
            outcome = worker.judge(SEED, number, device)
            if not outcome.is_allowed:
                failures.append((number, device, draw("onnx", SEED, number).title, outcome))
    worker.close()
    assert not failures, f"python -m tests.users.mutations --seed {SEED} --only NUMBER"


@pytest.mark.parametrize("title", GRAPHS)
def test_valid_models(title: str, tmp_path: Path) -> None:
    model, feeds = graph_base(title)
    mutant = Mutant(title, "model.onnx", {"model.onnx": model.SerializeToString()}, feeds)
    assert OnnxFamily().judge(mutant, tmp_path, "wasm", lambda _: None).kind == "right"


def test_a_wrong_result_is_noticed(tmp_path: Path) -> None:
    model, feeds = graph_base("quantised")
    mutant = Mutant("", "model.onnx", {"model.onnx": model.SerializeToString()}, feeds)
    results = {"y": np.full((2, 3), 0.5, np.float32)}
    with patch("tests.users.mutations.onnx_family._run", lambda *_: results):
        outcome = OnnxFamily().judge(mutant, tmp_path, "wasm", lambda _: None)
    assert outcome.kind == "wrong"
    assert "y: " in outcome.message


MAIN = "model.onnx"
X = np.linspace(-2, 2, 6, dtype=np.float32)


def one_node(
    operator: str, x: np.ndarray, w: np.ndarray | None = None, **attributes: object
) -> Mutant:
    """A model of one node, and its input. A second operand is a constant."""
    element = helper.np_dtype_to_tensor_dtype(x.dtype)
    names = ["x"] if w is None else ["x", "w"]
    constants = [] if w is None else [numpy_helper.from_array(w, "w")]
    node = helper.make_node(operator, names, ["y"], **attributes)
    values = [helper.make_tensor_value_info(name, element, None) for name in "xy"]
    values[0] = helper.make_tensor_value_info("x", element, x.shape)
    graph = helper.make_graph([node], "g", values[:1], values[1:], constants)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    return Mutant("", MAIN, {MAIN: model.SerializeToString()}, {"x": x})


def judged(mutant: Mutant, results: dict[str, np.ndarray], folder: Path) -> Kind:
    """The outcome of a package with these results."""
    with patch("tests.users.mutations.onnx_family._run", lambda *_: results):
        return OnnxFamily().judge(mutant, folder, "wasm", lambda _: None).kind


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("operator", "attributes", "result", "kind"),
    [
        ("Relu", {}, [1, 0, 3, 4], "wrong"),
        ("MaxPool", {"kernel_shape": [2]}, [1, 3, 4], "right"),
        ("MaxPool", {"kernel_shape": [2]}, [NAN, NAN, 4], "wrong"),
        ("MaxPool", {"kernel_shape": [2]}, [1, NAN, 4], "wrong"),
        ("MaxPool", {"kernel_shape": [2]}, [1, 2, 4], "wrong"),
    ],
)
def test_nans_are_compared(
    operator: str, attributes: dict[str, object], result: list[float], kind: Kind, tmp_path: Path
) -> None:
    """MaxPool leaves NaNs out of its windows, as `onnx.reference` does."""
    x = np.array([[[1, NAN, 3, 4]]], np.float32)
    results = {"y": np.array([[result]], np.float32)}
    assert judged(one_node(operator, x, **attributes), results, tmp_path) == kind


@pytest.mark.parametrize(
    ("row", "kind"),
    [([12, 18, 18, 12], "right"), ([NAN, NAN, NAN, NAN], "right"), ([0, 0, 0, 0], "wrong")],
)
def test_an_infinite_weight_meets_padding_or_not(
    row: list[float], kind: Kind, tmp_path: Path
) -> None:
    """onnxruntime leaves padding out, and ONNX pads with zeros: infinity times 0 is NaN."""
    w = np.ones((1, 3, 3, 3), np.float32)
    w[0, 0, 0, 0] = INF
    mutant = one_node("Conv", np.ones((1, 3, 4, 4), np.float32), w=w, pads=[1, 1, 1, 1])
    y = np.full((1, 1, 4, 4), INF, np.float32)
    y[0, 0, 0], y[0, 0, :, 0] = row, row
    assert judged(mutant, {"y": y}, tmp_path) == kind


@pytest.mark.parametrize(("value", "kind"), [(5, "right"), (3, "right"), (4, "wrong")])
def test_a_far_corner_of_a_region_is_beyond_the_map(
    value: float, kind: Kind, tmp_path: Path
) -> None:
    """onnxruntime converts the corner to an integer that has no such number: a column is left."""
    x = np.arange(6, dtype=np.float32).reshape(1, 1, 2, 3)
    w = np.array([[0, 0, 0, 1e30, 2]], np.float32)
    mutant = one_node("MaxRoiPool", x, w=w, pooled_shape=[1, 1])
    results = {"y": np.full((1, 1, 1, 1), value, np.float32)}
    assert judged(mutant, results, tmp_path) == kind


@pytest.mark.parametrize(
    "damage",
    [
        lambda model: model.graph.ClearField("name"),
        lambda model: model.graph.input.add().CopyFrom(model.graph.input[0]),
        lambda model: setattr(model.graph.output[0].type.tensor_type, "elem_type", 7),
        lambda model: setattr(model.opset_import[0], "version", 28),
        lambda model: setattr(model, "ir_version", 99),
    ],
)
def test_a_twin_judges_what_onnxruntime_refuses(
    damage: Callable[[onnx.ModelProto], object], tmp_path: Path
) -> None:
    model = onnx.ModelProto.FromString(one_node("Gelu", X, domain="com.microsoft").files[MAIN])
    damage(model)
    mutant = Mutant("", MAIN, {MAIN: model.SerializeToString()}, {"x": X})
    outcome = OnnxFamily().judge(mutant, tmp_path, "wasm", lambda _: None)
    assert outcome.kind == "right"
    (tmp_path / "wrong").mkdir()
    assert judged(mutant, {"y": X}, tmp_path / "wrong") == "wrong"


def test_dropout_is_judged_if_it_drops_nothing(tmp_path: Path) -> None:
    assert judged(one_node("Dropout", X), {"y": X + 1}, tmp_path) == "wrong"


@pytest.mark.parametrize("writing", [writing for writing, _ in WRITINGS])
def test_a_model_may_be_written_in_many_ways(writing: Change, tmp_path: Path) -> None:
    """On one of the small graphs that has what the writing needs."""
    for title in GRAPHS:
        base, feeds = graph_base(title)
        model = onnx.ModelProto()
        model.CopyFrom(base)
        try:
            writing(model, random.Random(1))
        except (LookupError, StopIteration):
            continue
        data = model.SerializeToString()
        if data == base.SerializeToString():
            continue  # it is written so already
        mutant = Mutant(title, MAIN, {MAIN: data}, feeds)
        assert OnnxFamily().judge(mutant, tmp_path, "wasm", lambda _: None).kind == "right"
        return
    pytest.fail("no graph has what the writing needs")


@pytest.mark.parametrize("dtype", ["float6_e3m2fn", "float8_e5m2", "float4_e2m1fn"])
@pytest.mark.parametrize("operator", ["Softsign", "Mish"])
def test_small_floats_are_rounded_once(operator: str, dtype: str, tmp_path: Path) -> None:
    x = np.linspace(-4, 4, 24).astype(DType(dtype).numpy)
    outcome = OnnxFamily().judge(one_node(operator, x), tmp_path, "wasm", lambda _: None)
    assert outcome.kind == "right"


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ModelError("the model has no graph"), "refused"),
        (ModelError(""), "unclear"),
        (ModelError("Traceback (most recent call last)"), "unclear"),
        (ModelError("node\n" * 4000), "unclear"),
        (InternalError("verify: kernel relu"), "internal"),
        (IndexError("list index out of range"), "traceback"),
        (MemoryError(), "memory"),
    ],
)
def test_errors_have_outcomes(error: Exception, kind: Kind) -> None:
    assert outcome_of_error(error).kind == kind


def test_a_number_decides_a_mutant() -> None:
    first, second = (draw("onnx", 5, 17) for _ in range(2))
    assert (first.title, first.files) == (second.title, second.files)
    assert draw("onnx", 5, 18).files != first.files
