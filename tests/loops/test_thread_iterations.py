"""Count the loop iterations of one thread, with symbols and without."""

from __future__ import annotations

import pytest

from webmlc.loops.ir import LoopFunction
from webmlc.loops.text import parse_function
from webmlc.loops.thread_iterations import LONG_ROW, longest_thread, thread_iterations

NESTED = """
    for b in T.thread_binding(8, "blockIdx.x"):
        for t in T.thread_binding(64, "threadIdx.x"):
            for i in range(10):
                for j in range(5):
                    y[0] = T.float32(1.0)
"""
WRITTEN_OUT = """
    for b in T.thread_binding(8, "blockIdx.x"):
        for i in T.unrolled(4):
            for j in range(5):
                y[0] = T.float32(1.0)
"""
SECTIONS = """
    for b in T.thread_binding(8, "blockIdx.x"):
        for i in range(5):
            y[0] = T.float32(1.0)
    for c in T.thread_binding(8, "blockIdx.x"):
        for j in range(7):
            y[0] = T.float32(1.0)
"""
CHOSEN = """
    for u in T.thread_binding(T.min(T.max(9 - n, 0), 1), "blockIdx.y"):
        for i in range(n):
            y[0] = T.float32(1.0)
    for v in T.thread_binding(1 - T.min(T.max(9 - n, 0), 1), "blockIdx.y"):
        for j in range((n + 63) // 64):
            y[0] = T.float32(1.0)
"""
SYMBOL = ", n: T.symbol"


def kernel(body: str, symbols: str = "") -> LoopFunction:
    head = f'@T.kernel\ndef k(y: T.Output((1,), "float32"){symbols}):'
    return parse_function(head + body)


@pytest.mark.parametrize(
    ("body", "iterations"),
    [(NESTED, 10 * (1 + 5)), (WRITTEN_OUT, 4 * 5), (SECTIONS, 7)],
)
def test_loops_of_a_thread(body: str, iterations: int) -> None:
    assert longest_thread(kernel(body)) == iterations


def test_a_run_launches_one_of_two_nests() -> None:
    function = kernel(CHOSEN, SYMBOL)
    assert [thread_iterations(function, {"n": n}) for n in (8, 9, 640)] == [8, 1, 10]
    assert longest_thread(function) == LONG_ROW // 64
