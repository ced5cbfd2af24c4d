"""Mutants of models are right, or refused by one clear error; and the judge notices what is not.

`python -m tests.users.mutations` judges any number of others.
"""

from __future__ import annotations

from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
from onnx import helper

from tests.users.mutations.__main__ import devices
from tests.users.mutations.family import Mutant
from tests.users.mutations.onnx_bases import GRAPHS, graph_base
from tests.users.mutations.onnx_family import OnnxFamily
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


def one_node(operator: str, x: np.ndarray, **attributes: object) -> Mutant:
    """A model of one node, and its input."""
    element = helper.np_dtype_to_tensor_dtype(x.dtype)
    node = helper.make_node(operator, ["x"], ["y"], **attributes)
    values = [helper.make_tensor_value_info(name, element, None) for name in "xy"]
    values[0] = helper.make_tensor_value_info("x", element, x.shape)
    graph = helper.make_graph([node], "g", values[:1], values[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    return Mutant("", "model.onnx", {"model.onnx": model.SerializeToString()}, {"x": x})


@pytest.mark.parametrize(
    ("operator", "attributes", "result", "kind"),
    [
        ("Relu", {}, [1, 0, 3, 4], "wrong"),
        ("MaxPool", {"kernel_shape": [2]}, [1, 3, 4], "right"),
        ("MaxPool", {"kernel_shape": [2]}, [1, 2, 4], "wrong"),
    ],
)
def test_a_lost_nan_is_noticed_where_the_reference_decides(
    operator: str, attributes: dict[str, object], result: list[float], kind: Kind, tmp_path: Path
) -> None:
    """Of a NaN in MaxPool's windows, onnxruntime keeps some."""
    x = np.array([[[1, np.nan, 3, 4]]], np.float32)
    results = {"y": np.array([[result]], np.float32)}
    with patch("tests.users.mutations.onnx_family._run", lambda *_: results):
        mutant = one_node(operator, x, **attributes)
        outcome = OnnxFamily().judge(mutant, tmp_path, "wasm", lambda _: None)
    assert outcome.kind == kind


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
