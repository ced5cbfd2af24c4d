"""Evaluate sizes: integer expressions that hosts compute at run time, from one list of operators.

In: an expression of symbols, and their values. Out: its value, an exact integer. The twin of this
module is `runtime_js/sizes.js`. A test compares the two lists, and the values of random
expressions.

    >>> from webmlc.core.expr import Var, call
    >>> evaluate_size(call("truncdiv", Var("height") - 1, 8) + 1, {"height": 17})
    3

Integers are exact up to `LARGEST_SIZE`. A larger result is an error, even inside an expression. A
quotient or remainder by zero is 0, as in kernels. Booleans are 0 and 1.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Literal

from webmlc.core.errors import InputError
from webmlc.core.expr import Call, Const, Expr, Leaf, Var
from webmlc.core.rewrite import rewrite, walk

LARGEST_SIZE = 2**53 - 1
"""The largest magnitude of a size: a JavaScript number represents every integer up to it."""


Rule = Literal["equal", "unequal", "at most", "broadcast", "stretch"]
"""A condition on a pair of sizes (`holds`)."""


def holds(rule: Rule, left: int, right: int) -> bool:
    """True if two sizes obey a rule: the sizes are equal, or differ, or the left size is at most
    the right size. "broadcast" also allows 1 on either side, and "stretch" allows 1 on the left.
    """
    match rule:
        case "equal":
            return left == right
        case "unequal":
            return left != right
        case "at most":
            return left <= right
        case "broadcast":
            return left == right or 1 in (left, right)
        case "stretch":
            return left in (right, 1)


def _truncdiv(a: int, b: int) -> int:
    if not b:
        return 0
    quotient = abs(a) // abs(b)
    return quotient if (a < 0) == (b < 0) else -quotient


SIZE_OPERATORS: Mapping[str, Callable[..., int]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "floordiv": lambda a, b: a // b if b else 0,
    "floormod": lambda a, b: a % b if b else 0,
    "truncdiv": _truncdiv,
    "truncmod": lambda a, b: a - b * _truncdiv(a, b) if b else 0,
    "min": min,
    "max": max,
    "neg": operator.neg,
    "abs": abs,
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
    "bit_and": operator.and_,
    "bit_or": operator.or_,
    "bit_xor": operator.xor,
    "bit_not": operator.not_,
    "select": lambda condition, then, otherwise: then if condition else otherwise,
}
"""The operators of sizes and their meanings. Operators named `bit_` take booleans."""


def is_size_operator(op: str, operands: tuple[Expr, ...]) -> bool:
    """True if a size may apply `op` to these operands: integers, or booleans."""
    if op.startswith("bit_") and any(operand.dtype != "bool" for operand in operands):
        return False
    return op in SIZE_OPERATORS and not any(operand.dtype.is_float for operand in operands)


def is_size(expr: Expr) -> bool:
    """True if hosts can evaluate the expression."""
    return all(
        is_size_operator(node.op, node.args) if isinstance(node, Call) else isinstance(node, Leaf)
        for node in walk(expr)
    )


def evaluate_size(size: Expr, symbols: Mapping[str, int]) -> int:
    """Evaluate a size.

    Raises `InputError` if its magnitude exceeds `LARGEST_SIZE`, and `KeyError` if a symbol is
    unbound.
    """
    values: dict[Expr, int] = {}

    def rule(node: Expr) -> Expr | None:
        match node:
            case Const(value=value):
                values[node] = int(value)
            case Var(name=name):
                values[node] = int(symbols[name])
            case Call(op=op, args=args):
                value = int(SIZE_OPERATORS[op](*(values[a] for a in args)))
                if abs(value) > LARGEST_SIZE:
                    raise InputError(f"with these inputs a size is beyond {LARGEST_SIZE}")
                values[node] = value
            case _:
                raise TypeError(f"no size: {node}")
        return None

    rewrite(size, rule)
    return values[size]
