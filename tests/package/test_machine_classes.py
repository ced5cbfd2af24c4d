"""Packages with several schedules of a kernel: each host runs the one for its class of machines.

The kernels of these packages say which one ran: the "schedule" for a class adds its number to a
result that is otherwise equal.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import pytest

import webmlc
from tests.browser.pages import Page, open_pages
from tests.node import as_tensors, in_node
from webmlc.core.machine import Device
from webmlc.core.machine_class import MachineClass, adapter_name
from webmlc.host.webgpu_adapter import find_adapter
from webmlc.loops.text import parse_function, print_function
from webmlc.package import compile_kernels
from webmlc.package.manifest_json import read_manifest
from webmlc.schedule.rules import (
    Alternative,
    Selection,
    default_schedule,
    schedule_kernel,
)
from webmlc.schedule.rules.rule import Match
from webmlc.schedule.tuning import Tuning

MODEL = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[n,64] x) => (float[n,64] y) {
        one = Constant <value_float = 1000.0> ()
        y = Add(x, one)
    }"""
BLANK = '<!doctype html><meta charset="utf-8"><link rel="icon" href="data:,"><title>blank</title>'
ROWS = 500
"""Enough rows that several threads share the kernel."""


class Numbering:
    """Chooses schedules of a kernel that adds 1000: those for some classes of machines add the
    number of the class, too.
    """

    def __init__(self, *classes: MachineClass) -> None:
        self.classes = classes

    def __call__(self, match: Match) -> Selection:
        text = print_function(match.function)
        assert "1000.0" in text
        device = match.machine.device
        others = []
        for number, machine in enumerate(self.classes, 1):
            if machine.device == device:
                changed = parse_function(text.replace("1000.0", f"{1000 + number}.0"))
                schedule = schedule_kernel(changed, match.machine)
                others.append(Alternative(machine, schedule, Tuning({}, "a machine", 0.5)))
        return replace(default_schedule(match), alternatives=tuple(others))


def built(folder: Path, *classes: MachineClass) -> Path:
    """A package for both devices with schedules for some classes of machines."""
    model = onnx.parser.parse_model(MODEL)
    webmlc.build(model, folder, "both", choose=Numbering(*classes))
    return folder


def ran(package: Path, device: Device, threads: int = 1) -> int:
    """The number of the class whose kernel ran in Python."""
    model = webmlc.load(package, device=device, threads=threads)
    y = model.run({"x": np.zeros((ROWS, 64), np.float32)})["y"]
    model.dispose()
    (value,) = {*y.ravel().tolist()}
    return round(value) - 1000


def test_python_runs_the_kernel_for_its_engine_and_threads(tmp_path: Path) -> None:
    package = built(
        tmp_path / "p",
        MachineClass("wasm", "firefox"),
        MachineClass("wasm", "wasmtime"),
        MachineClass("wasm", "wasmtime", is_parallel=True),
    )
    assert ran(package, "wasm") == 2
    assert ran(package, "wasm", 2) == 3
    assert ran(package, "webgpu") == 0
    assert ran(built(tmp_path / "q", MachineClass("wasm", "chromium")), "wasm") == 0
    assert ran(built(tmp_path / "r"), "wasm") == 0


def test_python_runs_the_kernel_for_its_gpu(tmp_path: Path) -> None:
    adapter = adapter_name(find_adapter().info)
    other, same = (MachineClass("webgpu", "wgpu", name) for name in ("nobody", adapter))
    package = built(tmp_path / "p", other, same)
    assert ran(package, "webgpu") == 2
    assert ran(package, "wasm") == 0
    browser = MachineClass("webgpu", "chromium", adapter)
    assert ran(built(tmp_path / "q", browser), "webgpu") == 1, "the same GPU in another engine"
    assert ran(built(tmp_path / "r", other), "webgpu") == 0


def test_node_runs_the_kernel_for_it(tmp_path: Path) -> None:
    package = built(
        tmp_path / "p",
        MachineClass("wasm", "wasmtime"),
        MachineClass("wasm", "node"),
        MachineClass("wasm", "node", is_parallel=True),
    )
    inputs = as_tensors({"x": np.zeros((1, 64), np.float32)})
    for threads, number in ((1, 2), (2, 3)):
        (result,) = in_node(package, [inputs], threads)
        assert {*result["y"]["data"]} == {str(1000 + number)}


IN_PAGE = """async ({ device, threads }) => {
  const { load } = await import("/p/webmlc.js");
  const model = await load("/p/", { device, threads });
  const x = { dtype: "float32", shape: [1, 64], data: new Float32Array(64) };
  const { y } = await model.run({ x });
  model.dispose();
  const { vendor, architecture } = (await navigator.gpu.requestAdapter()).info;
  return { ran: y.data[0] - 1000, adapter: [vendor, architecture].filter(Boolean).join(" ") };
}"""


def in_page(folder: Path, device: Device, threads: int = 1) -> Any:
    """The number of the class whose kernel ran in Chromium, and the name of its adapter."""
    (folder / "index.html").write_text(BLANK)
    arg = {"device": device, "threads": threads}
    (report,) = open_pages({"/": folder}, Page("/", IN_PAGE, arg=arg))
    return report.value


def test_chromium_runs_the_kernel_for_it(tmp_path: Path) -> None:
    built(tmp_path / "p", MachineClass("wasm", "node"), MachineClass("wasm", "chromium"))
    value = in_page(tmp_path, "wasm")
    assert value["ran"] == 2
    assert in_page(tmp_path, "wasm", 2)["ran"] == 0
    nobody = MachineClass("webgpu", "chromium", "nobody")
    built(tmp_path / "p", nobody, MachineClass("webgpu", "chromium", value["adapter"]))
    assert in_page(tmp_path, "webgpu")["ran"] == 2
    built(tmp_path / "p", nobody)
    assert in_page(tmp_path, "webgpu")["ran"] == 0


def test_the_manifest_names_the_machines_and_their_kernels(tmp_path: Path) -> None:
    classes = (MachineClass("wasm", "firefox"), MachineClass("webgpu", "chromium", "a b"))
    package = built(tmp_path / "p", *classes)
    manifest = read_manifest(package)
    assert manifest.machines == classes
    rows = {(t.variant, t.machine, t.tuning.platform) for t in manifest.tuned}
    assert {(variant, machine) for variant, machine, _ in rows} >= {("relaxed", 1), ("gpu", 2)}
    step = manifest.programs["webgpu"].steps[0]
    assert step.launches["gpu@2"].entry == f"{step.kernel}_on_machine_2"


def test_code_for_machines_stays_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_kernels, "ALTERNATIVE_ROOM", 0)
    package = built(tmp_path / "p", MachineClass("wasm", "wasmtime"))
    assert read_manifest(package).machines == ()
    assert ran(package, "wasm") == 0
