"""What a click on a line of code selects in the page of a report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.node import answer_once

SCRIPT = Path(__file__).parents[1] / "js" / "select_lines.mjs"


def step(kernel: int, **fields: Any) -> dict[str, Any]:
    return {"kernel": kernel, "nodes": [kernel], "writes": [], **fields}


def test_lines_of_shaders_call_no_steps_of_the_module() -> None:
    """A GPU's program with a step on the CPU: its call is on a line of the module, not of WGSL."""
    kernels = [{"text": "gpu", "lines": [0, 3]}, {"text": "relaxed", "lines": [0, 2]}]
    program = {"steps": [step(0), step(1, calls=[5, 7])], "kernels": kernels, "buffers": []}
    data = {"nodes": [{"name": "a"}, {"name": "b"}], "programs": {"webgpu": program}}
    lines = [("gpu", 1), ("gpu", 5), ("relaxed", 5), ("relaxed", 1), ("relaxed", 3)]
    assert answer_once(SCRIPT, {"data": data, "lines": lines}) == [0, None, 1, 1, None]
