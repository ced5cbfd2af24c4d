"""Models of texts compute what onnxruntime computes: in Python on both devices, and in Node."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import webmlc
from tests.command_line import run
from tests.node import as_tensors, in_node
from tests.text_models import TEXT_MODELS, expected, model_of, texts
from webmlc.core.errors import InputError, UnsupportedError
from webmlc.host.check import check_model
from webmlc.host.check_options import CheckOptions
from webmlc.pipeline import build_package


def assert_equal(outputs: Any, wanted: Any) -> None:
    """Compare the outputs of a run with those of onnxruntime."""
    assert list(outputs) == list(wanted)
    for name, array in wanted.items():
        assert outputs[name].shape == array.shape, name
        if array.dtype == object:
            assert outputs[name].tolist() == array.tolist(), name
        else:
            assert outputs[name].dtype == array.dtype, name
            np.testing.assert_allclose(outputs[name], array, 1e-6, 1e-6, err_msg=name)


@pytest.mark.parametrize("name", TEXT_MODELS)
def test_a_model_of_texts_is_right(tmp_path: Path, name: str) -> None:
    graph, inputs = TEXT_MODELS[name]
    model = model_of(graph)
    wanted = expected(model, inputs)
    webmlc.build(model, tmp_path)
    for device in ("wasm", "webgpu"):
        loaded = webmlc.load(tmp_path, device)
        assert_equal(loaded.run(inputs), wanted)
        if device == "wasm":
            last = list(wanted)[-1]
            assert_equal(loaded.run(inputs, outputs=[last]), {last: wanted[last]})
        loaded.dispose()
    (answer,) = in_node(tmp_path, [as_tensors(inputs)], threads=1)
    assert list(answer) == list(wanted), answer
    for output, array in wanted.items():
        data = answer[output]["data"]
        if array.dtype == bool:
            data = [int(text) for text in data]
        got = np.array(data, object).astype(array.dtype).reshape(answer[output]["shape"])
        assert_equal({output: got}, {output: array})


REFUSED = {
    "Unique": "g (string[n] x) => (string[m] y) { y = Unique(x) }",
    "cannot be read in Python and in pages": (
        r'g (string[n] x) => (bool[n] y) { y = RegexFullMatch<pattern="\\pL+">(x) }'
    ),
    "outside of its loop or branch": """g (string[n] x, bool c) => (string[n] y) { y = If(c) <
        then_branch = t () => (string[n] a) { a = StringConcat(x, x) },
        else_branch = e () => (string[n] b) { b = Identity(x) }> }""",
    "made of texts of results": """g (float[n,3] x) => (float[n] y) {
        best = ArgMax<axis=1,keepdims=0>(x)
        l = ai.onnx.ml.LabelEncoder<keys_int64s=[0,1,2],values_strings=["1","2","3"]>(best)
        y = Cast<to=1>(l) }""",
    "a text that is computed from numbers": """g (float[n,3] x) => (float[n] y) {
        best = ArgMax<axis=1,keepdims=0>(x)
        l = ai.onnx.ml.LabelEncoder<keys_int64s=[0,1,2],values_strings=["1","2","3"]>(best)
        z = Cast<to=1>(l)
        y = Mul(z, z) }""",
}


@pytest.mark.parametrize("reason", REFUSED)
def test_a_text_in_the_middle_is_refused(tmp_path: Path, reason: str) -> None:
    with pytest.raises(UnsupportedError, match=reason):
        webmlc.build(model_of(REFUSED[reason]), tmp_path, target="wasm")


def test_wrong_texts_are_errors(tmp_path: Path) -> None:
    graph = (
        "g (string[n,1] x) => (float[n,1] y, string[n,1] z) { y = Cast<to=1>(x) z = Identity(x) }"
    )
    webmlc.build(model_of(graph), tmp_path, target="wasm")
    model = webmlc.load(tmp_path)
    assert str(model.inputs[0]) == "x: str[n, 1]"
    assert [str(port) for port in model.outputs] == ["y: float32[n, 1]", "z: str[n, 1]"]
    types = (tmp_path / "model.d.ts").read_text()
    text = '{ dtype: "string"; shape: [number, 1]; data: string[] }'
    assert f"  x: string[] | {text};\n" in types and f"  z: {text};\n" in types
    wrong: dict[str, dict[str, Any]] = {
        "input 'x' is missing": {},
        "no input is named 'q'; the model takes 'x' [(]str": {"x": texts(["1"]), "q": 1},
        "holds float64, expected texts": {"x": np.ones((1, 1))},
        "holds object, expected texts": {"x": texts([None])},
        r"shape \[2\], expected \[n, 1\]": {"x": texts("1", "2")},
        "the text 'one' is not a number of type float32": {"x": texts(["one"])},
    }
    for message, inputs in wrong.items():
        with pytest.raises(InputError, match=message):
            model.run(inputs)
    with pytest.raises(InputError, match="the model returns 'y', 'z'"):
        model.run({"x": texts(["1"])}, outputs=["w"])
    assert model.run({"x": [["1.5"]]})["y"].tolist() == [[1.5]]
    answers = in_node(
        tmp_path, [as_tensors(i) for i in ({}, {"x": texts("1")}, {"x": texts([""])})]
    )
    assert ["missing" in answers[0]["error"], "has shape [1]" in answers[1]["error"]] == [
        True,
        True,
    ]
    assert answers[2] == {"error": 'the text "" is not a number of type float32', "code": "input"}


def test_the_command_line_takes_texts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    graph, inputs = TEXT_MODELS["pipeline"]
    model = model_of(graph)
    onnx.save(model, tmp_path / "mail.onnx")
    out, options = tmp_path / "out.npz", [f"--text=x={text}" for text in inputs["x"][:, 0]]
    arguments = ("run", tmp_path / "mail.onnx", *options, "--json", "-o", out)
    result = run(monkeypatch, capsys, *arguments)
    assert result.code == 0, result.err
    (row, _) = json.loads(result.out)
    labels = expected(model, inputs)["label"].tolist()
    assert row == {
        "output": "label", "type": "str[3]", "min": "", "mean": "", "max": "",
        "texts": ", ".join(labels),
    }  # fmt: skip
    assert np.load(out)["label"].tolist() == labels
    check = check_model(tmp_path / "mail.onnx", build_package, CheckOptions("wasm"))
    assert check.verdict == "passed", check.rows()
    assert {output.sizes for output in check.outputs} == {"", "n = 2"}
