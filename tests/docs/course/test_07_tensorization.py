# mypy: disable-error-code="valid-type, name-defined, no-untyped-def"
# The annotations of kernels are calls, which types have no form for.
"""Solutions of the exercises of lesson 7, compared with numpy."""

import numpy as np

import webmlc
from webmlc import T, te, tir

rng = np.random.default_rng(7)


def test_exercise_1() -> None:
    A = te.placeholder((64, 64), "float32", name="A")
    B = te.placeholder((64, 64), "float32", name="B")
    k = te.reduce_axis((0, 64), name="k")
    C = te.compute((64, 64), lambda i, j: te.sum(A[i, k] * B[k, j], axis=k), name="C")
    schedule = tir.Schedule(te.create_prim_func([A, B, C]))
    i, j, k = schedule.get_loops("C")
    (i0, i1), (j0, j1), (k0, k1) = (schedule.split(x, factors=[None, 4]) for x in (i, j, k))
    schedule.reorder(i0, j0, k0, i1, j1, k1)  # a part of each of the three loops is inside
    block = schedule.tensorize(i1, "matmul_4x4_f32")
    schedule.decompose_reduction(block, k0)

    a, b = rng.standard_normal((2, 64, 64)).astype(np.float32)
    c = np.empty((64, 64), np.float32)
    webmlc.compile(schedule)(a, b, c)
    np.testing.assert_allclose(c, a @ b, rtol=1e-4, atol=1e-4)


def test_exercise_2() -> None:
    @webmlc.kernel
    def dequantise(
        Q: T.Buffer((1000,), "int8"),
        scale: T.Buffer((1,), "float32"),
        zero: T.Buffer((1,), "float32"),
        X: T.Buffer((1000,), "float32"),
    ):
        for i in range(1000):
            with T.block("X"):
                vi = T.axis.spatial(1000, i)
                X[vi] = (T.cast(Q[vi], "float32") - zero[0]) * scale[0]

    kernel = webmlc.compile(dequantise)

    def error(values, scale, zero):
        """The largest error of values that are quantised, and turned back by the kernel."""
        q = np.clip(np.round(values / scale + zero), -128, 127).astype(np.int8)
        result = np.empty_like(values)
        kernel(q, np.array([scale], np.float32), np.array([zero], np.float32), result)
        np.testing.assert_allclose(result, (q - np.float32(zero)) * np.float32(scale), rtol=1e-5)
        return np.abs(result - values).max()

    values = rng.uniform(10, 12, 1000).astype(np.float32)
    scale = (values.max() - values.min()) / 255
    with_zero_point = error(values, scale, -128 - values.min() / scale)
    symmetric = error(values, values.max() / 127, 0)
    assert with_zero_point <= scale
    assert symmetric > 5 * with_zero_point


def test_exercise_3() -> None:
    n = T.symbol("n")

    @webmlc.kernel
    def row_sums(X: T.Buffer((n, 300), "int8"), S: T.Buffer((n,), "int32")):
        for i, j in T.grid(n, 300):
            with T.block("S"):
                vi, vj = T.axis.remap("SR", [i, j])
                with T.init():
                    S[vi] = 0
                S[vi] = S[vi] + T.cast(X[vi, vj], "int32")

    x = rng.integers(-128, 128, (9, 300)).astype(np.int8)
    x[0] = 127  # the sum of 300 of them is 38100: a byte would have wrapped around
    sums = np.empty(9, np.int32)
    webmlc.compile(row_sums)(x, sums)
    np.testing.assert_array_equal(sums, x.sum(axis=1, dtype=np.int32))
    assert sums[0] == 38100
    assert x[0].sum(dtype=np.int8) != 38100
