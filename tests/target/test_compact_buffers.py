"""Test that buffers of symbolic size shrink to the part that one iteration uses."""

import numpy as np
import pytest

from webmlc.core.expr import as_int, const
from webmlc.loops import interp
from webmlc.loops.text import parse_function
from webmlc.target.compact_buffers import compact_buffers
from webmlc.target.insert_barriers import insert_barriers
from webmlc.target.lower_blocks import lower_blocks

# A kernel as a rule for rows schedules it: 8 elements in vectors, and a remainder of 2. The
# offset 8 is nearer to the next row than to the start of its row, but it belongs to its row.
ROWS = """
@T.kernel
def rows(x: T.Buffer((n, 10), "float32"), y: T.Output((n, 10), "float32"), n: T.symbol):
    e = T.alloc_buffer((n, 10), "float32")
    for i in range(n):
        for j in range(8):
            with T.block("main"):
                v_i = T.axis.spatial(n, i)
                v_j = T.axis.spatial(10, j)
                e[v_i, v_j] = x[v_i, v_j] * T.float32(2.0)
        for t in range(2):
            with T.block("remainder"):
                v_it = T.axis.spatial(n, i)
                v_jt = T.axis.spatial(10, t + 8)
                e[v_it, v_jt] = x[v_it, v_jt] * T.float32(3.0)
        for k in range(10):
            with T.block("out"):
                v_o = T.axis.spatial(n, i)
                v_k = T.axis.spatial(10, k)
                y[v_o, v_k] = e[v_o, v_k] + T.float32(1.0)
"""


def test_rows_with_a_remainder_shrink_to_one_row() -> None:
    function = compact_buffers(lower_blocks(parse_function(ROWS)))
    [row] = function.allocations
    assert np.prod([as_int(extent) for extent in row.shape]) == 10
    x = np.random.default_rng(0).standard_normal((3, 10)).astype(np.float32)
    y = np.empty_like(x)
    interp.run(function, {"x": x, "y": y}, {"n": 3})
    expected = x * np.where(np.arange(10) < 8, 2, 3).astype(np.float32) + 1
    np.testing.assert_allclose(y, expected, rtol=1e-6)


ELEMENT = """
@T.kernel
def element(x: T.Buffer((3, k), "float32"), y: T.Output((3, k), "float32"), k: T.symbol):
    e = T.alloc_buffer((3, k), "float32", scope="local")
    for t in T.thread_binding(k * 3, "threadIdx.x"):
        with T.block("producer"):
            v_i = T.axis.spatial(3, t // k)
            v_j = T.axis.spatial(k, t % k)
            e[v_i, v_j] = x[v_i, v_j] * T.float32(2.0)
        with T.block("consumer"):
            v_a = T.axis.spatial(3, t // k)
            v_b = T.axis.spatial(k, t % k)
            y[v_a, v_b] = e[v_a, v_b] + T.float32(1.0)
"""


def test_the_only_element_of_a_thread_needs_no_array() -> None:
    function = compact_buffers(lower_blocks(parse_function(ELEMENT)))
    assert [as_int(extent) for extent in function.allocations[0].shape] == [1]
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    y = np.empty_like(x)
    interp.run(function, {"x": x, "y": y}, {"k": 4})
    np.testing.assert_array_equal(y, x * 2 + 1)


PLANES = """
@T.kernel
def planes(x: T.Buffer((n, 6), "float32"), y: T.Output((n, 6), "float32"), n: T.symbol):
    e = T.alloc_buffer((3, n, 6), "float32")
    for i in range(n):
        for p, j in T.grid(3, 6):
            with T.block("producer"):
                v_p = T.axis.spatial(3, p)
                v_i = T.axis.spatial(n, i)
                v_j = T.axis.spatial(6, j)
                e[v_p, v_i, v_j] = x[v_i, v_j] + T.cast(v_p, "float32")
        for k in range(6):
            with T.block("consumer"):
                v_u = T.axis.spatial(n, i)
                v_k = T.axis.spatial(6, k)
                y[v_u, v_k] = e[2, v_u, v_k] * T.float32(4.0) - e[1, v_u, v_k]
"""


