"""`WEBMLC_VERIFY=2`: a step that changes what a kernel computes is caught, and named."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.schedule.programs import add_one, matmul_relu
from webmlc.core.errors import InternalError
from webmlc.loops.ir import LoopFunction
from webmlc.schedule.check_step import check_step
from webmlc.schedule.edit import Edit
from webmlc.schedule.schedule import PRIMITIVES, Schedule
from webmlc.schedule.trace import step


def forgets_a_row(function: LoopFunction, loop: str) -> LoopFunction:
    """A wrong primitive: its loop runs once less."""
    schedule = Schedule(function)
    old = schedule.loop(loop)
    assert function.body is old
    return replace(function, body=replace(old, extent=old.extent - 1))


def test_a_step_that_loses_work_is_caught() -> None:
    function = add_one()
    broken = forgets_a_row(function, "i")
    with pytest.raises(InternalError, match=r"step .*'split'.* changes output 'B'"):
        check_step(function, broken, step("split", ("i", [2, 5])), run=True)


def test_schedules_check_their_steps_when_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEBMLC_VERIFY", "2")
    schedule = Schedule(matmul_relu("m"))
    schedule.split("i", [None, 6])
    monkeypatch.setattr(PRIMITIVES["unroll"], "function", forgets)
    with pytest.raises(InternalError, match="unroll"):
        schedule.unroll("j")


def forgets(edit: Edit, loop: str) -> None:
    """A wrong primitive: only the first nest is left."""
    body = edit.function.body.statements[0]  # type: ignore[union-attr]
    edit.change(replace(edit.function, body=body))
