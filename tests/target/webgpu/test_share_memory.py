"""Test that sections share workgroup memory, and that nothing else does."""

from __future__ import annotations

import numpy as np
import pytest

from tests.target.webgpu import gpu
from webmlc.loops.interp import run
from webmlc.loops.ir import LoopFunction
from webmlc.loops.text import parse_function, print_function
from webmlc.target.share_memory import apart_bytes, share_memory, shared_bytes
from webmlc.target.webgpu.printer import emit_shader

KERNEL = """\
@T.kernel
def f(
    x: T.Buffer((64,), "float32"),
    R: T.Output((64,), "float32"),
):
    A = T.alloc_buffer((16,), "float32", scope="shared")
    B = T.alloc_buffer((32,), "float32", scope="shared")
    C = T.alloc_buffer((8,), "float32", scope="shared")
    D = T.alloc_buffer((8,), "{dtype}", scope="shared")
    for b in T.thread_binding(2, "blockIdx.x"):
        for t in T.thread_binding(8, "threadIdx.x"):
            A[t] = x[b * 8 + t]
            {first}
        T.barrier()
        for t_1 in T.thread_binding(8, "threadIdx.x"):
            R[b * 8 + t_1] = A[7 - t_1] + C[7 - t_1]
    for c in T.thread_binding(2, "blockIdx.x"):
        for u in T.thread_binding(16, "threadIdx.x"):
            B[u] = x[c * 16 + u + 16]
        {second}
        T.barrier()
        for u_1 in T.thread_binding(16, "threadIdx.x"):
            R[c * 16 + u_1 + 16] = B[15 - u_1] * {factor}
"""
FIRST = "C[t] = x[b * 8 + t] * T.float32(2.0)"
SECOND = 'for w in T.thread_binding(8, "threadIdx.x"):\n            D[w] = x[w + c * 8]'
VECTORS = (
    'for w in T.thread_binding(2, "threadIdx.x"):\n'
    "            D[T.ramp(w * 4, 1, 4)] = x[T.ramp(w * 4 + c * 8, 1, 4)]"
)


def kernel(second: str = SECOND, dtype: str = "float32", factor: str = "D[7]") -> LoopFunction:
    return parse_function(KERNEL.format(first=FIRST, second=second, dtype=dtype, factor=factor))


def check(function: LoopFunction) -> None:
    """The shader, whose sections share memory, and the interpreter agree."""
    x = np.random.default_rng(0).standard_normal(64, np.float32)
    want = np.zeros(64, np.float32)
    run(function, {"x": x, "R": want})
    (got,) = gpu.run_on_gpu(function, {"x": x, "R": np.zeros(64, np.float32)}, {}).values()
    np.testing.assert_array_equal(got[:48], want[:48])


def sizes(function: LoopFunction) -> dict[str, int]:
    return {b.name: int(str(b.shape[0])) for b in function.allocations if b.scope == "shared"}


def test_sections_share_their_largest_buffers_and_the_next_ones() -> None:
    before, after = kernel(), share_memory(kernel())
    assert sizes(after) == {"A_or_B": 32, "C_or_D": 8}
    assert shared_bytes(before) == 4 * (32 + 8)
    check(before)


def test_sections_of_a_software_adapter_share_only_what_would_not_fit() -> None:
    """SwiftShader writes zeros to each element of the memory that a pipeline names, one by one, so
    that a section needs no more than its own.
    """
    small = kernel()
    assert apart_bytes(small) == 4 * (16 + 32 + 8 + 8)
    large = parse_function(print_function(small).replace("(32,)", "(4080,)"))
    for function, is_shared in ((small, False), (large, True)):
        text = emit_shader(function, frozenset(), is_software=True).text
        assert ("A_or_B" in text) == is_shared
        assert "A_or_B" in emit_shader(function, frozenset()).text


@pytest.mark.parametrize(
    ("second", "dtype", "factor"),
    [
        (VECTORS, "float32", "D[7]"),  # `C` is written as scalars
        ("D[c] = T.int32(2)", "int32", "x[D[c]]"),
    ],
    ids=["vectors", "integers"],
)
def test_buffers_of_other_kinds_stay_apart(second: str, dtype: str, factor: str) -> None:
    before = kernel(second, dtype, factor)
    after = share_memory(before)
    assert sizes(after) == {"A_or_B": 32, "C": 8, "D": 8}
    assert shared_bytes(before) == 4 * (32 + 8 + 8)
    check(before)


def test_what_two_sections_use_stays_apart() -> None:
    function = kernel("for w in range(1):\n            C[w] = x[w + c * 8]", factor="C[0]")
    assert sizes(share_memory(function)) == {"A_or_B": 32, "C": 8, "D": 8}
