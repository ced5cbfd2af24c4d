"""Test that indices which are never negative are recognised, and no others."""

from __future__ import annotations

import pytest

from webmlc.core.affine import is_nonnegative
from webmlc.core.bounds import Interval
from webmlc.core.expr import Expr, Var

X, B, S = Var("x"), Var("b"), Var("s")
RANGES = {X: Interval(0, 63), B: Interval(0, 9)}


@pytest.mark.parametrize(
    ("index", "expected"),
    [
        (B * 4 + X, True),
        (X // 2 * 8 - X // 4 * 16, True),  # 8 for every other pair
        (B * 64 + X - X // 4 * 4, True),
        (X // 2 * 8 - X // 4 * 17, False),
        (X - B, False),
        (X % 4 - X // 32 * 2 - B, False),
        (S - S // 2, False),  # nothing is known of it
    ],
)
def test_terms_of_one_variable_are_tried_out_together(index: Expr, expected: bool) -> None:
    assert is_nonnegative(index, RANGES) == expected
