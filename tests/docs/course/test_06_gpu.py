# mypy: disable-error-code="valid-type, name-defined, no-untyped-def"
# The annotations of kernels are calls, which types have no form for.
"""Solutions of the exercises of lesson 6, compared with numpy."""

import re

import numpy as np

import webmlc
from webmlc import T, te, tir

rng = np.random.default_rng(6)


def test_exercise_1() -> None:
    a, b = (te.placeholder((4096,), "float32", name=name) for name in "ab")
    c = te.compute((4096,), lambda i: a[i] + b[i], name="c")
    schedule = tir.Schedule(te.create_prim_func([a, b, c], "vector_add"))
    (i,) = schedule.get_loops("c")
    group, thread = schedule.split(i, factors=[None, 64])
    schedule.bind(group, "blockIdx.x")
    schedule.bind(thread, "threadIdx.x")

    x, y = (rng.standard_normal(4096).astype(np.float32) for _ in range(2))
    z = np.empty_like(x)
    webmlc.compile(schedule, target="webgpu")(x, y, z)
    np.testing.assert_array_equal(z, x + y)


@webmlc.kernel
def product(
    A: T.Buffer((64, 64), "float32"),
    B: T.Buffer((64, 64), "float32"),
    C: T.Buffer((64, 64), "float32"),
):
    for i, j, k in T.grid(64, 64, 64):
        with T.block("C"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                C[vi, vj] = T.float32(0)
            C[vi, vj] = C[vi, vj] + A[vi, vk] * B[vk, vj]


def threads(row_axis: str, column_axis: str) -> tir.Schedule:
    schedule = tir.Schedule(product)
    written = schedule.cache_write("C", "local")
    i, j, k = schedule.get_loops("C")
    i_group, row = schedule.split(i, factors=[None, 8])
    j_group, column = schedule.split(j, factors=[None, 8])
    schedule.reorder(i_group, j_group, row, column, k)
    schedule.reverse_compute_at(written, column)
    schedule.decompose_reduction("C", k)
    schedule.bind(i_group, "blockIdx.y")
    schedule.bind(j_group, "blockIdx.x")
    schedule.bind(row, row_axis)
    schedule.bind(column, column_axis)
    return schedule


def test_exercise_2() -> None:
    """The number that walks along a row of B is that of the other axis."""
    a, b = (rng.standard_normal((64, 64)).astype(np.float32) for _ in range(2))
    stores = []
    for axes in (("threadIdx.y", "threadIdx.x"), ("threadIdx.x", "threadIdx.y")):
        kernel = webmlc.compile(threads(*axes), target="webgpu")
        c = np.empty_like(a)
        kernel(a, b, c)
        np.testing.assert_allclose(c, a @ b, rtol=1e-4, atol=1e-4)
        stores += re.findall(r"^ *C_0\[(.*)\] =", kernel.text, re.MULTILINE)
    assert [re.findall(r"(t[xy])(?: \* 64)", store) for store in stores] == [["ty"], ["tx"]]


def test_exercise_3() -> None:
    """A tile of A has 8 x 8 elements and so has a tile of B: 512 bytes of float32."""
    schedule = threads("threadIdx.y", "threadIdx.x")
    k_tile, _ = schedule.split(schedule.get_loops("C")[-1], factors=[None, 8])
    for buffer in ("A", "B"):
        copy = schedule.cache_read("C", buffer, "shared")
        schedule.compute_at(copy, k_tile)
        row, column = schedule.get_loops(copy)[-2:]
        schedule.bind(row, "threadIdx.y")
        schedule.bind(column, "threadIdx.x")
    kernel = webmlc.compile(schedule, target="webgpu")
    a, b = (rng.standard_normal((64, 64)).astype(np.float32) for _ in range(2))
    c = np.empty_like(a)
    kernel(a, b, c)
    np.testing.assert_allclose(c, a @ b, rtol=1e-4, atol=1e-4)
    sizes = re.findall(r"var<workgroup> \w+: array<f32, (\d+)>", kernel.text)
    assert sum(4 * int(size) for size in sizes) == 2 * 8 * 8 * 4
