"""Equality of expressions with much sharing."""

from webmlc.core.expr import Call, Expr, Var


def doubled(depth: int) -> Expr:
    """x + x, of that the same, ...: 2^depth leaves, `depth` nodes."""
    value: Expr = Var("x")
    for _ in range(depth):
        value = Call("add", (value, value), value.dtype)
    return value


def test_shared_sub_expressions_compare_once() -> None:
    """Node by node along every path would take 2^200 steps."""
    assert doubled(200) == doubled(200)
    assert doubled(200) != doubled(199)
    assert len({doubled(100), doubled(100)}) == 1
