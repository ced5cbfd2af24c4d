"""Intervals of index expressions contain every value."""

from __future__ import annotations

import pytest

from webmlc.core.bounds import SYMBOL, Interval, bounds
from webmlc.core.expr import Expr, Var, call
from webmlc.core.rewrite import evaluate

INDEX, SIZE = Var("i"), Var("n")
EXPRESSIONS: list[Expr] = [
    INDEX // SIZE,
    INDEX % SIZE,
    INDEX // SIZE * 8 + INDEX % SIZE,
    INDEX - INDEX // SIZE * SIZE,
]


@pytest.mark.parametrize("expr", EXPRESSIONS, ids=str)
@pytest.mark.parametrize("low", [-5, 0, 3])
def test_division_by_a_dimension_that_may_be_zero(expr: Expr, low: int) -> None:
    """Where it is, nothing is divided by it, or gives zero."""
    found = bounds(expr, {INDEX: Interval(low, 9), SIZE: Interval(0, 4)})
    values = [evaluate(expr, {"i": i, "n": n}) for i in range(low, 10) for n in range(1, 5)]
    assert found.low <= min(values) and max(values) <= found.high


@pytest.mark.parametrize(
    "expr",
    [
        call("truncdiv", INDEX, SIZE),
        call("truncmod", INDEX, SIZE),
        call("truncdiv", INDEX, 4),
        call("truncmod", INDEX, 4),
        call("abs", INDEX),
        call("abs", -INDEX - 6),
    ],
    ids=str,
)
@pytest.mark.parametrize("low", [-11, -5, 0, 3])
@pytest.mark.parametrize("least", [0, 1, 3])
def test_truncation_and_magnitude(expr: Expr, low: int, least: int) -> None:
    found = bounds(expr, {INDEX: Interval(low, 9), SIZE: Interval(least, 4)})
    pairs = [{"i": i, "n": n} for i in range(low, 10) for n in range(max(least, 1), 5)]
    values = [evaluate(expr, pair) for pair in pairs]
    assert found.low <= min(values) and max(values) <= found.high


def test_a_height_cut_toward_zero_is_a_size() -> None:
    """From -1 upward, divided by 8, toward zero."""
    assert bounds(call("truncdiv", SIZE - 1, 8), {SIZE: SYMBOL}).low == 0


def test_an_index_taken_apart_is_not_negative() -> None:
    ranges = {INDEX: Interval(0, float("inf")), SIZE: Interval(0, float("inf"))}
    assert bounds(INDEX // SIZE * 32 + INDEX % SIZE * 8, ranges).low == 0


@pytest.mark.parametrize("radix", [2, 3, 5])
@pytest.mark.parametrize("low", [-7, 0, 3])
def test_a_digit_in_mixed_radix_is_below_its_radix(radix: int, low: int) -> None:
    digit = INDEX // 4 - INDEX // (4 * radix) * radix
    interval = bounds(digit, {INDEX: Interval(low, 99)})
    values = [evaluate(digit, {"i": i}) for i in range(low, 100)]
    assert 0 <= interval.low <= min(values) and max(values) <= interval.high <= radix - 1
