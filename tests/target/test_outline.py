"""Bodies of parallel loops as functions of their own: which, and what they take from outside.

That they compute the same is tested wherever a kernel runs (`test_lower`, the golden texts).
"""

from __future__ import annotations

from tests.target.programs import PROGRAMS, gemm
from webmlc.core.machine import RELAXED
from webmlc.target.lower import lower
from webmlc.target.wasm.emit_module import print_function
from webmlc.target.wasm.outline import names_taken


def test_heavy_body_is_called_with_what_it_reads() -> None:
    text, _ = print_function(lower(gemm(480, 480, 480), RELAXED), "gemm", "relaxed")
    body, kernel = text.split("(func $gemm ")
    assert body.count("(func ") == 1
    assert "relaxed_madd" in body
    assert "relaxed_madd" not in kernel
    assert kernel.count("(call $gemm.0 ") == 1


def test_light_body_stays_inline() -> None:
    text, _ = print_function(lower(PROGRAMS["strided"], RELAXED), "strided", "relaxed")
    assert text.count("(func ") == 1


def test_operands_are_read_before_the_result_is_set() -> None:
    lines = [
        "(local.set $a (i32.add (local.get $base) (local.get $a)))",
        "(local.set $b (i32.const 0))",
        "(local.set $c (local.get $b))",
    ]
    assert names_taken(lines) == ["base", "a"]
