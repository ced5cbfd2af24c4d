"""`dims` fixes symbolic dimensions in a package; a build warns of a batch of 1 that it refuses."""

from __future__ import annotations

import json
import warnings
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
import onnxruntime
import pytest

import webmlc
from tests.against_onnxruntime import parse
from tests.command_line import run
from webmlc.core.errors import InputError, ModelWarning

Device = Literal["wasm", "webgpu"]
SQUEEZE = """g (float[batch,1,frames,4] x) => (float[batch,frames] y) {
    m = ReduceMean<axes=[3], keepdims=1>(x)  y = Squeeze(m) }"""
UNNAMED = "g (float[?,4] x, float[?,4] z) => (float[?,4] y) { y = Concat<axis=0>(x, z) }"
DOTTED = "g (float[N,4] x) => (float[N,4] y) { y = Relu(x) }"  # renamed "audio.length"
REFUSALS = {
    "squeeze": (SQUEEZE, "node 'y' needs batch and 1 to be different.*--dim batch=1"),
    "reshape": (
        """g (float[batch,4] x) => (float[3,4] y) {
            s = Constant<value_ints=[3, 4]>() y = Reshape(x, s) }""",
        "node 'y' needs .*to be equal.*exported for other sizes",
    ),
    "top": (
        """g (float[batch,4] x) => (float[2,4] y, int64[2,4] i) {
            k = Constant<value_ints=[2]>() y, i = TopK<axis=0>(x, k) }""",
        "needs 2 and batch to be in this order of size",
    ),
    "index": (
        "g (float[batch,4] x) => (float[4] y) { i = Constant<value_int=1>() y = Gather(x, i) }",
        "needs 2 and batch to be in this order of size",
    ),
    "split": (
        """g (float[batch,4] x) => (float[2,4] y, float[r,4] z) {
            n = Constant<value_ints=[2, 3]>() y, z = Split<axis=0>(x, n) }""",
        "to be equal",
    ),
}


def run_onnxruntime(model: onnx.ModelProto, feeds: dict[str, Any]) -> list[Any]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    results: list[Any] = session.run(None, feeds)
    return results


@pytest.mark.parametrize("device", ["wasm", "webgpu"])
@pytest.mark.parametrize("batch", [1, 3])
def test_a_fixed_batch_decides_what_a_squeeze_removes(
    tmp_path: Path, device: Device, batch: int
) -> None:
    model = parse(SQUEEZE)
    webmlc.build(model, tmp_path, device, dims={"batch": batch})
    loaded = webmlc.load(tmp_path, device)
    for frames in (2, 5):
        x = np.random.default_rng(0).standard_normal((batch, 1, frames, 4)).astype(np.float32)
        (expected,) = run_onnxruntime(model, {"x": x})
        np.testing.assert_allclose(loaded.run({"x": x})["y"], expected, rtol=1e-5, strict=True)
    with pytest.raises(InputError, match=rf"'x' has shape \[2, 1, 5, 4\], expected \[{batch}, "):
        loaded.run({"x": np.zeros((2, 1, 5, 4), np.float32)})
    loaded.dispose()


@pytest.mark.parametrize(("text", "reason"), REFUSALS.values(), ids=REFUSALS.keys())
def test_a_build_warns_of_a_batch_of_1_that_its_package_refuses(
    tmp_path: Path, text: str, reason: str
) -> None:
    with pytest.warns(ModelWarning, match=f"refuse batch = 1: .*{reason}"):
        manifest = webmlc.build(parse(text), tmp_path, "wasm")
    assert any(symbol.name == "batch" for symbol in manifest.symbols)


@pytest.mark.parametrize(
    "text",
    [
        "g (float[batch,4] x) => (float[batch,4] y) { y = Softmax(x) }",
        """g (float[batch,4] x, float[m,4] z) => (float[k,4] y) { y = Add(x, z) }""",
        """g (float[batch,1,h,w] x, float[1,1,3,3] f) => (float[batch,1,a,b] y) {
            y = Conv(x, f) }""",
        "g (float[batch,4] x, int64[2] sizes) => (float[a,b] y) { y = Reshape(x, sizes) }",
    ],
)
def test_a_batch_of_1_that_runs_has_no_warning(tmp_path: Path, text: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        webmlc.build(parse(text), tmp_path, "wasm")


def test_dimensions_have_the_names_that_the_model_shows(tmp_path: Path) -> None:
    manifest = webmlc.build(parse(UNNAMED), tmp_path, "wasm", dims={"x_0": 2, "z_0": 0})
    assert not manifest.symbols
    x = np.ones((2, 4), np.float32)
    y = webmlc.load(tmp_path, "wasm").run({"x": x, "z": x[:0]})["y"]
    np.testing.assert_array_equal(y, x)
    dotted = parse(DOTTED)
    dotted.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "audio.length"
    for name in ("audio.length", "audio_length"):
        assert not webmlc.build(dotted, tmp_path, "wasm", dims={name: 3}).symbols


def test_a_dimension_that_the_model_lacks_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="named 'bach'; the model's are: batch, frames"):
        webmlc.build(parse(SQUEEZE), tmp_path, dims={"bach": 1})
    for size in (-1, 1 << 31, True, 1.5):
        with pytest.raises(InputError, match=r"'batch' is .*, expected a whole number"):
            webmlc.build(parse(SQUEEZE), tmp_path, dims={"batch": size})  # type: ignore[dict-item]
    model = parse("g (float[n] x, float[n] w) => (float[n] y) { y = Add(x, w) }")
    with pytest.raises(InputError, match="'n' is 3, but 2 in a constant"):
        webmlc.build(model, tmp_path, dims={"n": 3}, constants={"w": [1, 2]})
    assert not list(tmp_path.iterdir())


def test_the_command_line_fixes_sizes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    webmlc = partial(run, monkeypatch, capsys)
    onnx.save(parse(SQUEEZE), tmp_path / "model.onnx")
    build = ("build", tmp_path / "model.onnx", "-o", tmp_path / "p", "--target", "wasm")
    result = webmlc(*build, "--dim", "batch=1")
    assert result.code == 0 and "warning" not in result.err
    np.savez(tmp_path / "in.npz", x=np.ones((1, 1, 3, 4), np.float32))
    result = webmlc("run", tmp_path / "p", "--inputs", tmp_path / "in.npz", "--json")
    assert json.loads(result.out)[0]["type"] == "float32[3]"
    result = webmlc(*build, "--dim", "bach=1")
    assert result.code == 2 and "the model's are: batch, frames" in result.err
    assert "refuse batch = 1" in " ".join(webmlc(*build).err.split())
