"""Test that vector literals are shared where that saves bytes."""

from __future__ import annotations

import wasmtime

from webmlc.target.wasm.emit_module import share_constants


def _function(name: str, *literals: str) -> str:
    """A function that drops these literals."""
    drops = "".join(f"(drop (v128.const {literal}))" for literal in literals)
    return f"(func ${name} {drops})"


def test_a_repeated_literal_becomes_a_global() -> None:
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


def test_a_literal_of_one_instruction_is_not_shared() -> None:
    bits = _function("f", *["i32x4 -1 -1 -1 -1"] * 2)
    assert share_constants([bits]) == ([], [bits])
    constants, shared = share_constants([_function("f", *["f32x4 0 0 0 0", "i32x4 0 0 0 0"] * 2)])
    assert (constants, shared) == ([], [f"(func $f {'(drop (i32x4.splat (i32.const 0)))' * 4})"])
    wasmtime.wat2wasm(f"(module {shared[0]})")
    negative = ("f32x4 -1 -1 -1 -1", "f32x4 -0 -0 -0 -0")
    assert len(share_constants([_function("f", *negative, *negative)])[0]) == 2
