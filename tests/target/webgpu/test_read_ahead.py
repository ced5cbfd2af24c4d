"""Test that threads read inputs before they wait for each other, where that means the same."""

from __future__ import annotations

import numpy as np
import pytest

from tests.schedule.checks import body_text
from tests.schedule.rules import kernels as k
from tests.target.webgpu import gpu
from webmlc.core.machine import SUBGROUPS, WEBGPU, Machine
from webmlc.loops.interp import run
from webmlc.loops.ir import LoopFunction
from webmlc.loops.text import parse_function
from webmlc.schedule.rules import schedule_kernel
from webmlc.target.targets import lower
from webmlc.target.webgpu.emit_shaders import emit_shaders
from webmlc.target.webgpu.read_ahead import read_ahead

KERNEL = """\
@T.kernel
def f(
    x: T.Buffer((4,), "float32"),
    w: T.Buffer((8,), "float32"),
    R: T.Output((8,), "float32"),
):
    S = T.alloc_buffer((4,), "float32", scope="shared")
    W = T.alloc_buffer((), "float32", scope="local")
    A = T.alloc_buffer((), "float32", scope="local")
    for b in T.thread_binding(2, "blockIdx.x"):
        {ahead}for t in T.thread_binding(4, "threadIdx.x"):
            S[t] = x[t]
        T.barrier()
        A[()] = T.float32(0.0)
        for u in range(4):
            A[()] = A[()] + S[u]
        for t in T.thread_binding(4, "threadIdx.x"):
            {read}R[b * 4 + t] = W[()] * A[()]
"""
READ = "W[()] = w[b * 4 + t]\n            "


def kernel(read: str, ahead: str = "") -> LoopFunction:
    return parse_function(KERNEL.format(read=read, ahead=ahead))


def test_a_read_moves_before_the_barrier() -> None:
    ahead = (
        'for t_1_ahead in T.thread_binding(4, "threadIdx.x"):\n'
        "            W[()] = w[b * 4 + t_1_ahead]\n        "
    )
    before, after = kernel(READ), read_ahead(kernel(READ))
    assert body_text(after) == body_text(kernel("", ahead))
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal(4, np.float32), rng.standard_normal(8, np.float32)
    for function in (before, after):
        result = np.zeros(8, np.float32)
        run(function, {"x": x, "w": w, "R": result})
        np.testing.assert_allclose(result, w * x.sum(), rtol=1e-5)


@pytest.mark.parametrize(
    "read",
    [
        "if t < 2:\n                W[()] = w[b * 4 + t]\n            ",  # not by all threads
        "W[()] = T.float32(1.0)\n            W[()] = w[b * 4 + t]\n            ",  # a second value
        "for v in range(1):\n                W[()] = w[b * 4 + v]\n            ",
        "W[()] = R[b * 4 + t]\n            ",  # of an output
        "W[()] = w[b * 4 + t] + A[()]\n            ",  # the sum is known behind the barrier
    ],
)
def test_other_reads_stay(read: str) -> None:
    function = kernel(read)
    assert body_text(read_ahead(function)) == body_text(function)


@pytest.mark.parametrize("machine", [WEBGPU, SUBGROUPS], ids=lambda m: str(m.features))
def test_weights_arrive_while_threads_fold_the_norm_of_a_row(machine: Machine) -> None:
    function = k.float_block_product(k.S, 24, 2)
    lowered = lower(schedule_kernel(function, machine).function, machine)
    text = emit_shaders({"product": lowered}, features=machine.features).text
    row = text[text.index("squares_tail_rf_0[") - 2000 :]
    assert "= w_0[" in row[: row.index("workgroupBarrier()")]
    data = k.arguments(function, {"s": 3})
    (got,) = gpu.run_on_gpu(lowered, data, {"s": 3}, features=machine.features).values()
    (want,) = k.outputs_of(function, {"s": 3})
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
