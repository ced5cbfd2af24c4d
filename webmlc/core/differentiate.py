"""Differentiate scalar expressions symbolically: forward mode, with one rule per scalar operator.

In: an expression, and a predicate that identifies the variable among its leaves. Out: the
derivative, or `None` if the expression does not depend on the variable. At a kink, the result is
the derivative of one side. Where the operands of `max` or `min` are equal, the last operand
decides; `abs` has derivative -1 at 0. The derivative of Relu at 0 is therefore 0.

    >>> from webmlc.core.dtypes import DType
    >>> from webmlc.core.expr import Var
    >>> x = Var("x", DType.float32)
    >>> str(differentiate(x * call("exp", x), lambda leaf: leaf == x))
    'T.exp(x) + T.exp(x) * x'
"""

from __future__ import annotations

import math
from collections.abc import Callable

from webmlc.core.expr import Call, Cast, Const, Expr, call, select
from webmlc.core.rewrite import rewrite

Partials = Callable[..., tuple["Expr | float", ...]]
"""A function of a call and its operands that returns the derivative by each operand."""

PARTIALS: dict[str, Partials] = {
    "add": lambda y, a, b: (1.0, 1.0),
    "sub": lambda y, a, b: (1.0, -1.0),
    "mul": lambda y, a, b: (b, a),
    "div": lambda y, a, b: (1.0 / b, -y / b),
    "truncmod": lambda y, a, b: (1.0, -call("trunc", a / b)),
    "floormod": lambda y, a, b: (1.0, -call("floor", a / b)),
    "pow": lambda y, a, b: (b * call("pow", a, b - 1.0), y * call("log", a)),
    "unsigned_pow": lambda y, a, b: (b * call("unsigned_pow", a, b - 1.0), y * call("log", a)),
    "fma": lambda y, a, b, c: (b, a, 1.0),
    "neg": lambda y, a: (-1.0,),
    "abs": lambda y, a: (select(a > 0.0, Const(1.0, a.dtype), -1.0),),
    "sqrt": lambda y, a: (0.5 / y,),
    "exp": lambda y, a: (y,),
    "log": lambda y, a: (1.0 / a,),
    "log1p": lambda y, a: (1.0 / (a + 1.0),),
    "erf": lambda y, a: (call("exp", -(a * a)) * (2 / math.sqrt(math.pi)),),
    "sin": lambda y, a: (call("cos", a),),
    "cos": lambda y, a: (-call("sin", a),),
    "tan": lambda y, a: (y * y + 1.0,),
    "asin": lambda y, a: (1.0 / call("sqrt", 1.0 - a * a),),
    "acos": lambda y, a: (-1.0 / call("sqrt", 1.0 - a * a),),
    "atan": lambda y, a: (1.0 / (a * a + 1.0),),
    "sinh": lambda y, a: (call("cosh", a),),
    "cosh": lambda y, a: (call("sinh", a),),
    "tanh": lambda y, a: (1.0 - y * y,),
    "asinh": lambda y, a: (1.0 / call("sqrt", a * a + 1.0),),
    "acosh": lambda y, a: (1.0 / call("sqrt", a * a - 1.0),),
    "atanh": lambda y, a: (1.0 / (1.0 - a * a),),
}  # fmt: skip
"""The derivatives of the smooth operators.

`min`, `max` and `select` choose between derivatives instead: a product with 0 would turn an
infinity into NaN. For all other operators the derivative is 0 wherever it exists.
"""


def differentiate(root: Expr, is_variable: Callable[[Expr], bool]) -> Expr | None:
    """Differentiate `root` by the leaves for which `is_variable` holds."""
    derivatives: dict[Expr, Expr | None] = {}

    def rule(node: Expr) -> None:
        derivatives[node] = _derivative(node, derivatives, is_variable)

    rewrite(root, rule)
    return derivatives[root]


def _derivative(
    node: Expr, derivatives: dict[Expr, Expr | None], is_variable: Callable[[Expr], bool]
) -> Expr | None:
    if is_variable(node):
        return Const(1.0, node.dtype)
    if not node.dtype.is_float:
        return None
    match node:
        case Cast(value=value, dtype=dtype):
            inner = derivatives[value]
            return None if inner is None else inner.astype(dtype)
        case Call(op="select", args=(condition, then, otherwise)):
            return _choice(condition, derivatives[then], derivatives[otherwise])
        case Call(op="max", args=(a, b)):
            return _choice(a > b, derivatives[a], derivatives[b])
        case Call(op="min", args=(a, b)):
            return _choice(a < b, derivatives[a], derivatives[b])
        case Call(op=op, args=args) if op in PARTIALS:
            terms = [
                _product(derivatives[argument], partial)
                for argument, partial in zip(args, PARTIALS[op](node, *args), strict=True)
                if derivatives[argument] is not None
            ]
            return sum(terms[1:], terms[0]) if terms else None
    return None


def _choice(condition: Expr, then: Expr | None, otherwise: Expr | None) -> Expr | None:
    dependent = otherwise if then is None else then
    if dependent is None:
        return None
    zero = Const(0.0, dependent.dtype)
    return select(
        condition, zero if then is None else then, zero if otherwise is None else otherwise
    )


def _product(inner: Expr | None, partial: Expr | float) -> Expr:
    """Apply the chain rule, and omit factors of 1."""
    assert inner is not None
    if inner == Const(1.0, inner.dtype):
        return partial if isinstance(partial, Expr) else Const(partial, inner.dtype)
    if partial == 1.0:
        return inner
    return -inner if partial == -1.0 else inner * partial