def test_planes_at_symbolic_distances_shrink_if_indexed_by_literals() -> None:
    function = compact_buffers(lower_blocks(parse_function(PLANES)))
    [row] = function.allocations
    assert np.prod([as_int(extent) for extent in row.shape]) == 3 * 6
    x = np.random.default_rng(0).standard_normal((4, 6)).astype(np.float32)
    y = np.empty_like(x)
    interp.run(function, {"x": x, "y": y}, {"n": 4})
    np.testing.assert_allclose(y, (x + 2) * 4 - (x + 1), rtol=1e-6)


FUSED = """
@T.kernel
def fused(x: T.Buffer((n, 6), "float32"), y: T.Output((n, 3), "float32"), n: T.symbol):
    e = T.alloc_buffer((n, 2, 3), "float32")
    for i in range(n):
        for t in range(6):
            with T.block("producer"):
                v_i = T.axis.spatial(n, i)
                v_j = T.axis.spatial(2, t // 3)
                v_k = T.axis.spatial(3, t % 3)
                e[v_i, v_j, v_k] = x[v_i, v_j * 3 + v_k] * T.float32(2.0)
        for j, k in T.grid(2, 3):
            with T.block("consumer"):
                v_a = T.axis.spatial(n, i)
                v_b = T.axis.reduce(2, j)
                v_c = T.axis.spatial(3, k)
                with T.init():
                    y[v_a, v_c] = T.float32(0.0)
                y[v_a, v_c] = y[v_a, v_c] + e[v_a, v_b, v_c]
"""


def test_dimensions_that_one_loop_walks_through_count_as_one() -> None:
    function = compact_buffers(lower_blocks(parse_function(FUSED)))
    [row] = function.allocations
    assert row.shape == (const(6),)
    x = np.random.default_rng(0).standard_normal((4, 6)).astype(np.float32)
    y = np.empty((4, 3), np.float32)
    interp.run(function, {"x": x, "y": y}, {"n": 4})
    np.testing.assert_allclose(y, 2 * (x[:, :3] + x[:, 3:]), rtol=1e-6)


# Threads of a fused loop have four rows of 16 elements. The rows of the first buffer are 100
# elements apart, and a symbol says how many rows the second one has.
TILED = """
@T.kernel
def fused(x: T.Buffer((n, 100), "float32"), y: T.Output((n, 100), "float32"), n: T.symbol):
    e = T.alloc_buffer((n, 100), "float32", scope="shared")
    f = T.alloc_buffer((n, 16), "float32", scope="shared")
    for b in T.thread_binding(n // 4, "blockIdx.x"):
        for s in range(6):
            for t in T.thread_binding(64, "threadIdx.x"):
                with T.block("first"):
                    v_i = T.axis.spatial(n, b * 4 + t // 16)
                    v_j = T.axis.spatial(100, s * 16 + t % 16)
                    e[v_i, v_j] = x[v_i, v_j] * T.float32(2.0)
            for t in T.thread_binding(64, "threadIdx.x"):
                with T.block("second"):
                    v_k = T.axis.spatial(n, b * 4 + t // 16)
                    v_l = T.axis.spatial(16, t % 16)
                    v_m = T.axis.spatial(100, s * 16 + t % 16)
                    f[v_k, v_l] = e[v_k, v_m] + T.float32(1.0)
            for t in T.thread_binding(64, "threadIdx.x"):
                with T.block("out"):
                    v_o = T.axis.spatial(n, b * 4 + t // 16)
                    v_p = T.axis.spatial(16, t % 16)
                    v_q = T.axis.spatial(100, s * 16 + t % 16)
                    y[v_o, v_q] = f[v_o, v_p]
"""


