"""Packages written by hand run on wasmtime and on wgpu-py, and every mistake has its error."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import wasmtime
import wgpu  # type: ignore[import-untyped]

from tests.packages import PRODUCTS, WAT, W, expected, fixed, mixed, parts, scaled
from webmlc.core.errors import (
    AdapterError,
    InputError,
    InternalError,
    PackageError,
    UserError,
    WebmlcError,
)
from webmlc.host import wasm, webgpu
from webmlc.host.load import load
from webmlc.package.write import write_package

SIZES = (3, 1, 8, 1000, 3, 0)


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("packages")
    scaled(root / "scaled")
    mixed(root / "mixed")
    return root


def x_of(n: int) -> np.ndarray:
    return np.random.default_rng(n).standard_normal((n, 4)).astype(np.float32)


@pytest.mark.parametrize("features", ["relaxed", "simd128"])
@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize(
    ("package", "device"), [("scaled", "wasm"), ("scaled", "webgpu"), ("mixed", "webgpu")]
)
def test_one_package_runs_every_size(
    packages: Path, package: str, device: Any, threads: int, features: Any
) -> None:
    model = load(packages / package, device, threads, features)
    for n in SIZES:
        y = model.run({"x": x_of(n)})["y"]
        assert y.dtype == np.float32
        np.testing.assert_array_equal(y, expected(x_of(n)))
    model.dispose()


@pytest.mark.parametrize("device", ["wasm", "webgpu"])
def test_results_outlive_later_runs(packages: Path, device: Any) -> None:
    model = load(packages / "scaled", device)
    first = model.run({"x": x_of(5)})["y"]
    model.run({"x": x_of(6)})
    np.testing.assert_array_equal(first, expected(x_of(5)))


@pytest.mark.parametrize(
    ("package", "device"), [("scaled", "wasm"), ("scaled", "webgpu"), ("mixed", "webgpu")]
)
def test_profile_times_every_step(packages: Path, package: str, device: Any) -> None:
    steps = load(packages / package, device, threads=2).profile({"x": x_of(4)})
    assert [(s.kernel, s.origin) for s in steps] == [("scale", ("/scale",)), ("relu", ("/relu",))]
    assert all(s.seconds >= 0 for s in steps)
    assert [s.device for s in steps] == [device, "wasm" if package == "mixed" else device]


@pytest.mark.parametrize("device", ["wasm", "webgpu"])
def test_a_program_without_steps_returns_inputs_and_constants(tmp_path: Path, device: Any) -> None:
    fixed(tmp_path)
    outputs = load(tmp_path, device).run({"x": x_of(3)})
    np.testing.assert_array_equal(outputs["same"], x_of(3))
    np.testing.assert_array_equal(outputs["w"], W)


def test_memory_grows_only_when_it_must(packages: Path) -> None:
    model = load(packages / "scaled", "wasm")
    executor = model._executors["wasm"]
    assert isinstance(executor, wasm.WasmExecutor)
    model.run({"x": x_of(20_000)})
    memory = executor.memory
    model.run({"x": x_of(3)})
    assert executor.memory is memory
    model.run({"x": x_of(40_000)})
    assert executor.memory is not memory


@pytest.mark.parametrize("device", ["wasm", "webgpu"])
@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({}, r"input 'x' is missing; the model takes 'x' \(float32\[n, 4\]\)"),
        ({"x": x_of(1), "z": x_of(1)}, "no input is named 'z'"),
        ({"x": x_of(1).astype(np.float64)}, "has dtype float64, expected float32"),
        ({"x": np.zeros(4, np.float32)}, r"has shape \[4\], expected \[n, 4\]"),
        (
            {"x": np.zeros((2, 5), np.float32)},
            r"has shape \[2, 5\], expected \[n, 4\] = \[2, 4\] with n = 2 from axis 0 of 'x'",
        ),
    ],
)
def test_bad_inputs_are_named(
    packages: Path, device: Any, inputs: dict[str, np.ndarray], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        load(packages / "scaled", device).run(inputs)


def test_arrays_need_not_be_contiguous(packages: Path) -> None:
    wide = np.random.default_rng(0).standard_normal((4, 6)).astype(np.float32)
    y = load(packages / "scaled", "wasm").run({"x": wide.T})["y"]
    np.testing.assert_array_equal(y, expected(wide.T))


def damaged(tmp_path: Path, how: str) -> Path:
    scaled(tmp_path)
    weights = tmp_path / "weights.safetensors"
    data = weights.read_bytes()
    match how:
        case "missing":
            weights.unlink()
        case "short":
            weights.write_bytes(data[:-4])
        case "altered":
            weights.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
        case "module":
            (tmp_path / "model.relaxed.wasm.deflate").write_bytes(b"")
        case "shaders":
            (tmp_path / "kernels.gpu.wgsl.deflate").write_text("fn")
        case "manifest":
            (tmp_path / "manifest.json").unlink()
    return tmp_path


@pytest.mark.parametrize(
    ("how", "device", "message"),
    [
        ("missing", "wasm", "weights.safetensors: cannot be read"),
        ("short", "wasm", "has 268 bytes, expected 272: incomplete or altered"),
        ("altered", "webgpu", "its SHA-256 differs from the manifest's"),
        ("module", "wasm", "model.relaxed.wasm.deflate: has 0 bytes"),
        ("shaders", "webgpu", "kernels.gpu.wgsl.deflate: has 2 bytes"),
        ("manifest", "wasm", "no manifest.json here; make a package with `webmlc build"),
    ],
)
def test_damage_is_found_at_load(tmp_path: Path, how: str, device: Any, message: str) -> None:
    with pytest.raises(PackageError, match=message):
        load(damaged(tmp_path, how), device)


def test_a_device_the_package_lacks_is_a_package_error(tmp_path: Path) -> None:
    given = parts()
    only = {"wasm": given.programs["wasm"]}
    write_package(tmp_path, replace(given, programs=only, shaders={}))
    with pytest.raises(PackageError, match=r"was built for wasm only; build it with --target"):
        load(tmp_path, "webgpu")
    with pytest.raises(PackageError, match="no 'avx' WebAssembly module"):
        load(tmp_path, "wasm", features="avx")  # type: ignore[arg-type]
    assert load(tmp_path).device == "wasm"


def test_auto_prefers_the_cpu_to_a_software_gpu(
    packages: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Adapter:
        def __init__(self) -> None:
            self.info = {"adapter_type": "CPU"}

    monkeypatch.setattr(wgpu.gpu, "request_adapter_sync", lambda **_: Adapter())
    assert load(packages / "scaled").device == "wasm"


@pytest.mark.parametrize("answer", [None, RuntimeError("no driver")])
def test_a_missing_adapter_is_an_adapter_error(
    packages: Path, monkeypatch: pytest.MonkeyPatch, answer: Exception | None
) -> None:
    def request(**_: Any) -> None:
        if answer is not None:
            raise answer

    monkeypatch.setattr(wgpu.gpu, "request_adapter_sync", request)
    with pytest.raises(AdapterError, match="no GPU adapter is usable here; run with device='wasm'"):
        load(packages / "scaled", "webgpu")
    assert load(packages / "scaled", "auto").device == "wasm"


def test_a_kernel_that_traps_is_an_internal_error(tmp_path: Path) -> None:
    given = parts()
    bad = WAT.replace("(loop $steps", "(loop $steps unreachable")
    code = bytes(wasmtime.wat2wasm(bad.replace("PRODUCT", PRODUCTS["relaxed"])))
    write_package(tmp_path, replace(given, modules={"relaxed": code}))
    for threads in (1, 2):
        with pytest.raises(InternalError, match=r"a kernel of steps 0\.\.1 trapped"):
            load(tmp_path, "wasm", threads).run({"x": x_of(2)})


def test_the_stated_arena_is_asserted(tmp_path: Path) -> None:
    scaled(tmp_path)
    manifest = tmp_path / "manifest.json"
    data = json.loads(manifest.read_text())
    for device, program in data["programs"].items():
        program["resources"]["arena"][device] = 4096
    manifest.write_text(json.dumps(data))
    for device in ("wasm", "webgpu"):
        with pytest.raises(InternalError, match=r"the arena takes (128|512) bytes"):
            load(tmp_path, device).run({"x": x_of(1)})  # type: ignore[arg-type]


def test_a_binding_over_the_limit_is_an_adapter_error(tmp_path: Path) -> None:
    scaled(tmp_path)
    manifest = tmp_path / "manifest.json"
    data = json.loads(manifest.read_text())
    data["programs"]["webgpu"]["resources"]["largest_binding"] = 1 << 40
    manifest.write_text(json.dumps(data))
    with pytest.raises(
        AdapterError, match="max-storage-buffer-binding-size of 1099511627776 bytes"
    ):
        load(tmp_path, "webgpu")


def test_a_disposed_model_says_so(packages: Path) -> None:
    model = load(packages / "scaled", "wasm", threads=2)
    model.dispose()
    with pytest.raises(UserError, match="disposed"):
        model.run({"x": x_of(1)})
    with pytest.raises(WebmlcError, match="at least one"):
        load(packages / "scaled", "wasm", threads=0)


@pytest.mark.parametrize("device", ["wasm", "webgpu"])
@pytest.mark.parametrize("holder", ["np", "threading.main_thread()", "ctypes", "np.dtypes"])
def test_a_model_that_outlives_its_modules_ends_in_silence(
    packages: Path, device: Any, holder: str
) -> None:
    """Modules in C keep the model until Python has cleared those that could delete it."""
    script = f"""\
import ctypes, threading
import numpy as np
import webmlc
model = webmlc.load({str(packages / "scaled")!r}, {device!r})
model.run({{"x": np.ones((2, 4), np.float32)}})
{holder}.kept = model
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=60,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
    )
    assert done.returncode == 0
    assert "Exception ignored" not in done.stderr


def test_constants_share_gpu_buffers_up_to_the_limit(packages: Path) -> None:
    model = load(packages / "scaled", "webgpu")
    executor = model._executors["webgpu"]
    assert isinstance(executor, webgpu.WebGpuExecutor)
    assert {name: offset for name, (_, offset) in executor.constants.items()} == {"w": 0}
