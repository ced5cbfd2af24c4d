"""Strassen's algorithm from end to end: exact where numbers are, its error, any batch, any rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import webmlc

BOUND = 3e-6
"""How far a result may err, relative to the largest."""


@dataclass(frozen=True)
class Case:
    """y = sigmoid or relu(x · w + b), of matrices of so many rows, sums and columns."""

    rows: int
    depth: int
    columns: int
    activation: str = "Relu"

    def __str__(self) -> str:
        return f"{self.rows}x{self.depth}x{self.columns}, {self.activation}"

    def weights(self) -> tuple[np.ndarray, np.ndarray]:
        """Whole numbers, so small that all sums are exact."""
        random = np.random.default_rng(0)
        w = random.integers(-8, 9, (self.depth, self.columns))
        return w.astype(np.float32), random.integers(-8, 9, self.columns).astype(np.float32)

    def model(self, scale: float) -> onnx.ModelProto:
        """The model with its weights times `scale`, batch symbolic."""
        nodes = [
            helper.make_node("MatMul", ["x", "w"], ["t"]),
            helper.make_node("Add", ["t", "b"], ["s"]),
            helper.make_node(self.activation, ["s"], ["y"]),
        ]
        values = [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", self.rows, size])
            for name, size in (("x", self.depth), ("y", self.columns))
        ]
        scaled = zip("wb", (a * np.float32(scale) for a in self.weights()), strict=True)
        constants = [numpy_helper.from_array(array, name) for name, array in scaled]
        graph = helper.make_graph(nodes, "g", values[:1], values[1:], constants)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        onnx.checker.check_model(model)
        return model

    def expected(self, x: np.ndarray, scale: float) -> np.ndarray:
        w, b = (a.astype(np.float64) * np.float64(np.float32(scale)) for a in self.weights())
        total = x.astype(np.float64) @ w + b
        return np.maximum(total, 0) if self.activation == "Relu" else 1 / (1 + np.exp(-total))


CASES = [
    Case(24, 16, 32),
    Case(13, 24, 16),  # 7 pairs of rows: a tile, and one row
    Case(21, 8, 48),
    Case(19, 40, 16, "Sigmoid"),
    Case(1, 8, 16),
    Case(2, 8, 16, "Sigmoid"),
    Case(197, 192, 64),
    Case(37, 16, 256),  # 16 pairs of panels: tiles of rows meet two at a time
]


@pytest.fixture(autouse=True)
def _small_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """In products so small it loses."""
    monkeypatch.setattr("webmlc.graph.algorithms.strassen.use_strassen.CODE", -(10**9))


def build(case: Case, folder: Path, scale: float) -> None:
    manifest = webmlc.build(case.model(scale), folder, target="wasm")
    kernels = dict.fromkeys(s.kernel.split("_")[0] for s in manifest.programs["wasm"].steps)
    assert list(kernels) == ["strasseninput", "strassenproduct"]


def loaded_models(folder: Path) -> Iterator[tuple[str, webmlc.Model]]:
    """A package's model in each variant on one thread and on two, with a description."""
    for features, threads in product(("relaxed", "simd128"), (1, 2)):
        model = webmlc.load(folder, "wasm", threads, features)
        yield f"{features}, threads: {threads}", model
        model.dispose()


@pytest.mark.parametrize("case", [c for c in CASES if c.activation == "Relu"], ids=str)
def test_whole_numbers_are_exact(case: Case, tmp_path: Path) -> None:
    build(case, tmp_path, 1)
    random = np.random.default_rng(1)
    for description, model in loaded_models(tmp_path):
        for batch in (1, 3):
            x = random.integers(-8, 9, (batch, case.rows, case.depth)).astype(np.float32)
            np.testing.assert_array_equal(
                model.run({"x": x})["y"], case.expected(x, 1), err_msg=description
            )


@pytest.mark.parametrize("case", CASES, ids=str)
def test_error_is_small_for_any_batch(case: Case, tmp_path: Path) -> None:
    scale = 0.2 / np.sqrt(case.depth)
    build(case, tmp_path, scale)
    random = np.random.default_rng(1)
    for description, model in loaded_models(tmp_path):
        for batch in (1, 3, 1):
            x = random.standard_normal((batch, case.rows, case.depth)).astype(np.float32)
            wanted = case.expected(x, scale)
            error = np.abs(model.run({"x": x})["y"] - wanted).max()
            assert error < BOUND * np.abs(wanted).max(), description


def test_a_missing_row_has_no_part_in_others(tmp_path: Path) -> None:
    """The last of an odd number of rows is infinite: only its own results are."""
    case = Case(13, 24, 16)
    build(case, tmp_path, 1)
    x = np.ones((1, case.rows, case.depth), np.float32)
    x[0, -1, 0] = np.inf
    model = webmlc.load(tmp_path, "wasm")
    result = model.run({"x": x})["y"]
    model.dispose()
    others = x[:, :-1]
    np.testing.assert_array_equal(result[:, :-1], case.expected(others, 1))


def test_a_convolution_of_one_tap_is_exact(tmp_path: Path) -> None:
    """Of whole numbers, in lines of three pairs, which tiles walk as one; and what follows it."""
    random = np.random.default_rng(0)
    w = random.integers(-8, 9, (64, 48)).astype(np.float32)
    b, scale = (random.integers(-8, 9, (64, 1, 1)).astype(np.float32) for _ in range(2))
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["t"]),
        helper.make_node("Mul", ["t", "scale"], ["s"]),
        helper.make_node("Add", ["s", "t"], ["sum"]),
        helper.make_node("Relu", ["sum"], ["y"]),
    ]
    values = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", size, 8, 6])
        for name, size in (("x", 48), ("y", 64))
    ]
    constants = {"w": w[:, :, None, None], "b": b.reshape(-1), "scale": scale}
    initialisers = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:], initialisers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    manifest = webmlc.build(model, tmp_path, target="wasm")
    kernels = [step.kernel for step in manifest.programs["wasm"].steps]
    assert any(name.startswith("strassenproduct") for name in kernels)
    for description, loaded in loaded_models(tmp_path):
        for batch in (1, 2):
            x = random.integers(-8, 9, (batch, 48, 8, 6)).astype(np.float32)
            t = np.einsum("oi,nihw->nohw", w, x) + b
            want = np.maximum(t * scale + t, 0)
            np.testing.assert_array_equal(loaded.run({"x": x})["y"], want, err_msg=description)
