"""Winograd's form from end to end: its error, any batch, every host; weights derived at load."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import webmlc
from webmlc.core.expr import const
from webmlc.graph.ops.winograd import FORMS
from webmlc.package.manifest import MANIFEST
from webmlc.package.manifest_json import from_json
from webmlc.package.memory_plan import layout

CHANNELS, SIZE = 32, 9  # no tile divides the map
SCRIPT = Path(__file__).parent / "js" / "run_sines.mjs"


def weights() -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    kernel = random.standard_normal((CHANNELS, CHANNELS, 3, 3)) / np.sqrt(9 * CHANNELS)
    return kernel.astype(np.float32), random.standard_normal(CHANNELS).astype(np.float32)


@pytest.fixture(scope="module", params=sorted(FORMS))
def tile(request: pytest.FixtureRequest) -> int:
    chosen: int = request.param
    return chosen


@pytest.fixture(scope="module")
def package(tile: int, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """y = relu(conv(x) + x), batch symbolic."""
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Add", ["c", "x"], ["s"]),
        helper.make_node("Relu", ["s"], ["y"]),
    ]
    values = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", CHANNELS, SIZE, SIZE])
        for name in "xy"
    ]
    constants = [numpy_helper.from_array(a, n) for n, a in zip("wb", weights(), strict=True)]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    folder = tmp_path_factory.mktemp("winograd")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("webmlc.graph.use_winograd.FORMS", {tile: FORMS[tile]})
        patch.setattr("webmlc.graph.use_winograd.SAVED", -(10**9))  # in a map so small it loses
        webmlc.build(model, folder, target="wasm")
    return folder


def sines(batch: int) -> np.ndarray:
    shape = (batch, CHANNELS, SIZE, SIZE)
    return np.sin(np.arange(np.prod(shape))).astype(np.float32).reshape(shape)


def expected(x: np.ndarray) -> np.ndarray:
    """The model's meaning in float64."""
    kernel, bias = weights()
    padded = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (1, 1), (1, 1)))
    total = x + bias[:, None, None]
    for ky in range(3):
        for kx in range(3):
            part = padded[:, :, ky : ky + SIZE, kx : kx + SIZE]
            total = total + np.einsum("oi,nihw->nohw", kernel[:, :, ky, kx], part)
    return np.maximum(total, 0)


def relative_error(actual: np.ndarray, wanted: np.ndarray) -> float:
    return float(np.abs(actual - wanted).max() / np.abs(wanted).max())


@pytest.mark.parametrize("features", ["relaxed", "simd128"])
@pytest.mark.parametrize("threads", [1, 2])
def test_error_is_small_for_any_batch(package: Path, features, threads) -> None:
    model = webmlc.load(package, "wasm", threads, features)
    for batch in (1, 3, 1):
        x = sines(batch)
        assert relative_error(model.run({"x": x})["y"], expected(x)) < 5e-6
    model.dispose()


@pytest.mark.parametrize("threads", [1, 2])
def test_the_javascript_runtime_derives_the_weights_too(package: Path, threads) -> None:
    command = ["node", str(SCRIPT), str(package), str(threads), "1", "3", "2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    for batch, output in zip((1, 3, 2), json.loads(done.stdout), strict=True):
        x = sines(batch)
        assert relative_error(np.reshape(output, x.shape), expected(x)) < 5e-6


def test_the_package_ships_small_weights(package: Path, tile) -> None:
    manifest = from_json((package / MANIFEST).read_text())
    program = manifest.programs["wasm"]
    (derived,) = [b for b in program.buffers if b.kind == "derived"]
    assert manifest.programs["wasm"].resources.weights < 4 * CHANNELS * (9 * CHANNELS + 2) + 256
    assert [run.once for run in program.runs] == [True, False]
    assert derived.name in program.steps[0].written
    assert derived.shape[:2] == (const(tile + 2),) * 2


def test_weights_give_their_bytes_to_activations(package: Path) -> None:
    manifest = from_json((package / MANIFEST).read_text())
    program = manifest.programs["wasm"]
    plan = layout(manifest, "wasm", "wasm", {"batch": 8})
    weights, derived = program.steps[0].arguments

    def overlaps(a: str, b: str) -> bool:
        first, second = (plan.constants.get(n, plan.offsets.get(n, 0)) for n in (a, b))
        return first < second + plan.sizes[b] and second < first + plan.sizes[a]

    activations = [b.name for b in program.buffers if not b.is_resident]
    assert any(overlaps(weights, name) for name in activations)
    assert not any(overlaps(derived, name) for name in (weights, *activations))
    other = layout(manifest, "wasm", "wasm", {"batch": 1})
    assert other.constants == plan.constants
    assert other.total - other.arena == plan.total - plan.arena


@pytest.mark.parametrize("threads", [1, 2])
def test_what_is_done_at_load_takes_no_time_of_a_run(package: Path, threads) -> None:
    model = webmlc.load(package, "wasm", threads)
    times = model.profile({"x": sines(3)})
    assert [time.seconds == 0 for time in times] == [True, *[False] * (len(times) - 1)]
    assert relative_error(model.run({"x": sines(3)})["y"], expected(sines(3))) < 5e-6
    model.dispose()
