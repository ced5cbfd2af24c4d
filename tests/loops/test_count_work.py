"""Counting work by hand, on small functions."""

from __future__ import annotations

import pytest

from tests.target.programs import PREDICATE
from webmlc.loops.count_work import Work, count_work
from webmlc.loops.text import parse_function

BYTES = 4


def work(text: str, **sizes: int) -> tuple[Work, dict[str, int], dict[str, int]]:
    """The work, and elements read and written by buffer name."""
    found = count_work(parse_function(text.strip()), sizes)
    return (
        found,
        {b.name: n // BYTES for b, n in found.read.items() if n},
        {b.name: n // BYTES for b, n in found.written.items() if n},
    )


def test_a_product_of_matrices() -> None:
    found, read, written = work(
        """
@T.kernel
def product(
    A: T.Buffer((n, 5), "float32"), B: T.Buffer((5, 7), "float32"),
    C: T.Output((n, 7), "float32"), n: T.symbol
):
    for i, j, k in T.grid(n, 7, 5):
        with T.block("C"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                C[vi, vj] = T.float32(0.0)
            C[vi, vj] = C[vi, vj] + A[vi, vk] * B[vk, vj]
""",
        n=3,
    )
    products = 3 * 7 * 5
    assert found.flops == 2 * products
    assert read == {"A": products, "B": products, "C": products}
    assert written == {"C": products + 3 * 7}


@pytest.mark.parametrize("n", [0, 1, 4, 9])
def test_a_predicate_counts_where_it_holds(n: int) -> None:
    found, read, written = work(PREDICATE, n=n)
    assert found.flops == 7 * n
    assert read.get("A", 0) == written.get("B", 0) == 7 * n


def test_extents_and_branches_depend_on_loops() -> None:
    found, read, written = work(
        """
@T.kernel
def sums(A: T.Buffer((n, n), "float32"), B: T.Output((n,), "float32"), n: T.symbol):
    for i in range(n):
        for j in range(i + 1):
            if j % 2 == 0:
                B[i] = A[i, j] * A[j, i]
            else:
                B[i] = T.exp(A[j, i])
""",
        n=6,
    )
    even = sum(i // 2 + 1 for i in range(6))
    odd = sum((i + 1) // 2 for i in range(6))
    assert found.flops == even + odd
    assert read == {"A": 2 * even + odd}
    assert written == {"B": even + odd}


def test_conditions_on_data_are_taken_to_hold_and_indices_are_free() -> None:
    found, read, written = work(
        """
@T.kernel
def gather(
    A: T.Buffer((1000, 8), "float32"), I: T.Buffer((3,), "int32"), B: T.Output((3, 8), "float32")
):
    for i in range(3):
        if I[i] > 0:
            for j in range(8):
                B[i, j] = A[I[i] - 1, j] + T.float32(1.0)
"""
    )
    assert found.flops == 3 * 8
    assert read == {"I": 3 + 3 * 8, "A": 3 * 8}
    assert written == {"B": 3 * 8}


def test_vectors_count_their_lanes_and_one_element_for_all_lanes_once() -> None:
    found, read, written = work(
        """
@T.kernel
def scale(A: T.Buffer((64,), "float32"), s: T.Buffer((1,), "float32"),
          B: T.Output((64,), "float32")):
    for i in range(16):
        B[T.ramp(i * 4, 1, 4)] = T.fma(
            A[T.ramp(i * 4, 1, 4)], T.broadcast(s[0], 4), A[T.ramp(i * 4, 1, 4)]
        )
"""
    )
    assert found.flops == 2 * 64
    assert read["s"] == 16 and written == {"B": 64}
