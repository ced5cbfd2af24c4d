"""Test that threads keep what several loops read, where that means the same."""

from __future__ import annotations

import re

import numpy as np
import pytest

from tests.schedule.checks import body_text
from webmlc.core.machine import SOFTWARE, SUBGROUPS, WEBGPU, Machine
from webmlc.loops.interp import run
from webmlc.loops.ir import LoopFunction
from webmlc.loops.text import parse_function
from webmlc.target.webgpu.lowering import lowering
from webmlc.target.webgpu.read_once import MOST_ELEMENTS, read_once

KERNEL = """\
@T.kernel
def f(
    x: T.Buffer((64,), "float32"),
    R: T.Output((64,), "float32"),
):
    S = T.alloc_buffer((4,), "float32", scope="shared")
    A = T.alloc_buffer((), "float32", scope="local")
{once}    for b in T.thread_binding(2, "blockIdx.x"):
{ahead}        for t in T.thread_binding(4, "threadIdx.x"):
            {first}
        T.barrier()
        A[()] = T.float32(0.0)
        for u in range(4):
            A[()] = A[()] + S[u]
        for s in T.thread_binding(4, "threadIdx.x"):
            {second}
"""
FIRST = "S[t] = x[b * 4 + t] * x[b * 4 + t]"
SECOND = "R[b * 4 + s] = x[s + b * 4] * A[()]"


def kernel(first: str, second: str, once: str = "", ahead: str = "") -> LoopFunction:
    return parse_function(KERNEL.format(first=first, second=second, once=once, ahead=ahead))


def results(function: LoopFunction) -> np.ndarray:
    x = np.random.default_rng(0).standard_normal(64, np.float32)
    result = np.zeros(64, np.float32)
    run(function, {"x": x, "R": result})
    return result


def test_an_element_that_two_loops_read_is_read_once() -> None:
    register = '    x_once = T.alloc_buffer((), "float32", scope="local")\n'
    ahead = (
        '        for thread_x in T.thread_binding(4, "threadIdx.x"):\n'
        "            x_once[()] = x[b * 4 + thread_x]\n"
    )
    before, after = kernel(FIRST, SECOND), read_once(kernel(FIRST, SECOND))
    expected = kernel(
        "S[t] = x_once[()] * x_once[()]", "R[b * 4 + s] = x_once[()] * A[()]", register, ahead
    )
    assert body_text(after) == body_text(expected)
    np.testing.assert_array_equal(results(after), results(before))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (FIRST, "R[b * 4 + s] = A[()]"),  # one loop
        (FIRST, "R[b * 4 + s] = x[s + b * 8] * A[()]"),  # another element
        ("if t < 2:\n                S[t] = x[b * 4 + t]", SECOND),  # not every thread
        ("for v in range(1):\n                S[t] = x[b * 4 + t + v]", SECOND),
        ("S[t] = R[b * 4 + t]", "R[b * 4 + s] = R[b * 4 + s] * A[()]"),  # of an output
        ("S[t] = T.select(t < 2, x[b * 4 + t], T.float32(0.0))", SECOND),
    ],
)
def test_other_reads_stay(first: str, second: str) -> None:
    function = kernel(first, second)
    assert body_text(read_once(function)) == body_text(function)


def test_a_thread_keeps_so_many_elements() -> None:
    count = MOST_ELEMENTS + 8
    elements = " + ".join(f"x[t + {n}]" for n in range(count))
    function = read_once(kernel(f"S[t] = {elements}", f"R[s] = {elements.replace('t', 's')}"))
    assert len(function.allocations) == 2 + MOST_ELEMENTS
    np.testing.assert_allclose(
        results(function),
        results(kernel(f"S[t] = {elements}", f"R[s] = {elements.replace('t', 's')}")),
    )


def test_elements_are_read_in_the_order_of_the_kernel() -> None:
    numbers = [3, 1, 7, 2, 6, 4, 8, 5]
    elements = " + ".join(f"x[t + {n}]" for n in numbers)
    function = read_once(kernel(f"S[t] = {elements}", f"R[s] = {elements.replace('t', 's')}"))
    reads = re.findall(r"= x\[thread_x \+ (\d)\]", body_text(function))
    assert [int(number) for number in reads] == numbers


@pytest.mark.parametrize("machine", [WEBGPU, SUBGROUPS, SOFTWARE], ids=lambda m: str(m.features))
def test_only_gpus_keep_elements(machine: Machine) -> None:
    assert (read_once in lowering(machine)) == machine.reads_lines
