"""Every file that webmlc builds goes through every command, first with an empty cache, then not."""

from __future__ import annotations

import json
import shutil
import signal
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest
from onnx import numpy_helper

from tests.language_models.small_models import QWEN3, write_model
from tests.users.installed import Installed

pytestmark = pytest.mark.xdist_group("users")  # one worker installs the wheel, and has the cache

TEXT = """
<ir_version: 8, opset_import: ["" : 17]>
network (float[batch, 16] features) => (float[batch, 4] scores) {
  hidden = Gemm (features, first, bias)
  active = Relu (hidden)
  logits = MatMul (active, second)
  scores = Softmax <axis = 1> (logits)
}
"""
FEATURES = np.random.default_rng(1).standard_normal((3, 16)).astype(np.float32)


def network(scale: float = 1.0) -> onnx.ModelProto:
    """A small classifier of any number of rows."""
    model = onnx.parser.parse_model(TEXT)
    random = np.random.default_rng(0)
    for name, shape in (("first", (16, 8)), ("bias", (8,)), ("second", (8, 4))):
        array = (scale * random.standard_normal(shape)).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    return model


def write_plain(folder: Path) -> Path:
    onnx.save(network(), folder / "network.onnx")
    return folder / "network.onnx"


def write_external(folder: Path) -> Path:
    """As exporters do for large models, in a folder whose name has spaces and other letters."""
    path = folder / "mein Modell – 模型 v1.0" / "network final.onnx"
    path.parent.mkdir()
    options = {"save_as_external_data": True, "location": f"{path.name}.data", "size_threshold": 0}
    onnx.save_model(network(), path, **options)
    return path


MODELS = {"plain": write_plain, "external data": write_external}


@pytest.fixture(scope="module", params=MODELS)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The path of a model in a folder of its own."""
    return MODELS[request.param](tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def package(webmlc: Installed, model: Path) -> Path:
    """The package that `webmlc build` writes beside the model."""
    fresh = webmlc.json("build", model.name, cwd=model.parent)
    folder = model.parent / "build" / model.stem
    assert fresh["folder"] == f"build/{model.stem}" and set(fresh["programs"]) == {"wasm", "webgpu"}
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_second_build_is_the_same_from_the_cache(
    webmlc: Installed, model: Path, package: Path, tmp_path: Path
) -> None:
    before = contents(package)
    report = webmlc.json("build", model, "-o", tmp_path / "warm", cwd=tmp_path)
    assert contents(tmp_path / "warm") == before
    assert report["folder"] == str(tmp_path / "warm")
    (package / "index.html").unlink()
    assert "webmlc serve" in webmlc.run("build", model.name, cwd=model.parent).out
    assert contents(package) == before


@pytest.mark.parametrize("device", ["wasm", "webgpu"])
@pytest.mark.parametrize("model", ["plain"], indirect=True)
def test_a_package_computes_what_onnxruntime_does(
    webmlc: Installed, model: Path, package: Path, device: str, tmp_path: Path
) -> None:
    np.savez(tmp_path / "features.npz", features=FEATURES)
    options = ("--inputs", "features.npz", "-o", "scores.npz", "--device", device)
    webmlc.run("run", package, *options, cwd=tmp_path)
    session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    (expected,) = session.run(None, {"features": FEATURES})
    with np.load(tmp_path / "scores.npz") as outputs:
        np.testing.assert_allclose(outputs["scores"], expected, 1e-5, 1e-6)


@pytest.mark.parametrize("model", ["external data"], indirect=True)
def test_a_model_passes_its_check(webmlc: Installed, model: Path) -> None:
    report = webmlc.json("check", model.name, "--dim", "batch=2", cwd=model.parent)
    assert report["verdict"] == "passed" and report["outputs"][0]["shape"] == [2, 4]


def test_changed_external_data_are_another_package(webmlc: Installed, tmp_path: Path) -> None:
    path = write_external(tmp_path)
    webmlc.run("build", path.name, "--target", "wasm", cwd=path.parent)
    before = contents(path.parent / "build" / path.stem)
    data = path.with_name(f"{path.name}.data")
    floats = np.frombuffer(data.read_bytes(), np.float32)
    data.write_bytes((2 * floats).astype(np.float32).tobytes())
    webmlc.run("build", path.name, "--target", "wasm", cwd=path.parent)
    after = contents(path.parent / "build" / path.stem)
    assert {name for name in after if after[name] != before[name]} == {
        "weights.safetensors",
        "manifest.json",
    }


@pytest.fixture(scope="module")
def digits(webmlc: Installed, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model and its package."""
    folder = tmp_path_factory.mktemp("digits")
    write_plain(folder)
    webmlc.run("build", "network.onnx", cwd=folder)
    return folder


def test_the_other_commands_take_a_model_or_its_package(webmlc: Installed, digits: Path) -> None:
    stages = webmlc.run("inspect", "network.onnx", "--target", "wasm", cwd=digits).out
    assert "01 frontend" in stages and "relaxed: code" in stages
    (row,) = webmlc.json("bench", "build/network", "--runs", 2, cwd=digits)
    assert row["runs"] == 2 and row["median ms"] > 0
    webmlc.run("report", "build/network", "-o", "a report.html", cwd=digits)
    assert (digits / "a report.html").read_text("utf-8").startswith("<!doctype html>")
    webmlc.run("build", "network.onnx", "--single-file", cwd=digits)
    assert {path.name for path in (digits / "build").iterdir()} == {
        "network",
        "network.js",
        "network.d.ts",
    }


def take_interrupts() -> None:
    """Let SIGINT end this process, also where a shell started the tests in the background."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.fixture
def server(webmlc: Installed, digits: Path) -> Iterator[str]:
    """The address at which `webmlc serve` serves the package."""
    process = webmlc.start(
        "serve", "build/network", "--port", 0, cwd=digits, prepare=take_interrupts
    )
    try:
        assert process.stdout is not None
        words = process.stdout.readline().split()
        yield next(word for word in words if word.startswith("http://"))
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
        assert process.returncode == 0 and "Traceback" not in err
    finally:
        process.kill()


def test_a_server_serves_every_file_of_the_package(server: str, digits: Path) -> None:
    for name, data in contents(digits / "build" / "network").items():
        with urllib.request.urlopen(server + name, timeout=30) as response:
            assert response.read() == data
            assert response.headers["Cross-Origin-Opener-Policy"] == "same-origin"
    with urllib.request.urlopen(server, timeout=30) as response:
        assert response.headers["Content-Type"].startswith("text/html")


def test_a_gguf_model_is_built_and_answers(webmlc: Installed, tmp_path: Path) -> None:
    write_model(tmp_path / "a model.gguf", replace(QWEN3, layers=1, hidden=64))
    reports = [webmlc.json("build", "a model.gguf", cwd=tmp_path) for _ in range(2)]
    assert reports[0] == reports[1]
    rows: Any = webmlc.json("run", "build/a model", cwd=tmp_path)
    assert [row["output"] for row in rows] == ["logits", "next_token"]
    options = ("--prompt", "abc", "--max-new-tokens", 2, "--temperature", 0)
    answers = [webmlc.run("chat", "build/a model", *options, cwd=tmp_path).out for _ in range(2)]
    assert answers[0] == answers[1] != ""


def test_a_moved_package_still_runs(webmlc: Installed, digits: Path, tmp_path: Path) -> None:
    shutil.copytree(digits / "build" / "network", tmp_path / "über all")
    assert json.loads(webmlc.run("run", "über all", "--json", cwd=tmp_path).out)
