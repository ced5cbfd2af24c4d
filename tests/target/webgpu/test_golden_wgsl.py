"""Compare the WGSL of some kernels with golden files, and test that Tint accepts all of it as one
module.

WEBMLC_UPDATE_GOLDEN=1 pytest tests/target/webgpu/test_golden_wgsl.py   # after an intended change
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.browser.pages import Page, open_pages
from tests.schedule.rules import kernels as k
from webmlc.core.machine import SOFTWARE_SUBGROUPS, WEBGPU
from webmlc.loops.ir import LoopFunction
from webmlc.schedule.rules import schedule_kernel
from webmlc.target.targets import lower
from webmlc.target.webgpu.emit_shaders import Shaders, emit_shaders

HERE = Path(__file__).parent
GOLDEN = HERE / "golden"


S = k.S
KERNELS: dict[str, LoopFunction] = {
    "matmul": k.matmul(32, 32, 32),
    "matmul_remainders": k.matmul(9, 10, 6),
    "matmul_symbolic": k.matmul(S, 16, 8),
    "matmul_of_words": k.matmul_of_words(32, 32, 8),
    "convolution": k.convolution(8, 8, 8, 16, 3),
    "convolution_first": k.convolution(7, 7, 3, 8, 3, 2),
    "depthwise": k.depthwise(8, 8, 8, 3),
    "max_pool": k.pool(8, 8, 2, "relaxed_max"),
    "softmax": k.softmax(5, 40),
    "column_sums": k.column_sums(300, 40),
    "layer_norm": k.layer_norm(S, 3, 9),
    "transpose": k.transpose((0, 2, 3, 1), 1, 3, 8, 8),
    "add_bias": k.add_bias(2, 3, 4, 10),
}
"""The kernels, by the names of their golden files."""


def _lowered(name: str) -> LoopFunction:
    function = replace(KERNELS[name], name=name, origin=(f"/{name}",))
    return lower(schedule_kernel(function, WEBGPU).function, WEBGPU)


def _module() -> Shaders:
    return emit_shaders({name: _lowered(name) for name in KERNELS})


@pytest.mark.parametrize("name", KERNELS)
def test_text_is_golden(name: str) -> None:
    text = emit_shaders({name: _lowered(name)}).text
    _is_golden(name, text)


def test_the_text_of_a_product_in_quads_is_golden() -> None:
    function = replace(k.matmul(16, 64, 32), name="matmul_in_quads", origin=("/matmul",))
    lowered = lower(schedule_kernel(function, SOFTWARE_SUBGROUPS).function, SOFTWARE_SUBGROUPS)
    features = SOFTWARE_SUBGROUPS.features
    text = emit_shaders({function.name: lowered}, features=features).text
    _is_golden(function.name, text)


def _is_golden(name: str, text: str) -> None:
    """Compare a text with its file."""
    path = GOLDEN / f"{name}.wgsl"
    if os.environ.get("WEBMLC_UPDATE_GOLDEN"):
        path.write_text(text)
    assert path.read_text() == text


def test_text_is_reproducible() -> None:
    assert _module() == _module()


COMPILE = """async ({ text, entries }) => {
  const adapter = await navigator.gpu.requestAdapter();
  const device = await adapter.requestDevice();
  device.pushErrorScope("validation");
  const module = device.createShaderModule({ code: text });
  const { messages } = await module.getCompilationInfo();
  for (const entryPoint of entries) {
    await device.createComputePipelineAsync({ layout: "auto", compute: { module, entryPoint } });
  }
  const error = await device.popErrorScope();
  return [...messages.map((m) => `${m.lineNum}: ${m.message}`), ...(error ? [error.message] : [])];
}"""
"""Compiles every entry point in a page, and returns the messages."""


def test_tint_accepts_every_kernel(tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text("<!doctype html><title>Tint</title>")
    shaders = _module()
    argument: dict[str, Any] = {
        "text": shaders.text,
        "entries": [entry.name for entry in shaders.entries.values()],
    }
    [report] = open_pages({"/": tmp_path}, Page("/", COMPILE, arg=argument))
    assert report.value == []
