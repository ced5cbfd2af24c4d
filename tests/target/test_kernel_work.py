"""Test the work of compiled kernels: the bytes their code writes, and the fewest bytes they
could move.
"""

from __future__ import annotations

import math

import pytest

from tests.schedule.rules import kernels as k
from webmlc.core.machine import RELAXED, SIMD128, Machine
from webmlc.core.rewrite import evaluate
from webmlc.loops.count_work import count_work
from webmlc.loops.ir import Buffer, LoopFunction
from webmlc.schedule.rules import schedule_kernel
from webmlc.target.kernel_work import Kernel, kernel_work
from webmlc.target.targets import lower

S = k.S
WRITTEN_ONCE: dict[str, tuple[LoopFunction, dict[str, int]]] = {
    "matmul": (k.matmul(13, 45, 5), {}),
    "matmul, symbolic rows": (k.matmul(S, 40, 4), {"s": 17}),
    "conv 3x3": (k.convolution(7, 7, 3, 16, 3), {}),
    "conv 3x3, odd channels": (k.convolution(7, 14, 3, 13, 3), {}),
    "conv 3x3, symbolic size": (k.convolution(S, S, 3, 8, 3), {"s": 11}),
    "depthwise 5x5": (k.depthwise(8, 8, 13, 5, epilogue=False), {}),
    "max pool": (k.pool(5, 12, 3, "max"), {}),
    "softmax": (k.softmax(4, 129), {}),
    "layer norm": (k.layer_norm(S, 3, 70), {"s": 2}),
    "add bias": (k.add_bias(2, 3, 4, 10), {}),
    "transpose": (k.transpose((0, 2, 3, 1), 1, 3, 8, 8), {}),
    "gather": (k.gather_rows(3, 12, S), {"s": 4}),
}
"""Kernels whose code writes every result once, with the values of their symbols."""
MACHINES = {"relaxed": RELAXED, "simd128": SIMD128}


def size(buffer: Buffer, sizes: dict[str, int]) -> int:
    """The bytes of a buffer."""
    return math.prod(int(evaluate(d, sizes)) for d in buffer.shape) * buffer.dtype.bytes


def compiled(function: LoopFunction, machine: Machine) -> Kernel:
    """A kernel with its code."""
    lowered = lower(schedule_kernel(function, machine).function, machine)
    return Kernel(function, lambda: lowered)


@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
@pytest.mark.parametrize("case", WRITTEN_ONCE.values(), ids=WRITTEN_ONCE)
def test_the_code_writes_every_result_once(
    case: tuple[LoopFunction, dict[str, int]], machine: Machine
) -> None:
    function, sizes = case
    kernel = compiled(function, machine)
    results = kernel.lowered().params[-function.outputs :]
    written = count_work(kernel.lowered(), sizes).written
    assert [written[b] for b in results] == [size(b, sizes) for b in results]


def test_a_matrix_product_moves_more_than_the_least_and_an_addition_does_not() -> None:
    work = kernel_work(compiled(k.matmul(48, 64, 32, epilogue=False), RELAXED), {})
    assert work.flops == 2 * 48 * 64 * 32
    assert work.least == 4 * (48 * 32 + 32 * 64 + 48 * 64)
    assert work.least < work.moved < 2 * 4 * 48 * 64 * 32
    work = kernel_work(compiled(k.add(4, 16, 8), RELAXED), {})
    assert work.flops == 4 * 16 * 8
    assert work.moved == work.least == 3 * 4 * 4 * 16 * 8


def test_a_gather_needs_only_the_rows_that_it_reads() -> None:
    work = kernel_work(compiled(k.gather_rows(1000, 12, 5), RELAXED), {})
    assert work.least == 2 * 4 * 5 * 12 + 5 * k.gather_rows(1000, 12, 5).params[1].dtype.bytes
