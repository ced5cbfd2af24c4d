"""`webmlc.check` compares operators of people's own with their definitions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

import webmlc
from tests.programs.test_operator_kernels import mix
from tests.programs.test_operators import (
    DOMAIN,
    TARGETS,
    bend,
    custom,
    extremes,
    model_of,
    smear,
)
from webmlc import operator, te
from webmlc.build_options import BuildOptions
from webmlc.core.errors import UserError
from webmlc.core.machine import Device
from webmlc.graph.compute import Tensor
from webmlc.graph.table import OPS
from webmlc.host.check import check_model
from webmlc.host.check_options import CheckOptions
from webmlc.pipeline import build_package


def mixed_model() -> onnx.ModelProto:
    nodes = [
        custom("Smear", ["x"], ["s"], width=4),
        custom("Bend", ["s"], ["b"]),
        custom("Mix", ["b", "x", "scale"], ["low", "total"]),
        custom("Extremes", ["low"], ["least"]),
        helper.make_node("Relu", ["low"], ["y"]),
    ]
    return model_of(nodes, {"x": ["n", 8], "scale": [1]}, ["y", "least", "total"])


@pytest.mark.parametrize("device", TARGETS)
def test_the_definitions_are_the_reference(device: Device) -> None:
    operators = (smear, bend, mix, extremes)
    result = webmlc.check(mixed_model(), device=device, operators=operators)
    assert result.verdict == "passed", result.notes()
    assert {output.output for output in result.outputs} == {"y", "least", "total"}
    names = "com.example.Smear, com.example.Bend, com.example.Mix, com.example.Extremes"
    assert result.reference == f"onnx.reference and the definition of {names}"
    assert (DOMAIN, "Smear") not in OPS


def test_a_package_that_differs_from_the_definition_fails(tmp_path: Path) -> None:
    @operator(DOMAIN, "Bend")
    def steeper(x: Tensor, *, slope: float = 0.5) -> Tensor:
        return te.compute(x.shape, lambda *i: te.if_then_else(x[i] > 1.0, x[i], 0.6 * x[i]), "b")

    model = model_of([custom("Bend", ["x"], ["y"])], {"x": [64]}, ["y"])
    onnx.save(model, tmp_path / "model.onnx")
    webmlc.build(model, tmp_path / "package", "wasm", operators=[steeper], progress=False)
    result = webmlc.check(
        tmp_path / "package", built_from=tmp_path / "model.onnx", operators=[bend]
    )
    assert result.verdict == "failed"


def test_the_first_node_that_differs_may_have_an_operator_of_its_own(tmp_path: Path) -> None:
    """The build sees another definition than the reference."""
    factor = [0.5]

    @operator(DOMAIN, "Half")
    def half(x: Tensor) -> Tensor:
        return te.compute(x.shape, lambda i, j: x[i, j] * factor[0], "half")

    def build(source: Path, out: Path, options: BuildOptions) -> object:
        factor[0] = 0.7
        try:
            return build_package(source, out, options)
        finally:
            factor[0] = 0.5

    chain = ["Exp", "Half", "Tanh", "Neg"]
    nodes = [
        helper.make_node(op, [f"v{i}"], [f"v{i + 1}"], domain=DOMAIN if op == "Half" else "")
        for i, op in enumerate(chain)
    ]
    onnx.save(model_of(nodes, {"v0": ["n", 8]}, ["v4"]), tmp_path / "model.onnx")
    options = BuildOptions(operators=[half])
    result = check_model(tmp_path / "model.onnx", build, CheckOptions("wasm"), options)
    assert (result.verdict, result.first_difference) == ("failed", "Half 'v2' (value 'v2')")


def test_an_operator_may_have_the_name_of_one_of_onnx() -> None:
    """Gelu has the attribute `approximate` in ONNX."""

    @operator(DOMAIN, "Gelu")
    def gelu(x: Tensor, *, steps: tuple[int, ...] = (1,)) -> Tensor:
        return te.compute(x.shape, lambda i: x[i] * sum(steps), name="gelu")

    model = model_of([custom("Gelu", ["x"], ["y"], steps=[2, 3])], {"x": ["n"]}, ["y"])
    assert webmlc.check(model, operators=[gelu]).verdict == "passed"


def test_inputs_that_the_definition_refuses(tmp_path: Path) -> None:
    model = model_of([custom("Mix", ["a", "b", "s"], ["", "y"])], {"a": ["p", 8], "b": ["q", 8],
        "s": [1]}, ["y"])  # fmt: skip
    feeds = {n: np.ones((r, 8), np.float32) for n, r in (("a", 3), ("b", 4))}
    with pytest.raises(UserError):
        webmlc.check(model, inputs=feeds, operators=[mix])
