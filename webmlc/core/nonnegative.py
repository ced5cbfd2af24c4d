"""Decide whether an index expression is never negative.

In: an index expression and the interval of each variable. Intervals do not express how the terms of
a sum depend on each other. So all terms of a variable with few values are evaluated together:

    >>> from webmlc.core.bounds import Interval
    >>> from webmlc.core.expr import Var
    >>> x, b = Var("x"), Var("b")
    >>> ranges = {x: Interval(0, 63), b: Interval(0, 9)}
    >>> index = b * 64 + x // 16 * 16 + x // 2 * 8 - x // 4 * 16
    >>> bounds(index, ranges).low, is_nonnegative(index, ranges), is_nonnegative(index - 1, ranges)
    (-240, True, False)
"""

from __future__ import annotations

from webmlc.core.affine import Term, from_terms, terms
from webmlc.core.bounds import Ranges, bounds
from webmlc.core.expr import Const, Expr, Var
from webmlc.core.rewrite import substitute, variables

FEW_VALUES = 256
"""Values of a variable that are tried out, at most: the threads of a workgroup."""


def is_nonnegative(expr: Expr, ranges: Ranges) -> bool:
    """True if no value is negative."""
    if bounds(expr, ranges).low >= 0:
        return True
    groups: dict[frozenset[Var], dict[Term, int]] = {}
    for term, factor in terms(expr).items():
        groups.setdefault(frozenset().union(*map(variables, term)), {})[term] = factor
    if max(map(len, groups.values()), default=0) < 2:
        return False
    return sum(_low(from_terms(group), names, ranges) for names, group in groups.items()) >= 0


def _low(part: Expr, names: frozenset[Var], ranges: Ranges) -> float:
    """The lower end of terms of the same variables."""
    interval = bounds(part, ranges)
    if interval.low >= 0 or len(names) != 1:
        return interval.low
    (var,) = names
    if var not in ranges or not ranges[var].high - ranges[var].low < FEW_VALUES:
        return interval.low
    values = range(int(ranges[var].low), int(ranges[var].high) + 1)
    return min(bounds(substitute(part, {var: Const(i)}), ranges).low for i in values)
