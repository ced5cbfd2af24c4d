"""Print expressions as Python text, for `str(expr)`, the IR dumps and the golden tests.

Operators that Python has are infix; all others are `T.<name>(...)`. Index literals are bare
numbers, and other literals carry their dtype (`T.float32(0.5)`), so that `loops.text` can parse the
text back. Leaves of later stages print themselves through `text(children_texts)`.

    >>> from webmlc.core.expr import Var, maximum
    >>> str(maximum(Var("i") * 4 + 1, 0))
    'T.max(i * 4 + 1, 0)'
"""

from __future__ import annotations

import math
from typing import Any

from webmlc.core.dtypes import INDEX, DType
from webmlc.core.expr import Bitcast, Broadcast, Call, Cast, Const, Expr, Ramp, Var
from webmlc.core.scalar_operators import SCALAR_OPERATORS

_PRECEDENCE = {
    "==": 1, "!=": 1, "<": 1, "<=": 1, ">": 1, ">=": 1,
    "|": 2, "^": 3, "&": 4, "<<": 5, ">>": 5, "+": 6, "-": 6, "*": 7, "/": 7, "//": 7, "%": 7,
}  # fmt: skip
"""The precedence of each infix operator; a higher number binds more tightly."""
_ATOM = 9
"""The precedence of a node that never needs parentheses."""


def print_expr(root: Expr) -> str:
    """Print an expression as Python text. An explicit stack permits any depth."""
    results: dict[int, tuple[str, int]] = {}
    stack: list[tuple[Expr, bool]] = [(root, False)]
    while stack:
        node, expanded = stack.pop()
        if id(node) in results:
            continue
        children = node.children
        if children and not expanded:
            stack.append((node, True))
            stack.extend((child, False) for child in children)
            continue
        results[id(node)] = _print_node(node, [results[id(child)] for child in children])
    return results[id(root)][0]


def _print_node(node: Expr, parts: list[tuple[str, int]]) -> tuple[str, int]:
    """The text and precedence of one node, from the text and precedence of each child."""
    texts = [text for text, _ in parts]
    match node:
        case Const(value=value, dtype=dtype):
            return print_literal(value, dtype), _ATOM
        case Var(name=name):
            return name, _ATOM
        case Call(op=op) if (symbol := SCALAR_OPERATORS[op].symbol) is not None:
            level = _PRECEDENCE[symbol]
            left = texts[0] if parts[0][1] >= level + (level == 1) else f"({texts[0]})"
            right = texts[1] if parts[1][1] > level else f"({texts[1]})"
            return f"{left} {symbol} {right}", level
        case Call(op=op):
            return f"T.{op}({', '.join(texts)})", _ATOM
        case Cast(dtype=dtype):
            return f"T.cast({texts[0]}, {str(dtype)!r})", _ATOM
        case Bitcast(dtype=dtype):
            return f"T.bitcast({texts[0]}, {str(dtype)!r})", _ATOM
        case Ramp(width=width):
            return f"T.ramp({texts[0]}, {texts[1]}, {width})", _ATOM
        case Broadcast(width=width):
            return f"T.broadcast({texts[0]}, {width})", _ATOM
    text: Any = getattr(node, "text", None)
    if text is None:
        raise TypeError(f"no text for {type(node).__name__}")
    return text(texts), _ATOM


def print_literal(value: int | float | bool, dtype: DType) -> str:
    """Print a literal: bare for the index type, otherwise `T.<dtype>(value)`.

    Infinities and NaN are strings.
    """
    if dtype == INDEX:
        return str(value)
    if isinstance(value, float) and not math.isfinite(value):
        return f'T.{dtype}("{value}")'
    return f"T.{dtype}({value})"
