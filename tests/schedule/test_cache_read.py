"""`cache_read`: golden text, same results, replay, refusals."""

from __future__ import annotations

import pytest

from tests.schedule.checks import assert_same, body_text
from webmlc.loops.text import parse_function
from webmlc.schedule.errors import ScheduleError
from webmlc.schedule.schedule import Schedule

BLUR = parse_function("""\
@T.kernel
def blur(A: T.Buffer((18,), "float32"), B: T.Output((16,), "float32")):
    T0 = T.alloc_buffer((18,), "float32")
    for i in range(18):
        with T.block("T0"):
            vi = T.axis.remap("S", [i])
            T0[vi] = A[vi] * 2.0
    for j in range(16):
        with T.block("B"):
            vj = T.axis.remap("S", [j])
            B[vj] = T0[vj] + T0[vj + 1] + A[vj + 2]
""")


def test_the_copy_stands_before_the_outermost_loop() -> None:
    schedule = Schedule(BLUR)
    outer, _ = schedule.split("j", [None, 4])
    assert schedule.cache_read("B", "T0", "local") == "T0_local"
    assert (
        body_text(schedule.function)
        == """\
for i in range(18):
    with T.block("T0"):
        vi = T.axis.remap("S", [i])
        T0[vi] = A[vi] * T.float32(2.0)
for T0_local_0 in range(17):
    with T.block("T0_local"):
        vT0_local_0 = T.axis.spatial(18, T0_local_0)
        T0_local[vT0_local_0] = T0[vT0_local_0]
for j_0, j_1 in T.grid(4, 4):
    with T.block("B"):
        vj = T.axis.spatial(16, j_0 * 4 + j_1)
        B[vj] = T0_local[vj] + T0_local[vj + 1] + A[vj + 2]"""
    )
    assert_same(BLUR, schedule)
    schedule.compute_at("T0_local", outer)
    assert "for T0_local_0 in range(5):" in body_text(schedule.function)
    assert_same(BLUR, schedule)


def test_only_the_block_named_reads_the_copy() -> None:
    schedule = Schedule(BLUR)
    schedule.cache_read("B", "A", "shared")
    text = body_text(schedule.function)
    assert "T0[vi] = A[vi] * T.float32(2.0)" in text
    assert "T0[vj + 1] + A_shared[vj + 2]" in text
    assert_same(BLUR, schedule)


def test_guarded_reads_copy_what_exists() -> None:
    padded = parse_function("""\
@T.kernel
def pad(A: T.Buffer((6,), "float32"), B: T.Output((8,), "float32")):
    for i in range(8):
        with T.block("B"):
            vi = T.axis.remap("S", [i])
            B[vi] = T.select((vi >= 1) & (vi < 7), A[vi - 1], 0.0)
""")
    schedule = Schedule(padded)
    schedule.cache_read("B", "A", "local")
    assert_same(padded, schedule)
    outer, _ = schedule.split("i", [None, 4])
    schedule.compute_at("A_local", outer)
    assert_same(padded, schedule)


@pytest.mark.parametrize(
    ("block", "buffer", "message"),
    [("T0", "B", "block 'T0' does not read 'B'"), ("sum", "S", "block 'sum' writes 'S'")],
)
def test_refusals(block: str, buffer: str, message: str) -> None:
    total = parse_function("""\
@T.kernel
def f(A: T.Buffer((8,), "float32"), B: T.Output((1,), "float32")):
    S = T.alloc_buffer((1,), "float32")
    for k in range(8):
        with T.block("sum"):
            vk = T.axis.remap("R", [k])
            with T.init():
                S[0] = 0.0
            S[0] = S[0] + A[vk]
    for i in range(1):
        with T.block("T0"):
            vi = T.axis.remap("S", [i])
            B[vi] = S[vi]
""")
    with pytest.raises(ScheduleError) as error:
        Schedule(total).cache_read(block, buffer, "local")
    assert error.value.reason == message
    assert f'with T.block("{block}")' in str(error.value)
