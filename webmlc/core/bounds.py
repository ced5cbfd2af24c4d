"""Compute interval bounds of index expressions.

In: an index expression and the interval of each variable. Out: an interval that contains every
value.

    >>> from webmlc.core.expr import Var
    >>> i, j = Var("i"), Var("j")
    >>> found = bounds(i * 4 + j, {i: Interval(0, 7), j: Interval(0, 3)})
    >>> found.low, found.high
    (0, 31)
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from webmlc.core.expr import Call, Cast, Const, Expr, Var
from webmlc.core.interning import quick
from webmlc.core.rewrite import postorder

Bound = int | float  # an int, or an infinity


@quick
@dataclass(frozen=True, slots=True)
class Interval:
    """All values from `low` to `high`, both included. An infinite end is unbounded.

    `below` is a symbolic end, excluded: the variable of a loop of `n` iterations stays below `n`.
    """

    low: Bound
    high: Bound
    below: Expr | None = None

    @property
    def is_point(self) -> bool:
        """True if only one value is possible."""
        return self.low == self.high

    def within(self, low: Bound, high: Bound) -> bool:
        """True if every value lies in [low, high]."""
        return low <= self.low and self.high <= high


EVERYTHING = Interval(-math.inf, math.inf)
"""The interval of a value about which nothing is known."""
SYMBOL = Interval(0, math.inf)
"""The interval of a symbolic dimension: it is not negative."""

Ranges = Mapping[Var, Interval]


def iterations(extent: Expr, ranges: Ranges) -> Interval:
    """The interval of a loop variable with this extent, if the loop runs at least once."""
    high = max(0, bounds(extent, ranges).high - 1)
    return Interval(0, high, None if isinstance(extent, Const) else extent)


def bounds(expr: Expr, ranges: Ranges) -> Interval:
    """The interval of `expr`. Variables without a range and loaded values are unbounded."""
    match expr:
        case Const(value=int() as value):
            return Interval(value, value)
        case Var():
            return ranges.get(expr, EVERYTHING)
    results: dict[Expr, Interval] = {}
    for node in postorder(expr, _interval_operands, results):
        results[node] = _bounds(node, ranges, results)
    return results[expr]


def _interval_operands(node: Expr) -> tuple[Expr, ...]:
    """The operands that determine the interval of a node."""
    match node:
        case Cast(value=inner) if node.dtype.is_integer and inner.dtype.is_integer:
            return (inner,)
        case Call(op="select", args=(_, a, b)) | Call(args=(a, b)):
            return (a, b)
        case Call(op="neg" | "abs", args=args):
            return args
    return ()


def _bounds(expr: Expr, ranges: Ranges, operands: Mapping[Expr, Interval]) -> Interval:
    """Compute the interval of `expr` from the intervals of its operands."""
    match expr:
        case Const(value=int() as value):
            return Interval(value, value)
        case Var():
            return ranges.get(expr, EVERYTHING)
        case Cast(value=inner) if expr.dtype.is_integer and inner.dtype.is_integer:
            return operands[inner]
        case Call(op="select", args=(_, a, b)):
            left, right = operands[a], operands[b]
            return Interval(min(left.low, right.low), max(left.high, right.high))
        case Call(op="sub", args=(a, b)) if (radix := _radix(a, b)) is not None:
            return Interval(
                0, min(radix - 1, operands[a].high) if operands[a].low >= 0 else radix - 1
            )
        case Call(op=op, args=(a, b)):
            return _binary(op, operands[a], operands[b])
        case Call(op="neg", args=(a,)):
            return Interval(-operands[a].high, -operands[a].low)
        case Call(op="abs", args=(a,)):
            low, high = operands[a].low, operands[a].high
            return Interval(max(low, -high, 0), max(-low, high))
    return EVERYTHING


def _binary(op: str, a: Interval, b: Interval) -> Interval:
    match op:
        case "add":
            return Interval(a.low + b.low, a.high + b.high)
        case "sub":
            return Interval(a.low - b.high, a.high - b.low)
        case "mul":
            products = [_times(x, y) for x in (a.low, a.high) for y in (b.low, b.high)]
            return Interval(min(products), max(products))
        case "floordiv" | "floormod" if b.low == 0 < b.high:
            # The divisor may be 0, which gives 0: only positive divisors bound the other results.
            nonzero = _binary(op, a, Interval(1, b.high))
            return Interval(min(0, nonzero.low), max(0, nonzero.high))
        case "floordiv" if b.low > 0:
            quotients = [_over(x, y) for x in (a.low, a.high) for y in (b.low, b.high)]
            return Interval(min(quotients), max(quotients))
        case "floormod" if b.low > 0:
            if b.is_point and not (math.isinf(a.low) or math.isinf(a.high)):
                quotient = a.low // b.low
                if quotient == a.high // b.low:
                    return Interval(a.low - quotient * b.low, a.high - quotient * b.low)
            return Interval(0, min(b.high - 1, a.high) if a.low >= 0 else b.high - 1)
        case "truncdiv" | "truncmod" if a.low >= 0 and b.low >= 0:
            return _binary(op.replace("trunc", "floor"), a, b)
        case "truncdiv" if b.low > 0:
            quotients = [_toward_zero(x, y) for x in (a.low, a.high) for y in (b.low, b.high)]
            return Interval(min(quotients), max(quotients))
        case "truncmod" if b.low > 0:
            return Interval(max(min(a.low, 0), 1 - b.high), min(max(a.high, 0), b.high - 1))
        case "shift_right" if b.is_point and b.low >= 0:
            return _binary("floordiv", a, Interval(2 ** int(b.low), 2 ** int(b.low)))
        case "bit_and" if b.is_point and b.low >= 0:
            period = int(b.low) + 1
            if period & (period - 1) == 0:  # a remainder by a power of two
                return _binary("floormod", a, Interval(period, period))
            return Interval(0, b.low)
        case "min":
            return Interval(min(a.low, b.low), min(a.high, b.high))
        case "max":
            return Interval(max(a.low, b.low), max(a.high, b.high))
    return EVERYTHING


def _radix(quotient: Expr, multiple: Expr) -> int | None:
    """The `r` of a digit in mixed radix, `i // n - i // (n * r) * r`, which is `i // n % r`."""
    match quotient, multiple:
        case (
            Call(op="floordiv", args=(index, Const(value=int() as divisor))),
            Call(
                op="mul",
                args=(
                    Call(op="floordiv", args=(whole, Const(value=int() as product))),
                    Const(value=int() as radix),
                ),
            ),
        ) if index is whole and 0 < divisor * radix == product:
            return radix
    return None


def _times(x: Bound, y: Bound) -> Bound:
    return 0 if x == 0 or y == 0 else x * y


def _over(x: Bound, y: Bound) -> Bound:
    if math.isinf(x):
        return x
    if math.isinf(y):
        return 0 if x >= 0 else -1
    return x // y


def _toward_zero(x: Bound, y: Bound) -> Bound:
    return _over(x, y) if x >= 0 else -_over(-x, y)
