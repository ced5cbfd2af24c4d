"""`compute_inline` and `reverse_compute_inline`: golden text, same results, replay, refusals."""

from __future__ import annotations

import pytest

from tests.schedule.checks import assert_same, body_text
from webmlc.loops.ir import LoopFunction
from webmlc.loops.text import parse_function
from webmlc.schedule.errors import ScheduleError
from webmlc.schedule.schedule import Schedule

CHAIN = parse_function("""\
@T.kernel
def chain(A: T.Buffer((n, 8), "float32"), C: T.Output((8, n), "float32"), n: T.symbol):
    B = T.alloc_buffer((8, n), "float32")
    for j, i in T.grid(8, n):
        with T.block("B"):
            vj, vi = T.axis.remap("SS", [j, i])
            x = A[vi, vj]
            B[vj, vi] = x * x
    for k, l in T.grid(8, n):
        with T.block("C"):
            vk, vl = T.axis.remap("SS", [k, l])
            C[7 - vk, vl] = T.max(B[vk, vl], 1.0)
""")


def test_compute_inline() -> None:
    schedule = Schedule(CHAIN)
    schedule.compute_inline("B")
    assert (
        body_text(schedule.function)
        == """\
for k, l in T.grid(8, n):
    with T.block("C"):
        vk, vl = T.axis.remap("SS", [k, l])
        C[7 - vk, vl] = T.max(A[vl, vk] * A[vl, vk], T.float32(1.0))"""
    )
    assert schedule.function.allocations == ()
    assert_same(CHAIN, schedule, {"n": 3})


def test_reverse_compute_inline() -> None:
    schedule = Schedule(CHAIN)
    schedule.split("i", [None, 4])
    schedule.reverse_compute_inline("C")
    assert (
        body_text(schedule.function)
        == """\
for j, i_0, i_1 in T.grid(8, (n + 3) // 4, 4):
    with T.block("B"):
        vj = T.axis.spatial(8, j)
        vi = T.axis.spatial(n, i_0 * 4 + i_1)
        T.where(i_0 * 4 + i_1 < n)
        C[7 - vj, vi] = T.max(A[vi, vj] * A[vi, vj], T.float32(1.0))"""
    )
    assert_same(CHAIN, schedule, {"n": 6})


def test_inlining_into_a_window_computes_it_at_every_place() -> None:
    blur = parse_function("""\
@T.kernel
def blur(A: T.Buffer((18,), "float32"), B: T.Output((16,), "float32")):
    E = T.alloc_buffer((18,), "float32")
    for i in range(18):
        with T.block("E"):
            vi = T.axis.remap("S", [i])
            E[vi] = T.exp(A[vi])
    for j, k in T.grid(16, 3):
        with T.block("B"):
            vj, vk = T.axis.remap("SR", [j, k])
            with T.init():
                B[vj] = 0.0
            B[vj] = B[vj] + E[vj + vk]
""")
    schedule = Schedule(blur)
    schedule.compute_inline("E")
    assert "B[vj] = B[vj] + T.exp(A[vj + vk])" in body_text(schedule.function)
    assert_same(blur, schedule)


def two_readers(second: str) -> LoopFunction:
    return parse_function(f"""\
@T.kernel
def f(A: T.Buffer((8,), "float32"), C: T.Output((8,), "float32"), D: T.Output((8,), "float32")):
    B = T.alloc_buffer((8,), "float32")
    for i in range(8):
        with T.block("B"):
            vi = T.axis.remap("S", [i])
            B[vi] = A[vi] + 1.0
    for j in range(8):
        with T.block("D"):
            vj = T.axis.remap("S", [j])
            {second}
    for k in range(8):
        with T.block("C"):
            vk = T.axis.remap("S", [k])
            C[vk] = B[vk] * 2.0
""")


@pytest.mark.parametrize(
    ("primitive", "block", "second", "reason"),
    [
        ("compute_inline", "C", "D[vj] = B[vj]", "block 'C' writes 'C', which is an output"),
        ("compute_inline", "B", "B[vj] = 2.0", "block 'D' writes 'B' too"),
        ("reverse_compute_inline", "C", "D[vj] = B[vj]", "block 'D' reads 'B' too"),
        (
            "reverse_compute_inline",
            "C",
            "D[vj] = C[vj]",
            "block 'D' runs in between and shares its buffers",
        ),
        (
            "reverse_compute_inline",
            "D",
            "D[vj] = B[7 - vj]",
            "block 'D' does not take every element of 'B' exactly once",
        ),
        (
            "reverse_compute_inline",
            "D",
            "D[vj] = A[vj]",
            "block 'D' reads none of what one other block makes; one fits",
        ),
    ],
)
def test_refusals(primitive: str, block: str, second: str, reason: str) -> None:
    schedule = Schedule(two_readers(second))
    with pytest.raises(ScheduleError) as error:
        getattr(schedule, primitive)(block)
    assert error.value.reason == reason
    assert schedule.trace == []


def test_a_reduction_is_not_inlined() -> None:
    total = parse_function("""\
@T.kernel
def f(A: T.Buffer((4, 8), "float32"), C: T.Output((4,), "float32")):
    S = T.alloc_buffer((4,), "float32")
    for i, k in T.grid(4, 8):
        with T.block("S"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                S[vi] = 0.0
            S[vi] = S[vi] + A[vi, vk]
    for j in range(4):
        with T.block("C"):
            vj = T.axis.remap("S", [j])
            C[vj] = T.sqrt(S[vj])
""")
    with pytest.raises(ScheduleError) as error:
        Schedule(total).compute_inline("S")
    assert (
        str(error.value)
        == """\
compute_inline: block 'S' is a reduction

    @T.kernel
    def f(A: T.Buffer((4, 8), "float32"), C: T.Output((4,), "float32")):
        S = T.alloc_buffer((4,), "float32")
        for i, k in T.grid(4, 8):
            with T.block("S"):
                          ^
                vi, vk = T.axis.remap("SR", [i, k])
                with T.init():
                    S[vi] = T.float32(0.0)
                S[vi] = S[vi] + A[vi, vk]
        for j in range(4):
            with T.block("C"):
                vj = T.axis.remap("S", [j])
                C[vj] = T.sqrt(S[vj])"""
    )
    with pytest.raises(ScheduleError, match="block 'S' is a reduction"):
        Schedule(total).reverse_compute_inline("C")