@pytest.mark.parametrize("rows", [None, 8])
def test_what_the_threads_of_a_fused_loop_share_shrinks_to_their_elements(rows: int | None) -> None:
    text = TILED
    if rows is not None:
        for old, new in (("n // 4", str(rows // 4)), ("(n,", f"({rows},"), (", n: T.symbol", "")):
            text = text.replace(old, new)
    function = compact_buffers(lower_blocks(parse_function(text)))
    assert [as_int(buffer.shape[0]) for buffer in function.allocations] == [64, 64]
    x = np.random.default_rng(0).standard_normal((8, 100)).astype(np.float32)
    y = np.zeros_like(x)
    interp.run(function, {"x": x, "y": y}, {} if rows else {"n": 8})
    np.testing.assert_allclose(y[:, :96], x[:, :96] * 2 + 1, rtol=1e-6)


PARTS = """
@T.kernel
def parts(x: T.Buffer((24,), "float32"), y: T.Output((24,), "float32")):
    e = T.alloc_buffer((24,), "float32", scope="local")
    for t in T.thread_binding(6, "threadIdx.x"):
        for i in range(4):
            with T.block("producer"):
                v = T.axis.spatial(24, t + i * 6)
                e[v] = x[v] * T.float32(2.0)
    for u in T.thread_binding(6, "threadIdx.x"):
        for j in range(4):
            with T.block("consumer"):
                w = T.axis.spatial(24, PLACE)
                y[w] = e[w] + T.float32(1.0)
"""


@pytest.mark.parametrize(("place", "size"), [("u + j * 6", 4), ("u * 4 + j", 24)])
def test_a_thread_keeps_its_part_from_one_loop_to_the_next(place: str, size: int) -> None:
    """Only if it reads what it wrote: another thread's elements are out of its sight."""
    function = compact_buffers(lower_blocks(parse_function(PARTS.replace("PLACE", place))))
    [part] = function.allocations
    assert np.prod([as_int(extent) for extent in part.shape]) == size
    if size == 4:
        x = np.random.default_rng(0).standard_normal(24).astype(np.float32)
        y = np.empty_like(x)
        interp.run(insert_barriers(function), {"x": x, "y": y}, {})
        np.testing.assert_allclose(y, x * 2 + 1, rtol=1e-6)


# 64 threads copy two rows of 32 elements in each of two turns.
ROWS_OF_TURNS = """
@T.kernel
def turns(x: T.Buffer((24, 32), "float32"), y: T.Output((24, 32), "float32")):
    e = T.alloc_buffer((24, 32), "float32", scope="shared")
    for b in T.thread_binding(6, "blockIdx.x"):
        for t in T.thread_binding(64, "threadIdx.x"):
            for s in range(2):
                with T.block("copy"):
                    v_i = T.axis.spatial(24, b * 4 + s * 2 + t // 32)
                    v_j = T.axis.spatial(32, t % 32)
                    e[v_i, v_j] = x[v_i, v_j] * T.float32(2.0)
        for t in T.thread_binding(64, "threadIdx.x"):
            for r in range(2):
                with T.block("out"):
                    v_k = T.axis.spatial(24, b * 4 + t % 4)
                    v_l = T.axis.spatial(32, t // 4 + r * 16)
                    y[v_k, v_l] = e[v_k, v_l] + T.float32(1.0)
"""


def test_rows_that_threads_copy_two_at_a_time_shrink_to_those_of_a_workgroup() -> None:
    function = compact_buffers(lower_blocks(parse_function(ROWS_OF_TURNS)))
    [rows] = function.allocations
    assert rows.shape == (const(4 * 33),)  # a gap after each row
    x = np.random.default_rng(0).standard_normal((24, 32)).astype(np.float32)
    y = np.empty_like(x)
    interp.run(insert_barriers(function), {"x": x, "y": y}, {})
    np.testing.assert_allclose(y, x * 2 + 1, rtol=1e-6)
