"""Trials take the code of their candidates as it is."""

from __future__ import annotations

from tests.tune.conftest import good_candidates, matmul_task
from webmlc.target.wasm.emit_module import Step, emit_module, join_functions
from webmlc.tune.candidates import wasm_codes


def test_a_candidate_is_the_same_code_under_every_name() -> None:
    task = matmul_task()
    candidates = {f"c{number}": item for number, item in enumerate(good_candidates(task, 3))}
    functions = {name: item.kernel for name, item in candidates.items()}
    arguments = tuple(range(len(task.match.function.params)))
    steps = [Step(name, arguments) for name in candidates]
    codes = wasm_codes({name: item.code for name, item in candidates.items()})
    module = emit_module(functions, steps, "relaxed")
    assert "(call $parallel (i32.const 1)" in module.text, "a loop that is not the table's first"
    assert join_functions(codes, steps) == module
