"""Trials take the code of their candidates as it is. What cannot be built is no candidate."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.tune.conftest import good_candidates, matmul_task
from webmlc.schedule.errors import ScheduleError
from webmlc.target.wasm.emit_module import Step, emit_module, join_functions
from webmlc.target.wasm.printer import Printed
from webmlc.tune.measure.candidates import Refusal, try_candidate
from webmlc.tune.measure.make_trials import buffers_of


def test_a_candidate_is_the_same_code_under_every_name() -> None:
    task = matmul_task()
    candidates = {f"c{number}": item for number, item in enumerate(good_candidates(task, 3))}
    functions = {name: item.kernel for name, item in candidates.items()}
    arguments = tuple(range(len(task.match.function.params)))
    steps = [Step(name, arguments) for name in candidates]
    codes = {n: c.code for n, c in candidates.items() if isinstance(c.code, Printed)}
    module = emit_module(functions, steps, "relaxed")
    assert "(call $parallel (i32.const 1)" in module.text, "a loop that is not the table's first"
    assert join_functions(codes, steps) == module


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (lambda facts: ScheduleError("split", "no such loop", facts), "split: no such loop"),
        (lambda _: ValueError("too few\nvalues"), "ValueError: too few"),
        (lambda _: AssertionError(), "AssertionError: "),
    ],
)
def test_a_member_that_cannot_be_built_says_why(error: Any, reason: str) -> None:
    task = matmul_task()

    def build(_schedule: object, _facts: object, _parameters: object) -> None:
        raise error(task.match.function)

    rule = replace(task.match.rule, build=build)
    broken = replace(task, match=replace(task.match, rule=rule))
    assert try_candidate(broken, task.match.default()) == Refusal(reason)


@pytest.mark.parametrize(("rows", "copies"), [(48, 3), (480, 1)])
def test_constants_have_copies_unless_much_is_computed_of_them(rows: int, copies: int) -> None:
    assert len(buffers_of(matmul_task(rows=rows)).calls) == copies
