"""Calls of scalar operators: conversion of numbers, folding and refusal."""

from __future__ import annotations

import pytest

from webmlc.core.dtypes import INDEX, DType
from webmlc.core.expr import Call, Const, Expr, Var, call, select
from webmlc.core.rewrite import evaluate
from webmlc.core.scalar_operators import SCALAR_OPERATORS

N = Var("n")
X = Var("x", DType.float32)


@pytest.mark.parametrize("op", ["add", "sub", "mul", "floordiv", "floormod", "min", "max"])
@pytest.mark.parametrize("value", [-2, -1, 0, 1, 2, 5])
def test_folding_keeps_the_value(op: str, value: int) -> None:
    for left, right in ((N, Const(value)), (Const(value), N), (Const(7), Const(value))):
        for n in (-7, -1, 0, 1, 8):
            operands = [n if operand is N else operand.value for operand in (left, right)]
            if "floor" in op and operands[1] == 0:
                continue
            expected = SCALAR_OPERATORS[op].meaning(*operands)
            assert evaluate(call(op, left, right), {"n": n}) == expected


@pytest.mark.parametrize(
    ("folded", "expected"),
    [(N + 0, N), (0 + N, N), (N * 1, N), (N * 0, Const(0)), (N - 0, N), (N // 1, N)],
)
def test_neutral_elements_fold(folded: Expr, expected: Expr) -> None:
    assert folded is expected


def test_a_number_takes_the_type_of_the_other_operand() -> None:
    assert call("add", X, 1) is Call("add", (X, Const(1, DType.float32)), DType.float32)
    assert call("sub", 1, X) is Call("sub", (Const(1, DType.float32), X), DType.float32)
    assert call("lt", X, 1).dtype is DType.bool
    assert call("add", 3, 4) is Const(7, INDEX)
    assert select(N < 3, X, 0).dtype is DType.float32


def test_division_by_zero_does_not_fold() -> None:
    assert call("floordiv", 7, 0) is Call("floordiv", (Const(7), Const(0)), INDEX)


@pytest.mark.parametrize(
    ("op", "operands", "message"),
    [
        ("add", (N, X), "add of int32, float32: cast the operands to one dtype"),
        ("select", (N < 3, N, X), "select of bool, int32, float32: cast the operands to one dtype"),
        ("add", (N,), "add takes 2 operands, not 1"),
        ("neg", (N, N), "neg takes 1 operands, not 2"),
    ],
)
def test_wrong_operands_are_refused(op: str, operands: tuple[Expr, ...], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        call(op, *operands)
