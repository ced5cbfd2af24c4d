"""The verdicts of `check` on random or sensitive models, on batches, and on packages."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import webmlc
from tests.against_onnxruntime import parse
from tests.command_line import run
from webmlc.core.errors import UserError
from webmlc.host.check import disturbed, random_outputs
from webmlc.host.output_error import compare, with_sensitivity

RELU = "g (float[batch,3] x) => (float[batch,3] y) { y = Relu(x) }"
NOISE = "g (float[b,3] x) => (float[b,3] y, float[b,3] z) {NODES}"
RANDOM = {
    "added": "n = RandomNormalLike(x) y = Add(x, n) z = Relu(x)",
    "created": "n = RandomUniform<shape=[3]>() y = Mul(x, n) z = Neg(x)",
    "drawn": "s = Sigmoid(x) y = Bernoulli(s) z = Abs(x)",
}
SQUEEZE = """g (float[batch,1,n,4] x) => (float[batch,n] y) {
    m = ReduceMean<axes=[3], keepdims=1>(x) y = Squeeze(m) }"""
FIXED = """g (float[batch,4] x) => (float[2,4] y) {
    s = Constant<value_ints=[2, 4]>() y = Reshape(x, s) }"""


@pytest.mark.parametrize("nodes", RANDOM.values(), ids=RANDOM.keys())
def test_a_random_output_is_inconclusive_and_others_count(nodes: str) -> None:
    model = parse(NOISE.replace("NODES", nodes))
    assert random_outputs(model) == {"y"}
    result = webmlc.check(model, dims={"b": 64})
    verdicts = {output.output: output.verdict for output in result.outputs}
    assert verdicts == {"y": "inconclusive", "z": "passed"}
    assert result.verdict == "inconclusive"
    assert "draws random numbers" in result.notes()[0]


def test_batches_of_1_and_2_are_run() -> None:
    result = webmlc.check(parse(RELU))
    assert [(o.sizes, o.shape) for o in result.outputs] == [("", (1, 3)), ("batch = 2", (2, 3))]
    assert result.verdict == "passed" and result.rows()[1]["with"] == "batch = 2"
    assert len(webmlc.check(parse(RELU), dims={"batch": 5}).outputs) == 1
    (output,) = webmlc.check(parse(RELU), inputs={"x": np.ones((4, 3), np.float32)}).outputs
    assert output.shape == (4, 3)


def test_a_batch_that_only_the_package_refuses_fails() -> None:
    with pytest.warns(match="refuse batch = 1"):
        result = webmlc.check(parse(SQUEEZE))
    assert [o.verdict for o in result.outputs] == ["passed", "failed"]
    assert result.verdict == "failed" and result.first_difference is None
    (note,) = result.notes()
    assert result.rows()[1]["error"] is None and json.dumps(result.rows(), allow_nan=False)
    assert note.startswith("batch = 1: the package refuses what the reference runs. node 'y'")


def test_a_batch_that_the_reference_refuses_too_is_left_out() -> None:
    with pytest.warns(match="refuse batch = 1"):
        result = webmlc.check(parse(FIXED))
    assert [(o.sizes, o.verdict) for o in result.outputs] == [("", "passed")]


def test_an_error_within_the_sensitivity_of_the_reference_passes() -> None:
    exact = np.array([1.0, 0.5], np.float32)
    error = compare("y", exact, exact + np.float32(0.01), 1e-3)
    assert error.verdict == "failed"
    assert with_sensitivity(error, exact, exact + np.float32(0.001)).verdict == "failed"
    assert with_sensitivity(error, exact, exact + np.float32(0.004)).verdict == "passed"
    assert with_sensitivity(error, exact, exact + np.float32(0.4)).verdict == "inconclusive"
    wrong_shape = compare("y", exact, exact[:1], 1e-3)
    assert with_sensitivity(wrong_shape, exact, exact + np.float32(9)).verdict == "failed"


def test_inputs_are_disturbed_by_the_last_digits_of_floats() -> None:
    inputs: dict[str, Any] = {"x": np.full(99, 8, np.float32), "i": np.arange(3)}
    moved = disturbed(inputs, 0)
    assert moved["x"].dtype == np.float32 and moved["i"] is inputs["i"]
    assert 5e-7 < np.abs(moved["x"] / 8 - 1).max() < 2e-6


@pytest.mark.parametrize(
    ("node", "verdict"),
    [("Softmax(x)", "passed"), ("ReduceSum<keepdims=1>(x, axes)", "inconclusive")],
)
def test_what_disturbed_inputs_change_is_no_failure(node: str, verdict: str) -> None:
    """The sine of a large number depends on its last bits, and so on the order of sums."""
    model = parse(f"""g (float[n,3000] x) => (float[n,?] y) {{
        c = Constant<value_float=1.0e5>() axes = Constant<value_ints=[1]>()
        s = {node} t = Mul(s, c) y = Sin(t) }}""")
    result = webmlc.check(model, dims={"n": 32}, tolerance=1e-6)
    (output,) = result.outputs
    assert not output.passed and output.sensitivity is not None
    assert result.verdict == verdict
    assert "itself moves by" in result.notes()[0]


def test_a_package_is_checked_with_its_model_or_against_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = partial(run, monkeypatch, capsys, "check")
    onnx.save(parse(RELU), tmp_path / "relu.onnx")
    onnx.save(parse(RELU.replace("Relu", "Abs")), tmp_path / "abs.onnx")
    package = tmp_path / "package"
    webmlc.build(tmp_path / "relu.onnx", package)
    assert command(package, "--model", tmp_path / "relu.onnx").code == 0
    result = command(package, "--model", tmp_path / "abs.onnx", "--json")
    assert result.code == 1 and json.loads(result.out)["verdict"] == "failed"
    for device, other in (("wasm", "webgpu"), ("webgpu", "wasm")):
        result = command(package, "--device", device, "--json")
        assert result.code == 0
        assert json.loads(result.out)["reference"] == f"the package on {other}"
    webmlc.build(tmp_path / "relu.onnx", package, "wasm")
    assert "--model model.onnx" in command(package).err
    assert webmlc.check(package, built_from=tmp_path / "relu.onnx").verdict == "passed"
    assert command(tmp_path / "relu.onnx", "--model", tmp_path / "abs.onnx").code == 2


def test_the_command_says_why_it_is_inconclusive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    onnx.save(parse(NOISE.replace("NODES", RANDOM["added"])), tmp_path / "noise.onnx")
    result = run(monkeypatch, capsys, "check", tmp_path / "noise.onnx", "--json")
    report = json.loads(result.out)
    assert result.code == 2 and report["verdict"] == "inconclusive"
    assert "draws random numbers" in report["notes"][0]


def test_a_model_that_nothing_can_check_is_the_users_mistake() -> None:
    with pytest.raises(UserError, match="give `inputs` by name"):
        webmlc.check("model.onnx", (np.ones(3),))
