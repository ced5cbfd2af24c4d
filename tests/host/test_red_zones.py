"""The debug mode of the memory plan: what writes outside its buffers is named, on every host."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx.parser
import pytest
import wasmtime

import webmlc
from tests import packages
from tests.node import Script, copy_with_red_zones
from webmlc.core.errors import InternalError
from webmlc.host.red_zones import PATTERN, check_zones, zones
from webmlc.package.memory_plan import RED_ZONE, layout
from webmlc.package.write import write_package

X = np.arange(12, dtype=np.float32).reshape(3, 4)
STORE = "(v128.store (i32.add (local.get $y)"
SERVE = Path(__file__).parents[1] / "js" / "serve_runs.mjs"


def package(folder: Path, shift: int) -> Path:
    """`y = max(x * w, 0)` on wasm, whose second step writes `shift` bytes from where it should."""
    parts = packages.parts()
    assert STORE in packages.WAT
    wat = packages.WAT.replace(STORE, f"(v128.store offset={shift} (i32.add (local.get $y)")
    for variant, product in packages.PRODUCTS.items():
        parts.modules[variant] = bytes(wasmtime.wat2wasm(wat.replace("PRODUCT", product)))
    write_package(folder, parts)
    return folder


def run_in_node(folder: Path, runtime: Path) -> Any:
    x = {"dtype": "float32", "shape": list(X.shape), "data": base64.b64encode(X).decode()}
    serve = Script(SERVE, str(copy_with_red_zones(runtime)))
    results = serve.ask({"folder": str(folder), "threads": 1, "runs": [{"x": x}] * 3})
    serve.close()
    return results


def test_a_write_behind_a_buffer_is_named(tmp_path: Path) -> None:
    folder = package(tmp_path, 16)
    model = webmlc.load(folder, device="wasm", red_zones=True)
    with pytest.raises(InternalError) as error:
        model.run({"x": X})
    assert str(error.value) == (
        "host: 16 bytes behind buffer 'y' were written, the nearest 0 bytes from it. "
        "Steps beside it: 1 (relu)"
    )
    webmlc.load(folder, device="wasm").run({"x": X})  # the mode is off


def test_the_javascript_runtime_sees_it_too(tmp_path: Path) -> None:
    runtime, wrong, right = (tmp_path / name for name in ("runtime", "wrong", "right"))
    runtime.mkdir()
    for result in run_in_node(package(wrong, 16), runtime):
        assert "bytes beside buffer y were written" in result["error"]
    for result in run_in_node(package(right, 0), runtime):
        y = np.frombuffer(base64.b64decode(result["y"]["data"]), np.float32)
        np.testing.assert_array_equal(y.reshape(X.shape), packages.expected(X))


@pytest.mark.parametrize("side", ["before", "behind"])
@pytest.mark.parametrize("device", ["wasm", "webgpu"])
def test_every_byte_of_a_zone_is_checked(
    tmp_path: Path, device: Literal["wasm", "webgpu"], side: str
) -> None:
    manifest = packages.scaled(tmp_path)
    program = manifest.programs[device]
    plan = layout(manifest, device, device, {"n": 3}, red_zone=RED_ZONE)
    around = tuple(zones(program, plan, device))
    (run,) = program.runs
    memory = np.full(plan.total, 0, np.uint8)
    for zone in around:
        memory[zone.first : zone.last] = PATTERN
    check_zones(program, run, around, memory)
    zone = next(z for z in around if (z.buffer, z.side) == ("t", side))
    nearest = zone.last - 1 if side == "before" else zone.first
    for at in range(zone.first, zone.last):
        memory[at] = 0
        named = rf"1 bytes {side} buffer 't'.*: 0 \(scale\)" if at == nearest else "1 bytes be"
        with pytest.raises(InternalError, match=named):
            check_zones(program, run, around, memory)
        memory[at] = PATTERN


@pytest.mark.parametrize("device", ["wasm", "webgpu"])
def test_zones_touch_no_buffer(tmp_path: Path, device: Literal["wasm", "webgpu"]) -> None:
    manifest = packages.scaled(tmp_path)
    for rows in (0, 1, 3, 1000):
        plan = layout(manifest, device, device, {"n": rows}, red_zone=RED_ZONE)
        starts = sorted(plan.offsets, key=lambda name: plan.offsets[name])
        ends = [plan.offsets[name] + max(plan.sizes[name], 1) for name in starts]
        bounds = [*(plan.offsets[name] for name in starts), plan.total]
        first = plan.constants["w"] + plan.sizes["w"] if device == "wasm" else 0
        gaps = [start - end for start, end in zip(bounds, [first, *ends], strict=True)]
        assert min(gaps) >= RED_ZONE


MODEL = """<ir_version: 8, opset_import: ["" : 18]> g (float[n,3] x, bool[n] c) => (float[k,3] y)
    { a = Relu(x) b = Compress<axis=0>(a, c) y = Exp(b) }"""


@pytest.mark.parametrize(("device", "threads"), [("wasm", 1), ("wasm", 2), ("webgpu", 1)])
def test_results_are_the_same_with_red_zones(
    tmp_path: Path, device: Literal["wasm", "webgpu"], threads: int
) -> None:
    """Memory grows, during a run too, and sizes change from run to run."""
    webmlc.build(onnx.parser.parse_model(MODEL), tmp_path)
    model = webmlc.load(tmp_path, device=device, threads=threads, red_zones=True)
    for n in (5, 3, 5000, 1, 0, 5000):
        x = np.linspace(-1, 1, 3 * n, dtype=np.float32).reshape(n, 3)
        c = np.arange(n) % 3 == 0
        want = np.exp(np.maximum(x[c], 0))
        np.testing.assert_allclose(model.run({"x": x, "c": c})["y"], want, rtol=1e-5)
