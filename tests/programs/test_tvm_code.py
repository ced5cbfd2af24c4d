# mypy: disable-error-code="type-arg, valid-type, name-defined, no-untyped-def, attr-defined, misc"
# The annotations of kernels are calls, which types have no form for.
"""Code in the forms of TVM's tutorials runs with changed imports. `docs/programs.md` has a list of
the forms that do not.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import webmlc
from webmlc import R, T, te, tir
from webmlc.core.errors import UserError

DTYPE = "float32"
M, N, K = 24, 16, 32


def arrays(m: int, n: int, k: int) -> tuple[np.ndarray[Any, Any], ...]:
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((m, k)), rng.standard_normal((k, n))
    return a.astype(np.float32), b.astype(np.float32), np.zeros((m, n), np.float32)


def check(kernel: Any, m: int = M, n: int = N, k: int = K, relu: bool = True) -> None:
    """A kernel computes the product, with or without ReLU."""
    a, b, c = arrays(m, n, k)
    kernel(a, b, c)
    expected = np.maximum(a @ b, 0) if relu else a @ b
    np.testing.assert_allclose(c, expected, rtol=1e-4, atol=1e-4)


@webmlc.module
class Long:
    """Each loop, axis and region of its own, as the tutorials begin."""

    @T.prim_func
    def mm_relu(
        A: T.Buffer((24, 32), "float32"),
        B: T.Buffer((32, 16), "float32"),
        C: T.Buffer((24, 16), "float32"),
    ):
        T.func_attr({"global_symbol": "mm_relu", "tir.noalias": True})
        Y = T.alloc_buffer((24, 16), dtype="float32")
        for i in range(24):
            for j in range(16):
                for k in range(32):
                    with T.block("Y"):
                        vi = T.axis.spatial(24, i)
                        vj = T.axis.spatial(16, j)
                        vk = T.axis.reduce(32, k)
                        T.reads(A[vi, vk], B[vk, vj])
                        T.writes(Y[vi, vj])
                        with T.init():
                            Y[vi, vj] = T.float32(0)
                        Y[vi, vj] = Y[vi, vj] + A[vi, vk] * B[vk, vj]
        for i in range(24):
            for j in range(16):
                with T.block("C"):
                    vi = T.axis.spatial(24, i)
                    vj = T.axis.spatial(16, j)
                    T.reads(Y[vi, vj])
                    T.writes(C[vi, vj])
                    C[vi, vj] = T.max(Y[vi, vj], T.float32(0))


@webmlc.module
class Short:
    """The same in few lines, with a root block, Python's values, and the newer names of blocks."""

    @T.prim_func
    def mm_relu(A: T.Buffer((M, K), DTYPE), B: T.Buffer[(K, N), DTYPE], C: T.Buffer((M, N), DTYPE)):
        with T.sblock("root"):
            T.reads()
            T.writes()
            Y = T.sblock_alloc_buffer((M, N))
            for i, j, k in T.grid(M, N, K):
                with T.sblock("Y"):
                    vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                    with T.init():
                        Y[vi, vj] = T.cast(T.float32(0), DTYPE)
                    Y[vi, vj] = Y[vi, vj] + A[vi, vk] * B[vk, vj]
            for i, j in T.grid(M, N):
                with T.sblock("C"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    C[vi, vj] = T.max(Y[vi, vj], T.cast(T.float32(0), DTYPE))


def test_long_and_short_forms_are_equal() -> None:
    assert Long == Short
    check(webmlc.compile(Long, target="wasm"))


@T.prim_func
def of_handles(a: T.handle, b: T.handle, c: T.handle):
    m, n, k = T.int32(), T.int32(), T.int32()
    A = T.match_buffer(a, [m, k], DTYPE)
    B = T.match_buffer(b, [k, n], DTYPE)
    C = T.match_buffer(c, [m, n], DTYPE)
    for i, j, r in T.grid(m, n, k):
        with T.block("C"):
            vi, vj, vr = T.axis.remap("SSR", [i, j, r])
            with T.init():
                C[vi, vj] = 0.0
            C[vi, vj] = C[vi, vj] + A[vi, vr] * B[vr, vj]


def test_handles_with_symbolic_sizes() -> None:
    assert [buffer.name for buffer in of_handles.function.params] == ["A", "B", "C"]
    kernel = webmlc.compile(of_handles)
    check(kernel, 4, 4, 4, relu=False)
    check(kernel, 17, 8, 33, relu=False)


def test_expressions_of_symbolic_sizes() -> None:
    m, n, length = te.var("m"), te.var("n"), te.var("k")
    A = te.placeholder((m, length), "float32", name="A")
    B = te.placeholder((length, n), "float32", name="B")
    k = te.reduce_axis((0, length), "k")
    Y = te.compute((m, n), lambda i, j: te.sum(A[i, k] * B[k, j], axis=k), name="Y")
    C = te.compute((m, n), lambda i, j: te.max(Y[i, j], 0), name="C")
    module = tir.IRModule({"mm_relu": te.create_prim_func([A, B, C], "mm_relu")})
    kernel = webmlc.compile(module)
    check(kernel, 5, 3, 7)
    check(kernel, 16, 40, 8)


def test_the_transformations_of_the_tutorial() -> None:
    sch = tir.Schedule(Short)
    block_Y = sch.get_sblock("Y", func_name="mm_relu")
    _, j, k = sch.get_loops(block=block_Y)
    j0, j1 = sch.split(loop=j, factors=[None, 8])
    sch.reorder(j0, k, j1)
    check(webmlc.compile(sch.mod))
    block_C = sch.get_block("C")
    sch.reverse_compute_at(block_C, j0)
    sch.decompose_reduction(block_Y, k)
    check(webmlc.compile(sch.mod))
    assert [step["primitive"] for step in sch.trace] == [
        "split",
        "reorder",
        "reverse_compute_at",
        "decompose_reduction",
    ]


def test_a_product_on_a_gpu_whose_threads_fetch_together() -> None:
    m = n = k = 64
    A = te.placeholder((m, k), name="A")
    B = te.placeholder((k, n), name="B")
    r = te.reduce_axis((0, k), name="k")
    C = te.compute((m, n), lambda i, j: te.sum(A[i, r] * B[r, j], axis=r), name="C")
    sch = tir.Schedule(te.create_prim_func([A, B, C]))
    block = sch.get_block("C")
    local = sch.cache_write(block, 0, "local")
    i, j, k = sch.get_loops(block=block)
    i0, i1, i2 = sch.split(loop=i, factors=[None, 4, 4])
    j0, j1, j2 = sch.split(loop=j, factors=[None, 4, 4])
    k0, k1 = sch.split(loop=k, factors=[None, 8])
    sch.unroll(k1)
    sch.reorder(i0, j0, i1, j1, k0, k1, i2, j2)
    sch.reverse_compute_at(local, j1)
    sch.bind(i0, "blockIdx.y")
    sch.bind(j0, "blockIdx.x")
    sch.bind(sch.fuse(i1, j1), "threadIdx.x")
    for number in (0, 1):
        fetch = sch.cache_read(block, number, "shared")
        sch.compute_at(fetch, k0)
        inner = sch.fuse(*sch.get_loops(fetch)[-2:])
        _, thread, lanes = sch.split(loop=inner, factors=[None, 16, 4])
        sch.vectorize(lanes)
        sch.bind(thread, "threadIdx.x")
    sch.decompose_reduction(block, k0)
    kernel = webmlc.compile(sch, target="webgpu")
    assert kernel.text.count("var<workgroup>") == 2
    check(kernel, 64, 64, 64, relu=False)


@webmlc.module
class Network:
    """A graph function beside its kernel, as in the course's chapter on whole models."""

    @T.prim_func
    def relu(x: T.handle, y: T.handle):
        n = T.int64()
        X = T.match_buffer(x, (1, n), "float32")
        Y = T.match_buffer(y, (1, n), "float32")
        for i, j in T.grid(1, n):
            with T.block("Y"):
                vi, vj = T.axis.remap("SS", [i, j])
                Y[vi, vj] = T.max(X[vi, vj], T.float32(0))

    @R.function
    def main(x: R.Tensor((1, "n"), "float32")):
        n = T.int64()
        cls = Network
        with R.dataflow():
            lv = R.call_tir(cls.relu, (x,), out_sinfo=R.Tensor((1, n), dtype="float32"))
            out = R.call_tir(cls.relu, (lv,), out_sinfo=R.Tensor((1, n), dtype="float32"))
            R.output(out)
        return out


def test_a_graph_function_with_a_symbolic_size() -> None:
    x = np.array([[-1.0, 2.0, -3.0, 4.0]], np.float32)
    (y,) = Network.build("wasm")(x)
    np.testing.assert_array_equal(y, np.maximum(x, 0))


HEAD = 'def f(A: T.Buffer((8,), "float32"), B: T.Buffer((8,), "float32")):\n'
BLOCK = """\
    for i in range(8):
        with T.block("B"):
            vi = T.axis.spatial(8, i)
"""
REFUSED = {
    "no content before": "            B[vi] = B[vi] + A[vi]\n",
    "part of a buffer": "            P = T.match_buffer(A[0:4], (4,))\n            B[vi] = P[0]\n",
    "call from outside": "            B[vi] = T.call_extern('float32', 'sinf', A[vi])\n",
    "intrinsic of CUDA": "            B[vi] = T.ptx_mma(A[vi])\n",
}


@pytest.mark.parametrize("form", REFUSED)
def test_forms_that_the_page_lists_are_refused(form: str) -> None:
    webmlc.from_source(HEAD + BLOCK + "            B[vi] = A[vi]\n")
    with pytest.raises(UserError):
        webmlc.from_source(HEAD + BLOCK + REFUSED[form])


def test_steps_that_the_page_lists_are_refused() -> None:
    schedule = tir.Schedule(Short)
    with pytest.raises(UserError, match="annotations"):
        schedule.annotate("Y", "pragma_auto_unroll_max_step", 16)
    with pytest.raises(UserError, match="merge is not a primitive"):
        schedule.merge(*schedule.get_loops("Y")[:2])
    assert not hasattr(schedule, "sample_perfect_tile")


def test_promises_about_a_buffer_are_not_needed() -> None:
    @T.prim_func
    def copy(a: T.handle, b: T.handle):
        A = T.match_buffer(a, (8,), "float32", align=64, offset_factor=8)
        B = T.match_buffer(b, (8,), "float32")
        for i in range(8):
            with T.block("B"):
                vi = T.axis.spatial(8, i)
                B[vi] = A[vi]

    x, y = np.arange(8, dtype=np.float32), np.zeros(8, np.float32)
    copy(x, y)
    np.testing.assert_array_equal(x, y)
