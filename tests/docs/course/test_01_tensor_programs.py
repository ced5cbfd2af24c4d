# mypy: disable-error-code="valid-type, name-defined, no-untyped-def"
# The annotations of kernels are calls, which types have no form for.
"""Solutions of the exercises of lesson 1, compared with numpy."""

import numpy as np

import webmlc
from webmlc import T, te

rng = np.random.default_rng(1)


def test_exercise_1() -> None:
    x = te.placeholder((1000,), "float32", name="x")
    y = te.compute((1000,), lambda i: 3.0 * x[i] + 1.0, name="y")
    kernel = webmlc.compile(te.create_prim_func([x, y], "scale"))

    values = rng.standard_normal(1000).astype(np.float32)
    result = np.empty_like(values)
    kernel(values, result)
    np.testing.assert_allclose(result, 3 * values + 1, rtol=1e-6, atol=1e-6)


def test_exercise_2() -> None:
    @webmlc.kernel
    def row_sums(X: T.Buffer((64, 100), "float32"), S: T.Buffer((64,), "float32")):
        for i, j in T.grid(64, 100):
            with T.block("S"):
                vi, vj = T.axis.remap("SR", [i, j])  # each row has a sum: columns are reduced
                with T.init():
                    S[vi] = T.float32(0)
                S[vi] = S[vi] + X[vi, vj]

    values = rng.standard_normal((64, 100)).astype(np.float32)
    result = np.empty(64, np.float32)
    webmlc.compile(row_sums)(values, result)
    np.testing.assert_allclose(result, values.sum(axis=1), rtol=1e-4, atol=1e-4)


def test_exercise_3() -> None:
    n = T.symbol("n")

    @webmlc.kernel
    def linear_relu(
        X: T.Buffer((n, 32), "float32"),
        W: T.Buffer((32, 16), "float32"),
        B: T.Buffer((16,), "float32"),
        Y: T.Buffer((n, 16), "float32"),
    ):
        product = T.alloc_buffer((n, 16), "float32")
        for i, j, k in T.grid(n, 16, 32):
            with T.block("product"):
                vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                with T.init():
                    product[vi, vj] = T.float32(0)
                product[vi, vj] = product[vi, vj] + X[vi, vk] * W[vk, vj]
        for i, j in T.grid(n, 16):
            with T.block("Y"):  # two blocks: the bias is added when a sum is complete
                vi, vj = T.axis.remap("SS", [i, j])
                Y[vi, vj] = T.max(product[vi, vj] + B[vj], T.float32(0))

    kernel = webmlc.compile(linear_relu)
    w = rng.standard_normal((32, 16)).astype(np.float32)
    b = rng.standard_normal(16).astype(np.float32)
    for rows in (1, 7, 64):
        x = rng.standard_normal((rows, 32)).astype(np.float32)
        y = np.empty((rows, 16), np.float32)
        kernel(x, w, b, y)
        np.testing.assert_allclose(y, np.maximum(x @ w + b, 0), rtol=1e-4, atol=1e-4)
