"""A combination is the product of its matrix and its values, however few operations compute it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from webmlc.core.combination import Combination, Matrix, combination, write_out
from webmlc.core.dtypes import DType
from webmlc.core.expr import Call, Const, Expr, Var
from webmlc.core.rewrite import evaluate, walk
from webmlc.core.simplify import simplify

ROW = Var("row")


def values(count: int) -> tuple[Expr, ...]:
    return tuple(Var(f"v{n}", DType.float64) for n in range(count))


def operations(roots: tuple[Expr, ...]) -> int:
    """The number of different additions, subtractions and products."""
    return len({node for root in roots for node in walk(root) if isinstance(node, Call)})


@st.composite
def matrices(draw: st.DrawFn) -> Matrix:
    """Matrices of small whole numbers, whose rows and columns often differ only by signs."""
    rows, columns = draw(st.integers(2, 5)), draw(st.integers(1, 5))
    row = st.tuples(*[st.sampled_from((0.0, 0.0, 1.0, -1.0, 2.0, -2.0))] * columns).filter(any)
    return tuple(draw(row) for _ in range(rows))


@given(matrices(), st.lists(st.integers(-9, 9), min_size=5, max_size=5))
def test_rows_are_products_of_the_matrix_and_the_values(matrix: Matrix, numbers: list[int]) -> None:
    vector = numbers[: len(matrix[0])]
    element = combination(matrix, ROW, values(len(vector)))
    by_name = {f"v{n}": np.float64(value) for n, value in enumerate(vector)}
    for row, expected in enumerate(np.array(matrix) @ vector):
        assert evaluate(write_out(element), {**by_name, "row": row}) == expected


@given(matrices())
def test_a_row_that_is_known_leaves_its_sum(matrix: Matrix) -> None:
    element = Combination(matrix, ROW, values(len(matrix[0])))
    for row, total in enumerate(element.sums):
        chosen = element.rebuild((Const(row), *element.values))
        assert simplify(chosen) == simplify(total) == simplify(write_out(chosen))


def test_a_row_that_does_not_exist_stays() -> None:
    outside = Combination(((1.0,), (2.0,)), Const(2), values(1))
    assert simplify(outside) == outside


@pytest.mark.parametrize(
    ("matrix", "count"),
    [
        (((1, 1, 0), (1, -1, 0), (0, 0, 1)), 2),  # v0 + v1, v0 - v1
        (((4, 0, -5, 0, 1), (0, -4, -1, 4, 1), (0, 4, -1, -4, 1)), 10),
        (((1, 1, 2, 2), (1, -1, 2, -2)), 8),  # columns share: v0 + v1, v0 - v1, ...
        (((1, 0, 0), (0, 0, 1)), 0),  # one of the values
    ],
)
def test_rows_and_columns_that_differ_by_signs_share_sums(matrix: Matrix, count: int) -> None:
    element = combination(matrix, ROW, values(len(matrix[0])))
    assert isinstance(element, Combination)
    assert operations(element.sums) == count


def test_values_that_no_row_uses_are_left_out() -> None:
    first, second = values(2)
    element = combination(((0, 1), (0, 2)), ROW, (first, second))
    assert isinstance(element, Combination)
    assert element.values == (second,)


def test_one_row_needs_no_index() -> None:
    first, second = values(2)
    assert combination(((1, -1),), ROW, (first, second)) == first - second
