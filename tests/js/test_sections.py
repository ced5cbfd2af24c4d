"""Pipelines leave out the optional sections that no run has needed, with what only they use."""

from __future__ import annotations

import re
from itertools import product
from pathlib import Path

import onnx.parser

import webmlc
from tests.node import answer_once
from tests.shader_compilers import compile_shaders
from webmlc.host.webgpu_kernels import split_shaders, with_sections

SCRIPT = Path(__file__).parent / "compile_sections.mjs"
MODEL = (
    '<ir_version: 10, opset_import: ["": 18]> g (float[n,w] x) => (float[n,w] y) { y = Softmax(x) }'
)


def test_code_and_memory_of_other_sections_are_left_out(tmp_path: Path) -> None:
    """On software adapters a softmax has workgroups for long rows, and threads for short ones.
    Engines clear all workgroup memory that a text uses, behind a barrier.
    """
    webmlc.build(
        onnx.parser.parse_model(MODEL),
        tmp_path,
        target="webgpu",
        adapter="software",
        emit_text=True,
    )
    text = (tmp_path / "kernels.software.wgsl").read_text("utf-8")
    needed = [[0, 1], [1, 0], [0, 1]]
    texts = answer_once(SCRIPT, {"text": text, "entry": "softmax", "needed": needed})
    for pipeline in texts:
        compile_shaders(pipeline)
    code = [re.split(r"^fn softmax", pipeline, flags=re.MULTILINE)[1] for pipeline in texts]
    assert ["workgroupBarrier" in text for text in code] == [False, True, True]
    for body, section in product(code, (0, 1)):
        is_second_run = body is not code[0]
        assert (f"if (section_{section}_" in body) == (section == 1 or is_second_run)
    assert not re.search(r"_rf\w* *\[", code[0])  # the workgroup memory
    assert code[1] == code[2]  # a pipeline keeps the sections of the one before
    whole = split_shaders(text)["softmax"]
    assert texts == [with_sections(whole, s) for s in ((False, True), (True, True), (True, True))]
