"""Models of texts compute what onnxruntime computes: in Python on both devices, and in Node."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from msgspec import structs

import webmlc
from tests.command_line import run
from tests.node import as_tensors, in_node
from tests.text_models import TEXT_MODELS, expected, model_of, texts
from webmlc.core.errors import InputError, ModelError, PackageError, UnsupportedError
from webmlc.core.text_patterns import portable_pattern
from webmlc.core.text_steps import CountGrams, Grams, Match
from webmlc.host.check import check_model
from webmlc.host.check_options import CheckOptions
from webmlc.host.texts import Counter
from webmlc.package.check_manifest import check_manifest
from webmlc.package.manifest import TextPort, TextTensor
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
    "1 labels of classes for 1 scores": """g (float[n,2] x) => (string[n] y) {
        y, s = ai.onnx.ml.LinearClassifier<classlabels_strings=["only"],coefficients=[1.0,-1.0],
          intercepts=[0.5]>(x) }""",
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
        "holds NoneType, expected texts": {"x": texts([None])},
        "holds int, expected texts": {"x": [["1"], [2]]},
        "holds list, expected texts": {"x": [["1"], ["2", "3"]]},
        "holds bytes, expected texts": {"x": [[b"1"]]},
        "holds [|]S1, expected texts": {"x": np.array([[b"1"]])},
        r"shape \[2\], expected \[n, 1\]": {"x": texts("1", "2")},
        "the text 'one' is not a number of type float32": {"x": texts(["one"])},
    }
    for message, inputs in wrong.items():
        with pytest.raises(InputError, match=message):
            model.run(inputs)
    with pytest.raises(InputError, match="the model returns 'y', 'z'"):
        model.run({"x": texts(["1"])}, outputs=["w"])
    assert model.run({"x": [["1.5"]]})["y"].tolist() == [[1.5]]
    assert model.run({"x": np.array([["2"]], np.dtypes.StringDType())})["y"].tolist() == [[2.0]]
    odd = {"dtype": "string", "shape": [0.5, 2], "data": ["1"]}
    runs = [
        as_tensors(i) for i in ({}, {"x": texts("1")}, {"x": texts([""])}, {"x": texts([None])})
    ]
    answers = in_node(tmp_path, [*runs, {"x": odd}])
    problems = (
        "missing", "has shape [1]", 'the text "" is not a number of type float32', "holds null",
        "has shape [0.5,2]",
    )  # fmt: skip
    for problem, answer in zip(problems, answers, strict=True):
        assert problem in answer["error"] and answer["code"] == "input", answer


def test_sizes_that_do_not_fit_are_errors(tmp_path: Path) -> None:
    graph = """g (string[n] x, string[n] y, string[a,b] z, string[m] w) =>
        (string[n] c, string[k,2] d, string[a,e] f, string[l] h, string[1] i) {
      c = StringConcat(x, y)
      h = StringConcat(x, w)
      two = Constant<value_ints=[-1,2]>()
      pairs = Reshape(w, two)
      d = StringConcat(pairs, pairs)
      f = NORMALISE<stopwords=["a"]>(z)
      first = Constant<value_ints=[0]>()
      start = Gather(w, first)
      i = StringConcat(start, start)
    }"""
    webmlc.build(model_of(graph), tmp_path, target="wasm")
    model = webmlc.load(tmp_path)
    right = {
        "x": texts("1", "2"),
        "y": texts("3", "4"),
        "z": texts(["a", "b"]),
        "w": texts("5", "6"),
    }
    assert model.run(right)["f"].tolist() == [["b"]]
    assert model.run(right | {"w": ["5\0", "6"]})["h"].tolist() == ["15\0", "26"]
    wrong = (
        {"y": texts("3")}, {"z": texts(["a"], ["b"])}, {"w": texts("5", "6", "7")}, {"w": texts()},
    )  # fmt: skip
    for change in wrong:
        with pytest.raises(InputError, match="shape"):
            model.run(right | change)
    answers = in_node(tmp_path, [as_tensors(right | change) for change in wrong])
    assert [answer.get("code") for answer in answers] == ["input"] * len(wrong), answers


@pytest.mark.parametrize("pattern", ["a++", "(?i:a)b", "(?=a)", r"\1", r"[\b]", "[[:foo:]]", "a\\"])
def test_patterns_that_hosts_would_misread_are_refused(pattern: str) -> None:
    with pytest.raises(ModelError, match="cannot be read in Python and in pages"):
        portable_pattern(pattern)


def test_edited_records_are_refused(tmp_path: Path) -> None:
    graph, _ = TEXT_MODELS["n-grams"]
    webmlc.build(model_of(graph), tmp_path, target="wasm")
    manifest = webmlc.load(tmp_path).manifest
    record = manifest.texts
    assert record is not None
    count = record.before[0]
    assert isinstance(count, CountGrams)
    edits: dict[str, dict[str, Any]] = {
        "has no files": {"words": "q.json"},
        "which no step before it computes": {"before": (structs.replace(count, value="q"),)},
        "texts.feeds names": {"before": ()},
        "is no regular expression": {"before": (*record.before, Match("x", "m", "("))},
        "counts n-grams": {"after": (count,)},
        "has 1 texts": {"constants": {"c": TextTensor((2, 3), ("a",))}},
        "computes no outputs": {"outputs": (TextPort("q", (), 0),)},
    }
    for problem, change in edits.items():
        with pytest.raises(PackageError, match=problem):
            check_manifest(structs.replace(manifest, texts=structs.replace(record, **change)))
    grams = Grams(("a", "b"), (2,), (0, 9))
    with pytest.raises(PackageError, match="do not fit together"):
        Counter(grams, structs.replace(count, shortest=1, longest=1, width=2))
    endless = structs.replace(count, shortest=1, longest=2, width=10, skips=10**15)
    counter = Counter(Grams(("a", "b", "a"), (1, 1), (0, 9)), endless)
    assert counter.count(texts("b", "c", "a")).nonzero()[0].tolist() == [0, 9]


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


CHANGED_OUTPUTS = """
import { load } from "./webmlc.js";
const model = await load(new URL("./", import.meta.url), { device: "wasm", threads: 1 });
const x = { dtype: "string", shape: [1, 2], data: ["a", "b"] };
const runs = [];
for (let i = 0; i < 2; i++) {
  const outputs = await model.run({ x });
  runs.push(Object.values(outputs).map(({ data }) => [...data]));
  for (const { data } of Object.values(outputs)) data.fill("changed");
}
console.log(JSON.stringify({ runs, x: x.data }));
await model.dispose();
"""


def test_outputs_share_nothing_with_constants_inputs_or_each_other(tmp_path: Path) -> None:
    model = model_of("""g (string[1, 2] x) => (string[1] c, string[1, 2] y, string[2, 1] z) {
        c = Constant<value_strings = ["fixed"]>()
        y = Identity(x)
        shape = Constant<value_ints = [2, 1]>()
        z = Reshape(x, shape)
    }""")
    webmlc.build(model, tmp_path, target="wasm")
    expected_texts = [["fixed"], ["a", "b"], ["a", "b"]]
    script = tmp_path / "change.mjs"
    script.write_text(CHANGED_OUTPUTS, "utf-8")
    answer = json.loads(subprocess.check_output(["node", str(script)]))
    assert answer == {"runs": [expected_texts] * 2, "x": ["a", "b"]}
    x, loaded = texts(["a", "b"]), webmlc.load(tmp_path)
    for _ in range(2):
        outputs = loaded.run({"x": x})
        assert [array.ravel().tolist() for array in outputs.values()] == expected_texts
        for array in outputs.values():
            array[...] = "changed"
        assert x.tolist() == [["a", "b"]]
