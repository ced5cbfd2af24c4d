"""Doors refuse what they cannot read in one sentence, and carry names over. Without frameworks."""

from __future__ import annotations

import importlib.util
import logging
import warnings
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper
from onnx.reference import ReferenceEvaluator

from webmlc.core.errors import InputError, ModelError, ModelWarning, UserError
from webmlc.frontend.doors import door, export_source
from webmlc.frontend.doors.names import (
    Place,
    distinct,
    leaf_names,
    name_dimensions,
    name_model,
    name_nodes,
    rename_outputs,
    without_suffix,
)
from webmlc.frontend.file_kinds import is_kind
from webmlc.pipeline import build


def model() -> ModelProto:
    """y = Relu(x), with the names that tf2onnx would invent."""
    ports = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [size, 4])
        for name, size in (("x:0", "unk__7"), ("Identity:0", "unk__8"))
    ]
    node = helper.make_node("Relu", ["x:0"], ["Identity:0"], name="a/Relu")
    graph = helper.make_graph([node], "graph", ports[:1], ports[1:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def source_of(module: str, name: str) -> object:
    """An object whose class looks like one of a framework that is not installed."""
    return type(name, (), {"__module__": module})()


@pytest.mark.parametrize(
    ("source", "framework", "extra"),
    [
        (source_of("torch.nn.modules.module", "Module"), "PyTorch", "torch"),
        (source_of("torch.export.exported_program", "ExportedProgram"), "PyTorch", "torch"),
        (source_of("keras.src.models.model", "Model"), "Keras", "keras"),
        (source_of("sklearn.base", "BaseEstimator"), "scikit-learn", "sklearn"),
        (source_of("xgboost.core", "Booster"), "XGBoost", "boosters"),
        (source_of("lightgbm.basic", "Booster"), "LightGBM", "boosters"),
        (lambda x: x, "JAX", "jax"),
        ("model.pt2", "PyTorch", "torch"),
        ("model.keras", "Keras", "keras"),
        ("model.tflite", "TensorFlow Lite", "tflite"),
        ("folder", "TensorFlow", "tensorflow"),
    ],
)
def test_a_missing_package_names_the_extra(
    source: Any, framework: str, extra: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    if isinstance(source, str):
        source = tmp_path / source
        if source.suffix:
            source.write_bytes(b"\xff")
        else:
            source.mkdir()
            (source / "saved_model.pb").touch()
    with pytest.raises(UserError) as error:
        build(source, tmp_path / "out")
    assert f"Models of {framework} need the Python package" in str(error.value)
    assert f"pip install 'webmlc[{extra}]'" in str(error.value)


def test_a_folder_is_not_a_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "framework").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UserError, match="package 'framework', which is not installed"):
        door.require("Framework", "extra", "framework")


def test_a_failed_export_names_the_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(source: object, example: door.Example) -> ModelProto:
        raise RuntimeError("no rule for aten::odd")

    failing = door.Door("Odd", "oddonnx", lambda source: is_kind(source, ".odd"), fail)
    monkeypatch.setattr(export_source, "DOORS", (failing,))
    path = tmp_path / "model.odd"
    with pytest.raises(ModelError, match=r"model\.odd: no such file"):
        build(path, tmp_path / "out")
    path.write_bytes(b"\xff")
    message = r"model\.odd: oddonnx cannot export this model\. RuntimeError: no rule for aten::odd"
    with pytest.raises(ModelError, match=message):
        build(path, tmp_path / "out")


def test_only_our_warnings_pass_a_door(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def export(source: object, example: door.Example) -> ModelProto:
        warnings.warn("the exporter is deprecated", FutureWarning, stacklevel=1)
        logging.getLogger("oddonnx").error("no rule for a developer's flag")
        warnings.warn("classes are numbers", ModelWarning, stacklevel=1)
        return model()

    loud = door.Door("Odd", "oddonnx", lambda source: isinstance(source, float), export)
    monkeypatch.setattr(export_source, "DOORS", (loud,))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        export_source.export_source(0.5)
    assert [str(warning.message) for warning in caught] == ["classes are numbers"]
    assert not caplog.records


def test_an_unknown_object_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot read an object of class int"):
        build(3, tmp_path)
    with pytest.raises(UserError, match="An ONNX or GGUF model has its own shapes"):
        build(model(), tmp_path, example_inputs=(np.zeros(3),))


def test_names_are_carried_over() -> None:
    exported = model()
    without_suffix(exported)
    rename_outputs(exported, ["scores"])
    name_dimensions(exported, None, lambda text: text.startswith("unk__"), has_batch=True)
    name_nodes(exported, lambda node: "layer/Relu")
    name_model(exported, "my model.v2")
    onnx.checker.check_model(exported)
    text = onnx.printer.to_text(exported.graph)
    assert "my_model_v2 (float[batch,4] x) => (float[unk__8,4] scores)" in text
    assert '["layer/Relu"] scores = Relu (x)' in text


def test_outputs_that_are_inputs_or_equal_have_names_of_their_own() -> None:
    text = """
    g (float[4] x) => (float[4] x, float[4] a, float[4] a, float[4] b) {
      scores = Relu (x) a = Neg (scores) b = Abs (a) }
    """
    exported = onnx.parser.parse_model('<ir_version: 8, opset_import: ["" : 18]>' + text)
    rename_outputs(exported, ["x", "y", "z", "w"])  # an input's name
    assert [port.name for port in exported.graph.output] == ["x", "a", "a", "b"]
    rename_outputs(exported, ["same", "b", "scores", "a"])
    onnx.checker.check_model(exported)
    assert [port.name for port in exported.graph.output] == ["same", "b", "scores", "a"]
    x = np.array([-1, 2, -3, 4], np.float32)
    results = ReferenceEvaluator(exported).run(None, {"x": x})
    relu = np.maximum(x, 0)
    for result, value in zip(results, (x, -relu, -relu, relu), strict=True):
        np.testing.assert_array_equal(result, value)


@dataclass
class Cache:
    """A cache of keys and values in the form of transformers'."""

    layers: list[SimpleNamespace]
    length: int = 3


def test_leaves_of_records_have_the_paths_to_them() -> None:
    layer = SimpleNamespace(keys=Place(3), values=Place(4), window=None)
    pair = SimpleNamespace(cross_attention_cache=Cache([layer]))
    record = {
        "logits": Place(0),
        "hidden_states": (Place(1), [Place(2)]),
        "past_key_values": pair,
        "cache": Cache([SimpleNamespace(keys=Place(5))]),
    }
    assert list(leaf_names(record).values()) == [
        "logits", "hidden_states.0", "hidden_states.1.0", "past_key_values.0.encoder.key",
        "past_key_values.0.encoder.value", "cache.0.key",
    ]  # fmt: skip
    assert leaf_names(Place(0)) == {0: ""}
    names = distinct(["logits", "past.0.key", "ids"], ["ids", "past.0.key"])
    assert names == ["logits", "present.0.key", "ids_output"]


@pytest.mark.parametrize(
    "dynamic_shapes", [{"x:0": {0: "n"}}, [{0: "n"}], [("n", None)]], ids=["name", "order", "axes"]
)
def test_dynamic_shapes_name_dimensions(dynamic_shapes: Any) -> None:
    exported = model()
    name_dimensions(exported, dynamic_shapes, lambda text: True)
    assert exported.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "n"


def test_dynamic_shapes_of_no_input_are_refused() -> None:
    with pytest.raises(InputError, match="no input is named 'y'"):
        name_dimensions(model(), {"y": {0: "n"}}, lambda text: True)
