"""Operators of several outputs of which a model uses some, on both devices: the others are outputs
that nobody reads (in models of symbolic sizes), or they have no name (in models of static ones).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Literal

import numpy as np
import onnx
import onnx.parser
import pytest
from numpy.typing import NDArray
from onnx import helper
from onnx.reference import ReferenceEvaluator

import webmlc

Form = Literal["unread", "unnamed"]


@dataclass(frozen=True, slots=True)
class Case:
    """A node with all its outputs, its graph's inputs, and the rank of each output."""

    node: str
    inputs: dict[str, NDArray[np.generic]]
    constants: str = ""


RNG = np.random.default_rng(0)
X = RNG.standard_normal((3, 6)).astype(np.float32)
REPEATED = np.array([2, 1, 2, 3, 1], np.float32)
SEQUENCE = {
    "x": RNG.standard_normal((3, 2, 4)).astype(np.float32),
    "w": RNG.standard_normal((1, 8, 4)).astype(np.float32),
    "r": RNG.standard_normal((1, 8, 2)).astype(np.float32),
}
CASES = {
    "LayerNormalization": Case(
        "a, b, c = LayerNormalization (x, s)", {"x": X, "s": np.ones(6, np.float32)}
    ),
    "TopK": Case("a, b = TopK (x, k)", {"x": X}, "<int64[1] k = {2}>"),
    "Unique": Case("a, b, c, d = Unique (x)", {"x": REPEATED}),
    "Unique in order": Case("a, b, c, d = Unique <sorted = 0> (x)", {"x": REPEATED}),
    "Unique of one element": Case("a, b, c, d = Unique (x)", {"x": REPEATED[:1]}),
    "Unique of none": Case("a, b, c, d = Unique (x)", {"x": REPEATED[:0]}),
    "Split": Case("a, b, c = Split <axis = 1, num_outputs = 3> (x)", {"x": X}),
    "MaxPool": Case("a, b = MaxPool <kernel_shape = [2]> (x)", {"x": X[None, :1]}),
    "Dropout": Case("a, b = Dropout (x)", {"x": X}),
    "DynamicQuantizeLinear": Case("a, b, c = DynamicQuantizeLinear (x)", {"x": X}),
    "LSTM": Case("a, b, c = LSTM <hidden_size = 2> (x, w, r)", SEQUENCE),
}
VARIANTS = {"Unique in order", "Unique of one element", "Unique of none"}
"""Cases of which one output at a time is used: another case has every subset."""
REQUIRED = {"TopK": 2, "DynamicQuantizeLinear": 3}
"""The outputs that ONNX's checker wants named, where they are not the first one alone."""


def uses() -> Iterator[object]:
    """Every non-empty subset of the outputs of every case, in each form that ONNX allows."""
    for name, case in CASES.items():
        outputs = outputs_of(case)
        for count in range(1, 2 if name in VARIANTS else len(outputs) + 1):
            for used in combinations(outputs, count):
                yield pytest.param(name, used, "unread", id=f"{name}-{''.join(used)}-unread")
                last = outputs.index(used[-1])
                required = outputs[: REQUIRED.get(name, 1)]
                is_whole = name == "Split" and last < len(outputs) - 1
                if set(required) <= set(used) and count < len(outputs) and not is_whole:
                    yield pytest.param(name, used, "unnamed", id=f"{name}-{''.join(used)}-unnamed")


def outputs_of(case: Case) -> list[str]:
    return case.node.partition(" =")[0].split(", ")


def model_of(case: Case, used: tuple[str, ...], form: Form, symbolic: bool) -> onnx.ModelProto:
    """A graph that returns the outputs that it uses, in sizes that a run decides if `symbolic`."""
    shapes = {
        name: ",".join(f"n{size}" if symbolic else str(size) for size in array.shape)
        for name, array in case.inputs.items()
    }
    inputs = ", ".join(f"float[{shape}] {name}" for name, shape in shapes.items())
    outputs = ", ".join(f"float {name}" for name in used)
    text = f"g ({inputs}) => ({outputs}) {case.constants} {{ {case.node} }}"
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 21]> {text}')
    node = model.graph.node[0]
    if form == "unnamed":
        names = [name if name in used else "" for name in node.output]
        while not names[-1]:
            names.pop()
        del node.output[:]
        node.output.extend(names)
    return model


def expected(case: Case) -> dict[str, NDArray[np.generic]]:
    """All outputs of the case."""
    outputs = tuple(outputs_of(case))
    if case.inputs["x"].size == 0:
        empty = np.zeros(0, np.int64)
        return dict(zip(outputs, (case.inputs["x"], empty, empty, empty), strict=True))
    results = ReferenceEvaluator(model_of(case, outputs, "unread", False)).run(None, case.inputs)
    return dict(zip(outputs, map(np.asarray, results), strict=True))


@pytest.mark.parametrize("name, used, form", list(uses()))
def test_any_outputs_may_be_skipped(
    name: str, used: tuple[str, ...], form: Form, tmp_path: Path
) -> None:
    case = CASES[name]
    wanted = expected(case)
    model = model_of(case, used, form, symbolic=form == "unread")
    for info in model.graph.output:
        array = wanted[info.name]
        dims = [f"{info.name}{axis}" for axis in range(array.ndim)]
        element = helper.np_dtype_to_tensor_dtype(array.dtype)
        info.CopyFrom(helper.make_tensor_value_info(info.name, element, dims))
    webmlc.build(model, tmp_path)
    for device in ("wasm", "webgpu"):
        loaded = webmlc.load(tmp_path, device=device)
        results = loaded.run(case.inputs)
        loaded.dispose()
        assert set(results) == set(used)
        for output in used:
            assert results[output].dtype == wanted[output].dtype
            np.testing.assert_allclose(results[output], wanted[output], rtol=1e-4, atol=1e-5)
