"""Read scripts of TVM's courses and of people, and run them by the interpreter."""

# mypy: disable-error-code="valid-type, name-defined, no-untyped-def"
# The annotations of kernels are calls, which types have no form for.

from __future__ import annotations

from textwrap import indent
from typing import Any

import numpy as np
import pytest

from webmlc import T, from_source, kernel
from webmlc.core.errors import InputError
from webmlc.programs.script import ScriptError

n = T.symbol("n")
WIDTH = 3
SHAPE = (8, 8)


def random(*shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


@kernel
def mm_relu(
    A: T.Buffer((16, 24), "float32"),
    B: T.Buffer((24, 8), "float32"),
    C: T.Buffer((16, 8), "float32"),
):
    Y = T.alloc_buffer((16, 8), "float32")
    for i, j, k in T.grid(16, 8, 24):
        with T.block("Y"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                Y[vi, vj] = T.float32(0)
            Y[vi, vj] = Y[vi, vj] + A[vi, vk] * B[vk, vj]
    for i, j in T.grid(16, 8):
        with T.block("C"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi, vj] = T.max(Y[vi, vj], T.float32(0))


@T.prim_func
def blur(A: T.Buffer((n + WIDTH - 1,), "float32"), B: T.Buffer((n,), "float32")):
    for i in T.serial(0, n):
        with T.block("B"):
            v = T.axis.S(n, i)
            B[v] = (A[v] + A[v + 1] + A[v + WIDTH - 1]) / T.float32(WIDTH)


@T.prim_func
def from_tvm(a: T.handle, b: T.handle):
    T.func_attr({"global_symbol": "main", "tir.noalias": True})
    m = T.int32()
    a = T.match_buffer(a, (m, 4))
    b = T.match_buffer(b, (m,), "float32")
    for i in T.serial(m):
        for k in T.serial(4):
            with T.sblock("sum"):
                vi = T.axis.spatial(m, i)
                vk = T.axis.reduce(4, k)
                T.reads(a[vi, vk])
                T.writes(b[vi])
                with T.init():
                    b[vi] = 0.0
                b[vi] += a[vi, vk]


@T.prim_func
def liberties(A: T.Buffer(SHAPE), B: T.Buffer(SHAPE, "float32")):
    with T.block("root"):
        for i in range(1, 8):
            for j in range(8):
                moves = 2 <= i < 6 and not (j == 3 or j == 9)
                B[i, j] = -A[i - 1, j] if moves else max(A[i, j], 0.5, -1.0) ** 2
        for j in range(8):
            B[0, j] = T.sigmoid(A[0, j]) + T.Cast("float32", j)


def test_a_product_with_relu() -> None:
    a, b, c = random(16, 24), random(24, 8), np.empty((16, 8), np.float32)
    mm_relu(a, b, c)
    np.testing.assert_allclose(c, np.maximum(a @ b, 0), rtol=1e-5, atol=1e-6)


def test_symbols_and_numbers_from_outside() -> None:
    a, b = random(10), np.empty(8, np.float32)
    blur(a, b)
    np.testing.assert_allclose(b, (a[:8] + a[1:9] + a[2:]) / 3, rtol=1e-6)


def test_handles_and_matched_buffers() -> None:
    a, b = random(5, 4), np.empty(5, np.float32)
    from_tvm(a, b)
    np.testing.assert_allclose(b, a.sum(1), rtol=1e-5)


def test_the_liberties_of_python() -> None:
    a, b = random(8, 8), np.empty((8, 8), np.float32)
    liberties(a, b)
    expected = np.maximum(a, 0.5) ** 2
    columns = np.arange(8) != 3
    expected[2:6, columns] = -a[1:5, columns]
    expected[0] = 1 / (1 + np.exp(-a[0])) + np.arange(8)
    np.testing.assert_allclose(b, expected, rtol=1e-5, atol=1e-6)


def test_a_kernel_in_a_function_sees_its_closure() -> None:
    size, dtype = 6, np.float32

    @kernel
    def twice(A: T.Buffer((size,), dtype), B: T.Buffer((size,), dtype)):
        for i in range(size):
            B[i] = A[i] * 2.0

    a, b = random(6), np.empty(6, np.float32)
    twice(a, b)
    assert (b == a * 2).all()


@pytest.mark.parametrize("program", [mm_relu, blur, from_tvm, liberties], ids=lambda p: p.name)
def test_the_printed_program_reads_as_the_same_program(program: Any) -> None:
    assert from_source(program.script(), {"T": T}).function == program.function


@pytest.mark.parametrize(
    "body",
    [
        "for i in range(n):\n    if i + 1 < n:\n        B[i] = A[i + 1]",
        "for i in range(n):\n    for j in range(n - i):\n        B[i] = A[i + j]",
        "for i in range(n):\n    B[i] = A[T.max(T.min(i + 5, n - 1), 0)]",
        "for i in range(n * 4):\n    B[i // 4] = 1.0",
        "for i in range(n):\n    B[i] = A[(i + 3) % n]",
        "for i in range(n):\n    B[i] = A[i - 1 if i >= 1 else 0]",
        "for i, j in T.grid(n, 1):\n    B[i * 1 + j] = A[n - 1 - i]",
        "for i in range(n):\n    if i > 0 and i - 1 < n:\n        B[i - 1] = A[i]",
    ],
)
def test_symbolic_indices_that_stay_inside(body: str) -> None:
    head = '@T.prim_func\ndef f(A: T.Buffer((n,), "float32"), B: T.Buffer((n,), "float32")):\n'
    assert from_source(head + indent(body, "    "), {"T": T, "n": n, "range": range}).name == "f"


def test_the_error_names_the_file_and_the_line() -> None:
    with pytest.raises(ScriptError, match=r"test_script\.py:\d+: Q is not a buffer"):

        @kernel
        def wrong(A: T.Buffer((8,), "float32")):
            for i in range(8):
                A[i] = Q[i]  # type: ignore[name-defined]  # noqa: F821


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ([random(10)], "blur takes 2 arrays"),
        ([random(10), random(7)], "A has the shape"),
        ([random(10).astype(np.float64), random(8)], "A is float64"),
        ([random(10, 1), random(8)], "A has 2 dimensions"),
        ([[1.0], random(8)], "A is a list"),
    ],
)
def test_arrays_that_do_not_fit(arrays: list[Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        blur(*arrays)


def test_words_of_scripts_say_where_they_belong() -> None:
    with pytest.raises(Exception, match=r"T\.grid is a word of scripts"):
        T.grid(8, 8)
