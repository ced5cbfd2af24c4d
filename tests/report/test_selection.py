"""A click on a line of code in the page of a report selects its nodes and its kernel."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.node import answer_once

SCRIPT = Path(__file__).parents[1] / "js" / "select_lines.mjs"


def step(kernel: int, **fields: Any) -> dict[str, Any]:
    return {"kernel": kernel, "nodes": [kernel], "writes": [], **fields}


def data_of(program: dict[str, Any]) -> dict[str, Any]:
    """The data of a report of two nodes."""
    nodes = [{"name": "a"}, {"name": "b"}]
    return {"nodes": nodes, "programs": {"webgpu": program}, "texts": {"gpu": "", "relaxed": ""}}


def test_lines_of_shaders_call_no_steps_of_the_module() -> None:
    """A GPU's program with a step on the CPU: its call is on a line of the module, not of WGSL."""
    kernels = [{"text": "gpu", "lines": [0, 3]}, {"text": "relaxed", "lines": [0, 2]}]
    program = {"steps": [step(0), step(1, calls=[5, 7])], "kernels": kernels, "buffers": []}
    data = data_of(program)
    lines = [("gpu", 1), ("gpu", 5), ("relaxed", 5), ("relaxed", 1), ("relaxed", 3)]
    assert answer_once(SCRIPT, {"data": data, "lines": lines}) == [0, None, 1, 1, None]


def test_lines_of_another_variant_lead_to_the_same_steps() -> None:
    others = [[{"text": "software", "lines": lines}] for lines in ([4, 9], [0, 4])]
    kernels = [
        {"text": "gpu", "lines": lines, "others": code}
        for lines, code in zip(([0, 3], [3, 6]), others, strict=True)
    ]
    data = data_of({"steps": [step(0), step(1)], "kernels": kernels, "buffers": []})
    lines = [("gpu", 2), ("gpu", 4), ("software", 2), ("software", 4), ("software", 9)]
    assert answer_once(SCRIPT, {"data": data, "lines": lines}) == [0, 1, 1, 0, None]
