"""`rfactor`: golden text, same results for every operator and remainder, replay, refusals."""

from __future__ import annotations

import pytest

from tests.schedule.checks import assert_same, body_text
from webmlc.loops.ir import LoopFunction
from webmlc.loops.text import parse_function
from webmlc.schedule.errors import ScheduleError
from webmlc.schedule.schedule import Schedule


def reduction(value: str, init: str = "0.0", size: int = 12) -> LoopFunction:
    return parse_function(f"""\
@T.kernel
def reduction(A: T.Buffer((4, {size}), "float32"), Y: T.Output((4,), "float32")):
    for i, k in T.grid(4, {size}):
        with T.block("Y"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                Y[vi] = {init}
            Y[vi] = {value}
""")


SUM = reduction("Y[vi] + A[vi, vk]")


def test_every_lane_sums_apart() -> None:
    schedule = Schedule(SUM)
    _, lane = schedule.split("k", [None, 4])
    assert schedule.rfactor(lane, 1) == "Y_rf"
    assert (
        body_text(schedule.function)
        == """\
for i in range(4):
    for k_0, k_1 in T.grid(3, 4):
        with T.block("Y_rf"):
            vi_1, vk_0, vk_1 = T.axis.remap("SRS", [i, k_0, k_1])
            with T.init():
                Y_rf[vi_1, vk_1] = T.float32(0.0)
            Y_rf[vi_1, vk_1] = Y_rf[vi_1, vk_1] + A[vi_1, vk_0 * 4 + vk_1]
    for k_1_1 in range(4):
        with T.block("Y"):
            vi_2, vk_1_1 = T.axis.remap("SR", [i, k_1_1])
            with T.init():
                Y[vi_2] = T.float32(0.0)
            Y[vi_2] = Y[vi_2] + Y_rf[vi_2, vk_1_1]"""
    )
    assert_same(SUM, schedule)


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("size", [12, 13, 5])
def test_remainders_change_nothing(which: int, axis: int, size: int) -> None:
    program = reduction("Y[vi] + A[vi, vk]", size=size)
    schedule = Schedule(program)
    loops = schedule.split("k", [4, 4])
    schedule.rfactor(loops[which], axis)
    assert_same(program, schedule)


@pytest.mark.parametrize(
    ("value", "init"),
    [
        ("T.max(A[vi, vk], Y[vi])", 'T.float32("-inf")'),
        ("T.min(Y[vi], A[vi, vk])", 'T.float32("inf")'),
        ("Y[vi] * A[vi, vk]", "1.0"),
        ("T.fma(A[vi, vk], A[vi, vk], Y[vi])", "0.0"),
        ("Y[vi] + A[vi, vk]", "10.0"),
    ],
)
def test_operators_and_inits(value: str, init: str) -> None:
    program = reduction(value, init)
    schedule = Schedule(program)
    outer, _ = schedule.split("k", [5, 3])
    schedule.rfactor(outer, 0)
    assert_same(program, schedule)


def test_under_split_spatial_loops_the_result_follows_inside() -> None:
    schedule = Schedule(SUM)
    i_0, i_1 = schedule.split("i", [2, 2])
    k_0, k_1 = schedule.split("k", [None, 4])
    schedule.reorder(i_0, k_0, i_1, k_1)
    schedule.rfactor(k_1, -1)
    assert [schedule.loops(block) for block in schedule.blocks()] == [
        ["i_0", "k_0", "i_1", "k_1"],
        ["i_0", "i_2", "k_1_1"],
    ]
    assert_same(SUM, schedule)


def test_a_symbol_in_a_quotient_is_no_loop() -> None:
    program = parse_function("""\
@T.kernel
def total(A: T.Buffer((s, s), "float32"), Y: T.Output((), "float32"), s: T.symbol):
    for i, j in T.grid(s, s):
        with T.block("Y"):
            vi, vj = T.axis.remap("RR", [i, j])
            with T.init():
                Y[()] = 0.0
            Y[()] = Y[()] + A[vi, vj]
""")
    schedule = Schedule(program)
    _, lane = schedule.split(schedule.fuse("i", "j"), [None, 4])
    schedule.rfactor(lane, -1)
    assert_same(program, schedule, {"s": 5})


def test_refusals() -> None:
    schedule = Schedule(SUM)
    with pytest.raises(ScheduleError) as error:
        schedule.rfactor("i", 0)
    assert error.value.reason == "loop 'i' does not run along the reduction of block 'Y' alone"
    schedule.decompose_reduction("Y", "k")
    with pytest.raises(ScheduleError) as error:
        schedule.rfactor("k", 0)
    assert (
        str(error.value)
        == """\
rfactor: block 'Y' is not `buffer[...] = op(buffer[...], value)` with an init

    @T.kernel
    def reduction(A: T.Buffer((4, 12), "float32"), Y: T.Output((4,), "float32")):
        for i in range(4):
            with T.block("Y_init"):
                vi_init = T.axis.remap("S", [i])
                Y[vi_init] = T.float32(0.0)
            for k in range(12):
                with T.block("Y"):
                              ^
                    vi, vk = T.axis.remap("SR", [i, k])
                    Y[vi] = Y[vi] + A[vi, vk]"""
    )
