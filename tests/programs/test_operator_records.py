"""A package records the operators that people defined, and its report page shows them."""

from __future__ import annotations

from pathlib import Path

import onnx
from onnx import helper

import webmlc
from tests.programs.test_operator_kernels import mix
from tests.programs.test_operators import bend, custom, model_of, smear
from webmlc.build_options import BuildOptions
from webmlc.package.manifest import CustomOperator
from webmlc.package.manifest_json import read_manifest
from webmlc.report.write_report import model_report


def test_a_package_records_its_operators(tmp_path: Path) -> None:
    nodes = [
        custom("Bend", ["x"], ["a"]),
        custom("Mix", ["a", "x", "s"], ["low"]),
        custom("Bend", ["low"], ["b"]),
        helper.make_node("Relu", ["b"], ["y"]),
    ]
    model = model_of(nodes, {"x": ["n", 8], "s": [1]}, ["y"])
    webmlc.build(model, tmp_path / "package", "wasm", operators=[mix, bend, smear])
    assert read_manifest(tmp_path / "package").operators == (
        CustomOperator("com.example", "Bend", 2, "tests.programs.test_operators:bend"),
        CustomOperator("com.example", "Mix", 1, "tests.programs.test_operator_kernels:mix"),
    )
    plain = model_of([helper.make_node("Relu", ["x"], ["y"])], {"x": [4]}, ["y"])
    assert webmlc.build(plain, tmp_path / "plain", "wasm", operators=[mix]).operators == ()


def test_the_report_shows_operators(tmp_path: Path) -> None:
    model = model_of([custom("Bend", ["x"], ["y"])], {"x": ["n", 8]}, ["y"])
    onnx.save(model, tmp_path / "model.onnx")
    report = model_report(tmp_path / "model.onnx", BuildOptions("wasm", operators=[bend]), {}, None)
    assert report.data["operators"] == [
        {"operator": "com.example.Bend", "nodes": 1, "from": "tests.programs.test_operators:bend"}
    ]
