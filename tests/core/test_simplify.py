"""Canonical simplification: golden cases, and equality with the original on random expressions."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from webmlc.core.bounds import SYMBOL, Interval, bounds, iterations
from webmlc.core.dtypes import DType
from webmlc.core.expr import Broadcast, Const, Expr, Var, call, maximum, minimum, select
from webmlc.core.rewrite import evaluate
from webmlc.core.simplify import divides, prove, prove_equal, simplify

i, j, n, m = Var("i"), Var("j"), Var("n"), Var("m")
RANGES = {i: Interval(0, 7), j: Interval(0, 3), n: SYMBOL, m: SYMBOL}


@pytest.mark.parametrize(
    ("expr", "text"),
    [
        ((i * 4 + j) // 4, "i"),
        ((i * 4 + j) % 4, "j"),
        (n // 56 * 56 + n % 56, "n"),
        (n * 2 + n - 3 * n, "0"),
        ((n * 8 + i) // 8, "n"),
        ((n * 8 + i + 3) % 8, "(i + 3) % 8"),
        (n // 4 // 6, "n // 24"),
        ((n * 12 + 8 * m) // 4, "m * 2 + n * 3"),
        (minimum(i, 9), "i"),
        (maximum(i - 8, 0), "0"),
        ((n * m + i * m) // m, "i + n"),
        (n % m + n // m * m, "n"),
        (n % 5, "n % 5"),
        ((n * 8 + i) // 24, "n // 3"),
        ((n * 8 + i) % 24, "i + n % 3 * 8"),
        (n % 5 * 3, "n % 5 * 3"),
        (n - 2, "n - 2"),
        (Const(3) - n, "3 - n"),
    ],
)
def test_golden(expr: Expr, text: str) -> None:
    assert str(simplify(expr, RANGES)) == text


def test_a_decided_choice_of_vectors_is_the_chosen_arm() -> None:
    arms = tuple(Broadcast(Var(name, DType.float32), 4) for name in "ab")
    for chosen, arm in enumerate(arms):
        choice = select(call("eq", i - i, Const(chosen)), *arms)
        assert simplify(choice, RANGES) == arm


def test_proofs() -> None:
    assert prove_equal((n + 1) * (n + 1), n * n + 2 * n + 1)
    assert divides(6, n // 6 * 6)
    assert not divides(6, n)
    assert prove(i < 8, RANGES)
    assert not prove(i < 7, RANGES)


def test_symbolic_ends() -> None:
    o, t = Var("o"), Var("t")
    ranges = {
        n: SYMBOL,
        m: SYMBOL,
        i: iterations(n, {n: SYMBOL}),
        o: iterations(n // 6, {n: SYMBOL}),
        t: Interval(0, 5),
    }
    assert prove(i < n, ranges)
    assert prove(i * m + m <= n * m, ranges)
    assert prove(o * 6 + t < n // 6 * 6, ranges)
    assert not prove(o * 6 + t < n // 6 * 6 - 1, ranges)
    assert not prove(i + 1 < n, ranges)


def expressions() -> st.SearchStrategy[Expr]:
    leaves = st.one_of(st.sampled_from([i, j, n, m]), st.integers(-9, 9).map(Const))

    def extend(inner: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
        binary = st.tuples(st.sampled_from(["add", "sub", "mul", "min", "max"]), inner, inner)
        division = st.tuples(
            st.sampled_from(["floordiv", "floormod"]), inner, st.integers(1, 9).map(Const)
        )
        return st.one_of(binary, division).map(lambda t: call(*t))

    return st.recursive(leaves, extend, max_leaves=12)


@settings(max_examples=400, deadline=None)
@given(expressions(), st.integers(0, 7), st.integers(0, 3), st.integers(0, 99), st.integers(0, 9))
def test_simplify_keeps_the_value(expr: Expr, a: int, b: int, c: int, d: int) -> None:
    values = {"i": a, "j": b, "n": c, "m": d}
    expected = evaluate(expr, values)
    assert evaluate(simplify(expr, RANGES), values) == expected
    interval = bounds(expr, RANGES)
    assert interval.low <= expected <= interval.high
