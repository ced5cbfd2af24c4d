"""Cooperative fetching: the threads of a workgroup share out a copy into shared memory."""

from __future__ import annotations

import pytest

from tests.kernel_runner import random_inputs, run_on_interp, run_on_webgpu
from tests.schedule.checks import assert_same, body_text
from webmlc.core.machine import WEBGPU
from webmlc.loops.text import parse_function
from webmlc.schedule.errors import ScheduleError
from webmlc.schedule.schedule import Schedule
from webmlc.target.targets import lower

CENTRED = parse_function("""\
@T.kernel
def centred(A: T.Buffer((4, 64), "float32"), B: T.Output((4, 64), "float32")):
    for i, j in T.grid(4, 64):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = A[vi, vj] - A[vi, 0]
""")


def fetched() -> Schedule:
    schedule = Schedule(CENTRED)
    schedule.bind("i", "blockIdx.x")
    schedule.bind("j", "threadIdx.x")
    schedule.cache_read("B", "A", "shared")
    schedule.compute_at("A_shared", "j")
    return schedule


def test_a_shared_copy_holds_what_all_threads_read() -> None:
    schedule = fetched()
    lanes = schedule.loops("A_shared")[-1]
    schedule.bind(lanes, "threadIdx.x")
    assert (
        body_text(schedule.function)
        == """\
for i in T.thread_binding(4, "blockIdx.x"):
    for j in T.thread_binding(64, "threadIdx.x"):
        for A_shared_1 in T.thread_binding(64, "threadIdx.x"):
            with T.block("A_shared"):
                vA_shared_0, vA_shared_1 = T.axis.remap("SS", [i, A_shared_1])
                A_shared[vA_shared_0, vA_shared_1] = A[vA_shared_0, vA_shared_1]
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = A_shared[vi, vj] - A_shared[vi, 0]"""
    )
    assert_same(CENTRED, schedule)
    lowered = lower(schedule.function, WEBGPU)
    assert (
        body_text(lowered)
        == """\
for i in T.thread_binding(4, "blockIdx.x"):
    for j in T.thread_binding(64, "threadIdx.x"):
        for A_shared_1 in T.thread_binding(64, "threadIdx.x"):
            A_shared[A_shared_1] = A[A_shared_1 + i * 64]
        T.barrier()
        B[i * 64 + j] = A_shared[j] - A_shared[0]"""
    )
    inputs = random_inputs(CENTRED)
    want = inputs["A"] - inputs["A"][:, :1]
    assert (run_on_interp(lowered, inputs)["B"].reshape(4, 64) == want).all()
    assert (run_on_webgpu(schedule.function, inputs)["B"] == want).all()


def test_fewer_fetching_threads_than_threads() -> None:
    schedule = fetched()
    outer, inner = schedule.split(schedule.loops("A_shared")[-1], [None, 16])
    schedule.bind(inner, "threadIdx.x")
    assert schedule.loops("A_shared") == ["i", "j", outer, inner]
    assert_same(CENTRED, schedule)
    inputs = random_inputs(CENTRED)
    want = inputs["A"] - inputs["A"][:, :1]
    lowered = lower(schedule.function, WEBGPU)
    assert (run_on_interp(lowered, inputs)["B"].reshape(4, 64) == want).all()
    assert (run_on_webgpu(schedule.function, inputs)["B"] == want).all()


def test_work_of_each_thread_is_not_shared_out() -> None:
    schedule = Schedule(CENTRED)
    outer, inner = schedule.split("j", [8, 8])
    schedule.bind(outer, "threadIdx.x")
    with pytest.raises(ScheduleError) as error:
        schedule.bind(inner, "threadIdx.x")
    assert error.value.reason == "loop 'j_0' around loop 'j_1' is bound to threadIdx.x already"
