"""Compare the WAT of a dozen kernels with golden files, and count the instructions that matter.

WEBMLC_UPDATE_GOLDEN=1 pytest tests/target/test_golden_wat.py      # after an intended change
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests.target.programs import PROGRAMS, gemm
from webmlc.core.machine import RELAXED
from webmlc.target.targets import lower
from webmlc.target.wasm.assemble import assemble
from webmlc.target.wasm.emit_module import Step, emit_module, print_function

GOLDEN = Path(__file__).parent / "golden"
TILE = lower(gemm(480, 480, 480), RELAXED)


def innermost_loops(text: str) -> list[str]:
    """The text between each innermost `loop` and its branch back."""
    return re.findall(r"\(loop (?:(?!\(loop ).)*?br_if", text, re.DOTALL)


@pytest.mark.parametrize("name", PROGRAMS)
def test_text_is_golden(name) -> None:
    text = print_function(lower(PROGRAMS[name], RELAXED), "relaxed").named(name)
    path = GOLDEN / f"{name}.wat"
    if os.environ.get("WEBMLC_UPDATE_GOLDEN"):
        path.write_text(text + "\n")
    assert path.read_text() == text + "\n"


def test_the_loop_of_a_tile_has_no_superfluous_instruction() -> None:
    printed = print_function(TILE, "relaxed")
    text = printed.text
    (loop,) = [part for part in innermost_loops(text) if "relaxed_madd" in part]
    counts = {
        name: len(re.findall(rf"\({re.escape(name)}[ )]", loop))
        for name in ("f32x4.relaxed_madd", "v128.load32_splat", "v128.load", "i32.add", "i32.mul")
    }
    assert counts == {
        "f32x4.relaxed_madd": 12,
        "v128.load32_splat": 6,
        "v128.load": 2,
        "i32.add": 2,
        "i32.mul": 0,
    }
    assert "offset=9600" in loop  # row 5 of A: 5 · 480 · 4 bytes
    assert printed.scratch_bytes == 0


def test_baseline_module_has_no_relaxed_opcode() -> None:
    text = print_function(TILE, "simd128").text
    assert "relaxed" not in text
    assert text.count("f32x4.mul") == 12


def test_the_binary_is_small_and_has_no_names() -> None:
    module = emit_module({"gemm": TILE}, [Step("gemm", (0, 1, 2, 3))], "relaxed")
    binary = assemble(module.text)
    assert len(binary) < 2000
    assert b"gemm" not in binary


def test_modules_are_reproducible() -> None:
    steps = [Step("gemm", (0, 1, 2, 3))]
    first = emit_module({"gemm": lower(gemm(12, 16, 5), RELAXED)}, steps, "relaxed")
    second = emit_module({"gemm": lower(gemm(12, 16, 5), RELAXED)}, steps, "relaxed")
    assert first == second


def test_exponentials_round_by_addition() -> None:
    text = print_function(lower(PROGRAMS["softmax"], RELAXED), "relaxed").text
    assert "trunc_sat" not in text
    assert "nearest" not in text
