"""The wheel of webmlc holds all that its commands need."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path
from urllib.request import urlopen

import onnx.parser
import pytest

from tests.hosts.hosts import ROOT

MODEL = """<ir_version: 8, opset_import: ["" : 18]>
relu (float[n, 4] x) => (float[n, 4] y) { y = Relu(x) }"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new virtual environment with the wheel. What webmlc depends on is lent by this one, but not
    webmlc: paths that its `.pth` files name are not followed from there.
    """
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    wheel = [*pip, "wheel", "--no-deps", "--wheel-dir", str(folder), str(ROOT)]
    subprocess.run(wheel, check=True, timeout=240)
    venv.create(folder / "venv", with_pip=False)
    python = str(folder / "venv" / "bin" / "python")
    (path,) = folder.glob("webmlc-*.whl")
    subprocess.run(
        [*pip, "--python", python, "install", "--no-deps", "--no-index", str(path)],
        check=True,
        timeout=120,
    )
    own = next((folder / "venv" / "lib").glob("python*/site-packages"))
    (own / "dependencies.pth").write_text(sysconfig.get_paths()["purelib"])
    onnx.save(onnx.parser.parse_model(MODEL), folder / "relu.onnx")
    return folder


def webmlc(folder: Path, *words: object) -> list[str]:
    return [str(folder / "venv" / "bin" / "webmlc"), *map(str, words)]


def settings() -> dict[str, str]:
    """The environment variables without the checkout."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def run(folder: Path, *words: object) -> str:
    done = subprocess.run(
        webmlc(folder, *words),
        cwd=folder,
        env=settings(),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_commands_of_the_wheel_work(environment: Path) -> None:
    python = str(environment / "venv" / "bin" / "python")
    where = [python, "-c", "import webmlc; print(webmlc.__file__)"]
    place = subprocess.run(where, cwd=environment, env=settings(), capture_output=True, text=True)
    assert place.stdout.startswith(str(environment)), place.stdout + place.stderr
    options = ("--target", "wasm", "--json")
    report = json.loads(run(environment, "build", "relu.onnx", "-o", "model", *options))
    assert {"webmlc.js", "wasm_worker.js", "webmlc.d.ts", "index.html"} <= set(report["files"])
    run(environment, "check", "relu.onnx")
    single = json.loads(run(environment, "build", "relu.onnx", "--single-file", *options))
    assert (environment / single["file"]).is_file()
    server = subprocess.Popen(
        webmlc(environment, "serve", "model", "--port", 0),
        cwd=environment,
        env=settings() | {"PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert server.stdout is not None
        address = next(w for line in server.stdout for w in line.split() if w.startswith("http"))
        with urlopen(f"{address.rstrip('/')}/webmlc.js", timeout=20) as response:
            assert b"load" in response.read()
    finally:
        server.terminate()
        server.communicate(timeout=20)
