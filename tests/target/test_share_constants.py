"""Vector literals are shared where that saves bytes."""

from __future__ import annotations

import wasmtime

from webmlc.target.wasm.share_constants import share_constants


def _function(name: str, *literals: str) -> str:
    drops = "".join(f"(drop (v128.const {literal}))" for literal in literals)
    return f"(func ${name} {drops})"


def test_what_is_repeated_becomes_a_global() -> None:
    four, five, nan = "f32x4 4 4 4 4", "f32x4 5 5 5 5", "f32x4 nan nan nan nan"
    functions = [_function("f", four, five, nan), _function("g", four, nan)]
    constants, shared = share_constants(functions)
    assert constants == [
        f"(global $c0 v128 (v128.const {four}))",
        f"(global $c1 v128 (v128.const {nan}))",
    ]
    assert shared[1] == "(func $g (drop (global.get $c0))(drop (global.get $c1)))"
    assert f"(v128.const {five})" in shared[0]
    wasmtime.wat2wasm("(module " + "\n".join((*constants, *shared)) + ")")


def test_what_one_instruction_makes_stays() -> None:
    idioms = ("f32x4 0 0 0 0", "i32x4 0 0 0 0", "i32x4 -1 -1 -1 -1")
    functions = [_function("f", *idioms, *idioms)]
    assert share_constants(functions) == ([], functions)
    negative = ("f32x4 -1 -1 -1 -1", "f32x4 -0 -0 -0 -0")
    assert len(share_constants([_function("f", *negative, *negative)])[0]) == 2
