"""Builds treat folders with care: those of others, full ones, and those of builds at once."""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import onnx
import pytest

from tests.users.installed import Installed
from tests.users.test_files import network

pytestmark = [
    pytest.mark.xdist_group("users"),
    pytest.mark.skipif(sys.platform == "win32", reason="the limits are those of POSIX"),
]

SHAPES = {"first": 1.0, "second": 2.0}
"""The models of this file, by name: they differ in their weights."""


@pytest.fixture(scope="module")
def models(webmlc: Installed, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two models, whose packages are in the cache."""
    folder = tmp_path_factory.mktemp("models")
    for name, scale in SHAPES.items():
        onnx.save(network(scale), folder / f"{name}.onnx")
        webmlc.run("build", f"{name}.onnx", "--target", "wasm", cwd=folder)
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def build(webmlc: Installed, models: Path, name: str, out: Path, code: int = 0, **options) -> str:  # type: ignore[no-untyped-def]
    arguments = ("build", models / f"{name}.onnx", "-o", out, "--target", "wasm")
    return webmlc.run(*arguments, cwd=models, code=code, **options).err


def test_a_foreign_manifest_costs_nobody_a_file(
    webmlc: Installed, models: Path, tmp_path: Path
) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    manifest = {"format": "webmlc", "files": {"thesis.txt": {}}}
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    build(webmlc, models, "first", tmp_path)
    assert (tmp_path / "thesis.txt").read_text() == "mine"
    (tmp_path / "index.html").write_text("my page")
    assert "(index.html)" in build(webmlc, models, "second", tmp_path, code=2)
    assert (tmp_path / "index.html").read_text() == "my page"


@pytest.mark.parametrize("cache", [(), ("--no-cache",)], ids=["cache", "no cache"])
def test_builds_at_once_leave_a_whole_package(
    webmlc: Installed, models: Path, tmp_path: Path, cache: tuple[str, ...]
) -> None:
    packages = [contents(models / "build" / name) for name in SHAPES]
    out = tmp_path / "new" / "package"
    processes = [
        webmlc.start("build", f"{name}.onnx", "-o", out, "--target", "wasm", *cache, cwd=models)
        for name in SHAPES
    ]
    for process in processes:
        _, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
    texts = [{k: v for k, v in package.items() if k != "manifest.json"} for package in packages]
    written = contents(out)
    name = json.loads(written.pop("manifest.json"))["name"]
    assert written == texts[list(SHAPES).index(name)]


def small_files() -> None:
    """Let no file grow beyond some bytes, as on a full disk."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (512, 512))


def without_privileges(drop: Callable[[int, int, int, int, int], int]) -> None:
    """Make permissions hold for root, too (Linux)."""
    for capability in (1, 2):  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
        drop(24, capability, 0, 0, 0)  # PR_CAPBSET_DROP


def test_a_full_disk_and_a_folder_without_permission_are_one_error(
    webmlc: Installed, models: Path, tmp_path: Path
) -> None:
    out = tmp_path / "package"
    build(webmlc, models, "first", out)
    before = contents(out)
    error = build(webmlc, models, "second", out, code=2, prepare=small_files)
    assert "cannot write a package here (File too large)" in error
    assert contents(out) == before
    if sys.platform == "linux":
        prepare = partial(without_privileges, ctypes.CDLL(None).prctl)
    else:
        assert os.geteuid() != 0, "for root, permissions hold on Linux only"
        prepare = None
    out.chmod(0o555)
    try:
        error = build(webmlc, models, "second", out, code=2, prepare=prepare)
        assert "cannot write a package here (Permission denied)" in error
        error = build(webmlc, models, "second", out / "inner", code=2, prepare=prepare)
        assert "cannot write a package here (Permission denied)" in error
        home = webmlc.home / ".cache"
        home.chmod(0o000)
        build(webmlc, models, "first", tmp_path / "without cache", prepare=prepare)
    finally:
        out.chmod(0o755)
        (webmlc.home / ".cache").chmod(0o755)
    assert contents(out) == before


NAMES = [b"mod\xe9l", b"two\nlines", b"quote'\"`;(;", "模型🎉".encode(), b"[bold]", b"n" * 200]
"""Names of files: no text, lines, quotes, other letters, what a terminal interprets, long."""


@pytest.mark.skipif(sys.platform != "linux", reason="other systems refuse some of these names")
def test_a_model_may_have_any_name(webmlc: Installed, models: Path, tmp_path: Path) -> None:
    for name in NAMES:
        path = os.fsdecode(name + b".onnx")
        (tmp_path / path).write_bytes((models / "first.onnx").read_bytes())
    script = """import sys; from pathlib import Path; import webmlc
for model in sorted(Path().glob("*.onnx")):
    for _ in range(2):
        manifest = webmlc.build(model, Path("build", model.stem), "wasm", emit_text=True)
    assert webmlc.load(Path("build", model.stem), "wasm").manifest == manifest
    print(ascii(manifest.name))"""
    process = webmlc.start(cwd=tmp_path, command=[sys.executable, "-c", script])
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    names = {name.decode("utf-8", "surrogateescape") for name in NAMES}
    assert set(out.split("\n")) - {""} == {ascii(n.replace("\udce9", "?")) for n in names}
    report = webmlc.json(
        "build", os.fsdecode(NAMES[0] + b".onnx"), "--target", "wasm", cwd=tmp_path
    )
    assert report["name"] == "mod?l"
    webmlc.run("run", Path("build", os.fsdecode(NAMES[0])), cwd=tmp_path)


@pytest.mark.parametrize("seconds", [0.3, 0.6])
def test_a_killed_build_leaves_the_older_package(
    webmlc: Installed, models: Path, tmp_path: Path, seconds: float
) -> None:
    out = tmp_path / "package"
    build(webmlc, models, "first", out)
    before = contents(out)
    process = webmlc.start("build", "second.onnx", "-o", out, "--target", "wasm", cwd=models)
    time.sleep(seconds)
    process.kill()
    process.communicate(timeout=30)
    after = {path.name: path.read_bytes() for path in out.iterdir() if path.is_file()}
    assert after in (before, contents(models / "build" / "second"))
    build(webmlc, models, "second", out)
    assert contents(out) == contents(models / "build" / "second")
