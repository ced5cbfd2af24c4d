"""Schedule functions as tasks: their members, their keys, and the errors of their callers."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pytest

from webmlc import T, te, tir
from webmlc.core.errors import UserError
from webmlc.core.machine import RELAXED, WEBGPU, Machine
from webmlc.tune.measure.candidates import Candidate, Refusal, try_candidate
from webmlc.tune.schedule_function import UserTask, task_of
from webmlc.tune.user_space import read_space

SPACE: Mapping[str, Any] = {"rows": [4, 2, 3, 8], "is_vector": [True, False]}
Function = Callable[..., Any]


def double(rows: Any = 16, scale: float = 2.0) -> tir.PrimFunc:
    """Multiply a matrix of 8 columns."""
    a = te.placeholder((rows, 8), "float32", name="A")
    return te.create_prim_func([a, te.compute((rows, 8), lambda i, j: a[i, j] * scale, name="B")])


PROGRAM = double()


def tiled(rows: int, is_vector: bool) -> tir.Schedule:
    """Rows of tiles, whose columns may be a vector."""
    schedule = tir.Schedule(PROGRAM)
    i, j = schedule.get_loops("B")
    _, inner = schedule.split(i, [16 // rows, rows])  # which 3 rows do not cover
    if is_vector:
        schedule.vectorize(j)
    schedule.unroll(inner)
    return schedule


def task(function: Function, space: Mapping[str, Any] = SPACE, **options: Any) -> UserTask:
    """The task of a function."""
    machine: Machine = options.pop("machine", RELAXED)
    return task_of(function, read_space(space), machine, options.pop("sizes", {}), **options)


def built(task: UserTask, **parameters: Any) -> Candidate | Refusal:
    """The candidate of some parameters."""
    return try_candidate(task, task.match.space().read(parameters))


def test_members_are_the_schedules_of_the_function() -> None:
    search = task(tiled)
    candidate = built(search, rows=2, is_vector=True)
    assert isinstance(candidate, Candidate)
    scheduled = search.match.build(candidate.member)
    assert scheduled.function == tiled(2, is_vector=True).function
    assert "f32x4" in candidate.text


def test_a_refused_member_is_no_error() -> None:
    refusal = built(task(tiled), rows=3, is_vector=True)
    assert isinstance(refusal, Refusal)
    assert refusal.reason.startswith("split: ")
    refusal = built(task(lambda rows, is_vector: tiled(rows, is_vector) if rows < 8 else None),
                    rows=8, is_vector=True)  # fmt: skip
    assert refusal == Refusal("<lambda> refuses these parameters")

    def mistaken(rows: int, is_vector: bool) -> tir.Schedule:
        return tiled({4: 4, 2: 2}[rows], is_vector)

    assert built(task(mistaken), rows=8, is_vector=True) == Refusal("KeyError: 8")


def test_a_search_starts_from_the_first_member_that_builds_or_from_the_default() -> None:
    first = task(tiled, {"rows": [3, 16, 8], "is_vector": [True]})
    assert first.match.default().rows == 16
    default = task(tiled, default={"rows": 8, "is_vector": False})
    assert (default.match.default().rows, default.match.default().is_vector) == (8, False)


def test_closures_lambdas_and_partial_functions_are_schedule_functions() -> None:
    unrolled = 2
    for function in (
        lambda rows: tiled(rows, is_vector=unrolled > 1),
        partial(tiled, is_vector=True),
    ):
        search = task(function, {"rows": [4, 2, 8]})
        assert isinstance(built(search, rows=2), Candidate)


def test_a_task_of_a_function_does_not_travel() -> None:
    with pytest.raises(TypeError, match="the schedule function tiled runs in its own process"):
        pickle.dumps(task(tiled))


def test_records_belong_to_the_program_the_space_and_the_schedules() -> None:
    key = task(tiled).key
    assert task(lambda rows, is_vector: tiled(rows, is_vector)).key != key  # another name

    def renamed(name: str, function: Function) -> Function:
        function.__name__ = name
        return function

    same = renamed("tiled", lambda rows, is_vector: tiled(rows, is_vector))
    edited = renamed("tiled", lambda rows, is_vector: tiled(rows, not is_vector))
    other = double(scale=3.0)

    def of_another_program(rows: int, is_vector: bool) -> tir.Schedule:
        schedule = tir.Schedule(other)
        schedule.apply_trace(tiled(rows, is_vector).trace)
        return schedule

    keys = [
        task(same).key,
        task(edited).key,
        task(renamed("tiled", of_another_program)).key,
        task(tiled, {**SPACE, "rows": [4, 2]}).key,
        task(tiled, default={"rows": 2, "is_vector": True}).key,
    ]
    assert keys[0] == key
    assert len({key, *keys[1:]}) == len(keys)


def test_a_program_that_is_built_again_is_the_same_program() -> None:
    def rebuilt(rows: int) -> tir.Schedule:
        schedule = tir.Schedule(double())
        schedule.split(schedule.get_loops("B")[0], [None, rows])
        return schedule

    assert isinstance(built(task(rebuilt, {"rows": [1, 2]}), rows=2), Candidate)


def test_a_program_of_unknown_size_needs_a_size() -> None:
    program = double(T.symbol("n"))

    def split(rows: int) -> tir.Schedule:
        schedule = tir.Schedule(program)
        schedule.split(schedule.get_loops("B")[0], [None, rows])
        return schedule

    with pytest.raises(UserError, match=r'the size of n is unknown.*sizes=\{"n": 64\}'):
        task(split, {"rows": [2, 4]})
    sized = task(split, {"rows": [2, 4]}, sizes={"n": 20, "m": 1})
    assert sized.sizes == {"n": 20}
    assert isinstance(built(sized, rows=4), Candidate)


@pytest.mark.parametrize(
    ("function", "default", "message"),
    [
        (lambda rows, is_vector: None, None, "builds none.*refuses these parameters"),
        (lambda rows, is_vector: tiled(3, is_vector), None, "builds none.*last reason: split"),
        (lambda rows, is_vector: rows, None, "must return a tir.Schedule, not int"),
        (tiled, {"rows": 5, "is_vector": True}, "the default .*5.* is no member of the space"),
        (tiled, {"rows": 4}, "the default .* is no member of the space"),
    ],
)
def test_a_function_without_a_schedule_to_start_from_is_refused(
    function: Function, default: Mapping[str, Any] | None, message: str
) -> None:
    with pytest.raises(UserError, match=f"(?s){message}"):
        task(function, default=default)


def test_a_default_that_a_primitive_refuses_is_refused_with_its_place() -> None:
    with pytest.raises(tir.ScheduleError, match="split"):
        task(tiled, default={"rows": 3, "is_vector": True})


def test_a_function_of_other_parameters_is_the_callers_mistake() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'columns'"):
        task(tiled, {"rows": [2], "columns": [4], "is_vector": [True]})


def test_a_function_of_several_programs_is_refused() -> None:
    def any_program(rows: int) -> tir.Schedule:
        return tir.Schedule(double(scale=float(rows)))

    refusal = built(task(any_program, {"rows": [2, 3]}), rows=3)
    assert isinstance(refusal, Refusal)
    assert "any_program schedules different programs" in refusal.reason


def test_a_schedule_for_a_gpu_binds_loops() -> None:
    def bound(threads: int) -> tir.Schedule:
        schedule = tir.Schedule(PROGRAM)
        i, j = schedule.get_loops("B")
        if threads > 1:
            schedule.bind(i, "blockIdx.x")
            schedule.bind(j, "threadIdx.x")
        return schedule

    search = task(bound, {"threads": [8, 1]}, machine=WEBGPU, default={"threads": 8})
    candidate = built(search, threads=8)
    assert isinstance(candidate, Candidate)
    assert "@workgroup_size(8" in candidate.text
    refusal = built(search, threads=1)
    assert isinstance(refusal, Refusal)
    assert "binds no loop to a GPU" in refusal.reason
