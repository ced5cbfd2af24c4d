"""Tests of the loop IR itself."""

from __future__ import annotations

from dataclasses import replace

from webmlc.core.dtypes import DType
from webmlc.core.expr import Const, Var
from webmlc.loops.ir import (
    Buffer,
    If,
    Let,
    LoopFunction,
    Stmt,
    Store,
    distinct_loads,
    loads,
    map_statements,
    seq,
)

DEPTH = 3000
"""More statements inside each other than Python's recursion reaches."""


def _chain(last: int) -> LoopFunction:
    """A function of `DEPTH` lets inside each other."""
    y = Buffer("y", (Const(1),), DType.int32)
    body: Stmt = Store(y, (Const(0),), Const(last))
    for number in range(DEPTH):
        body = Let(Var(f"v{number}"), Const(number), seq(body, Store(y, (Const(0),), Const(1))))
    return LoopFunction("chain", (y,), 1, (), (), body)


def test_deep_functions_are_compared() -> None:
    one, other = _chain(7), _chain(7)
    assert one == other and hash(one) == hash(other)
    assert one != _chain(8)
    assert one == replace(other, origin=("node",))
    assert one != replace(other, name="other")
    assert one.key() == replace(other, name="other").key()


def test_deep_functions_are_rewritten() -> None:
    def other_last(stmt: Stmt) -> Stmt | None:
        match stmt:
            case Store(value=Const(value=7)):
                return replace(stmt, value=Const(8))
        return None

    one = _chain(7)
    assert replace(one, body=map_statements(one.body, other_last)) == _chain(8)
    assert replace(one, body=map_statements(one.body, lambda _: None)) == one


def test_distinct_loads_are_those_of_all_statements() -> None:
    a, b = Buffer("a", (Const(8),), DType.float32), Buffer("b", (Const(8),), DType.int32)
    i = Var("i")
    index = b[i + 1]
    body = seq(
        Store(a, (index,), a[i] + a[i]),
        If(b[i] < 3, Store(a, (i,), a[index] * a[i])),
        Let(Var("v"), b[0], Store(b, (i,), Const(1, DType.int32))),
    )
    assert distinct_loads(body) == {index, a[i], b[i], a[index], b[0]}
    assert distinct_loads(body) == set(loads(body))
