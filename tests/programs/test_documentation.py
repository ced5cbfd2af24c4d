"""Run the code of `docs/programs.md` as it stands."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

PAGE = Path(__file__).parents[2] / "docs" / "programs.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.S)


def write_model(path: Path, op: str, **attributes: int) -> None:
    """A model of the page, which has one operator of people's own."""
    infos = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", "m"]) for n in "xy"]
    infos[0] = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 8])
    node = helper.make_node(op, ["x"], ["y"], domain="com.example", **attributes)
    graph = helper.make_graph([node], "custom", infos[:1], infos[1:])
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.example", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), path)


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_the_code_of_the_page_runs(number: int, tmp_path: Path) -> None:
    write_model(tmp_path / "model.onnx", "Smear", width=2)
    write_model(tmp_path / "turn.onnx", "Turn")
    (tmp_path / "page.py").write_text(BLOCKS[number], "utf-8")
    command = [sys.executable, "page.py"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
