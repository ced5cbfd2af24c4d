"""Decompose index expressions into sums of products with integer coefficients.

In: an index expression. Out: its terms, `{(): constant, (i,): 8, (i, n): 4}`. An atom is a
variable, a load or any operation that is not `+`, `-` or `*`. Later stages read strides and pointer
increments from the terms.

    >>> terms(Var("i") * 8 + 3)
    {(Var(name='i', dtype=<DType.int32: 'int32'>),): 8, (): 3}
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from webmlc.core.bounds import Ranges, bounds
from webmlc.core.expr import Call, Const, Expr, Var, call
from webmlc.core.rewrite import bottom_up, substitute, variables

Term = tuple[Expr, ...]
Terms = Mapping[Term, int]

MAX_TERMS = 256
"""Multiply out a product of sums only if the result has at most this many terms.

Unit: terms. A product of n sums of two terms each has 2ⁿ terms; a larger product stays one atom.
Chosen by hand: sizes of real models have fewer than ten terms.
"""


def _summands(node: Expr) -> tuple[Expr, ...]:
    """The operands whose terms make up the terms of a node."""
    match node:
        case Call(op="add" | "sub" | "neg" | "mul", args=args):
            return args
    return ()


@bottom_up(_summands)
def terms(expr: Expr) -> Terms:
    """The terms of an index expression; do not modify the result (it is shared)."""
    match expr:
        case Const(value=value):
            return {(): int(value)} if value else {}
        case Call(op="add", args=(a, b)):
            return _sum(terms(a), terms(b), 1)
        case Call(op="sub", args=(a, b)):
            return _sum(terms(a), terms(b), -1)
        case Call(op="neg", args=(a,)):
            return {t: -f for t, f in terms(a).items()}
        case Call(op="mul", args=(a, b)) if len(terms(a)) * len(terms(b)) <= MAX_TERMS:
            return _product(terms(a), terms(b))
    return {(expr,): 1}


def _sum(a: Terms, b: Terms, sign: int) -> Terms:
    result = dict(a)
    for term, factor in b.items():
        total = result.get(term, 0) + sign * factor
        if total:
            result[term] = total
        else:
            del result[term]
    return result


def _product(a: Terms, b: Terms) -> Terms:
    result: dict[Term, int] = {}
    for left, x in a.items():
        for right, y in b.items():
            term = tuple(sorted(left + right, key=str)) if left and right else left or right
            result[term] = result.get(term, 0) + x * y
    return {t: f for t, f in result.items() if f}


def from_terms(parts: Terms) -> Expr:
    """Build the expression of these terms, in their order, with the constant last."""
    result: Expr | None = None
    for term, factor in parts.items():
        if not term:
            continue
        product: Expr | None = None
        for atom in term:
            product = atom if product is None else call("mul", product, atom)
        assert product is not None
        if result is None:
            result = call("mul", product, Const(factor))
        else:
            op = "add" if factor > 0 else "sub"
            result = call(op, result, call("mul", product, Const(abs(factor))))
    constant = parts.get((), 0)
    if result is None:
        return Const(constant)
    if constant:
        result = call("add" if constant > 0 else "sub", result, Const(abs(constant)))
    return result


@lru_cache(maxsize=65536)
def canonical(expr: Expr) -> Expr:
    """Fold the sums of an index expression and sort its terms as `simplify` does.

    It needs no ranges, and is cheaper than `simplify`.
    """
    parts = terms(expr)
    order = sorted((t for t in parts if t), key=lambda t: (parts[t] < 0, -len(t), _text(t)))
    return from_terms({t: parts[t] for t in (*order, ()) if t in parts})


@lru_cache(maxsize=65536)
def _text(term: Term) -> str:
    return " ".join(map(str, term))


def stride(expr: Expr, var: Var) -> Expr | None:
    """The derivative of `expr` by `var`, or `None` if `expr` is not affine in `var`."""
    split = split_linear(expr, var)
    return None if split is None else split[1]


def literal_stride(expr: Expr, var: Var) -> int | None:
    """The derivative of `expr` by `var` if it is a literal and `var` is in no other part than a
    multiple of itself; else `None`.
    """
    parts = terms(expr)
    alone = (var,)
    for term in parts:
        if term != alone and any(depends(atom, var) for atom in term):
            return None
    return parts.get(alone, 0)


def split_linear(expr: Expr, var: Var) -> tuple[Expr, Expr] | None:
    """Split `expr` into `(offset, stride)` with `expr == offset + stride * var`.

    Neither part contains `var`. The result is `None` if `expr` is not affine in `var`.
    """
    offset: dict[Term, int] = {}
    stride: dict[Term, int] = {}
    for term, factor in terms(expr).items():
        factors = tuple(atom for atom in term if atom != var)
        if any(depends(atom, var) for atom in factors) or len(term) - len(factors) > 1:
            return None
        target = offset if len(factors) == len(term) else stride
        target[factors] = target.get(factors, 0) + factor
    return from_terms(offset), from_terms(stride)


def depends(expr: Expr, var: Var) -> bool:
    """True if `var` occurs in `expr`."""
    return var in variables(expr)


def constant_part(expr: Expr) -> tuple[Expr, int]:
    """Split an index expression into `(variable part, constant)`."""
    parts = terms(expr)
    constant = parts.get((), 0)
    if not constant:
        return from_terms(parts), 0
    return from_terms({t: f for t, f in parts.items() if t}), constant


FEW_VALUES = 256
"""Values of a variable that are tried out, at most: the threads of a workgroup."""


def is_nonnegative(expr: Expr, ranges: Ranges) -> bool:
    """True if no value is negative. Intervals do not express how the terms of a sum depend on each
    other. So all terms of a variable with few values are evaluated together.

    >>> from webmlc.core.bounds import Interval
    >>> x, b = Var("x"), Var("b")
    >>> ranges = {x: Interval(0, 63), b: Interval(0, 9)}
    >>> index = b * 64 + x // 16 * 16 + x // 2 * 8 - x // 4 * 16
    >>> bounds(index, ranges).low, is_nonnegative(index, ranges), is_nonnegative(index - 1, ranges)
    (-240, True, False)
    """
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
