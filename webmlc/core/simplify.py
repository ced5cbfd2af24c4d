"""Simplify index expressions through a canonical form: sums of products with integer coefficients.

In: an expression and the intervals of its variables. Out: an equal expression, usually shorter. Two
expressions that differ only by polynomial arithmetic become the same expression, which proves
dimensions equal (`prove_equal`).

Inside the form, `a % c` is `a - c·(a // c)`. The quotients and remainders that result from
splitting and fusing loops therefore cancel:

    >>> from webmlc.core.expr import Var
    >>> f = Var("f")
    >>> str(simplify(f // 56 * 56 + f % 56))
    'f'
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache

import numpy as np

from webmlc.core.bounds import EVERYTHING, Bound, Interval, Ranges, bounds
from webmlc.core.combination import Combination
from webmlc.core.dtypes import INDEX, DType
from webmlc.core.expr import Call, Cast, Const, Expr, Number, Var, call
from webmlc.core.rewrite import variables
from webmlc.core.scalar_operators import SCALAR_OPERATORS

Monomial = tuple[Expr, ...]  # atoms sorted by their text; () is the constant term
Polynomial = dict[Monomial, int]
Ends = tuple[tuple[Var, Bound, Bound, Expr | None], ...]
"""Variables, each with the ends of its interval."""

_MAX_FORMS = 1 << 10
"""The number of canonical forms, and of simplified parts, that are cached for one set of ranges. A
larger number costs memory, a smaller number repeats work. Chosen by hand.
"""
_NO_RANGES: dict[Var, Interval] = {}
"""The ranges of a caller that gives none."""


def simplify(expr: Expr, ranges: Ranges | None = None) -> Expr:
    """Return an equal, simpler expression.

    Index arithmetic becomes canonical. Other scalar operators fold if the result is exact.
    """
    if isinstance(expr, Const):
        return expr
    intervals = ranges or _NO_RANGES
    if isinstance(expr, Var):  # many indices are variables
        interval = intervals.get(expr)
        return expr if interval is None or not interval.is_point else Const(interval.low)
    relevant = tuple(
        [
            (var, interval.low, interval.high, interval.below)
            for var in variables(expr)
            if (interval := intervals.get(var)) is not None
        ]
    )
    return _simplify(expr, relevant)


@lru_cache(maxsize=1 << 16)
def _simplify(expr: Expr, ends: Ends) -> Expr:
    """Simplify for variables between these ends. Not intervals, which would take long to hash."""
    simplifier = _simplifier(ends)
    if len(simplifier.polynomials) > _MAX_FORMS:
        simplifier.polynomials = {}  # not cleared: another thread may read them
    if len(simplifier.results) > _MAX_FORMS:
        simplifier.results = {}
    return simplifier.simplify(expr)


@lru_cache(maxsize=64)
def _simplifier(ends: Ends) -> _Simplifier:
    """The simplifier for variables between these ends. Cached: the indices of unrolled statements
    share most of their parts.
    """
    return _Simplifier({var: Interval(low, high, below) for var, low, high, below in ends})


def prove_equal(a: Expr, b: Expr, ranges: Ranges | None = None) -> bool:
    """True if `a == b` certainly holds for all values of the variables."""
    return a == b or simplify(a - b, ranges) == Const(0)


def prove(condition: Expr, ranges: Ranges | None = None) -> bool:
    """True if a boolean expression certainly holds."""
    return simplify(condition, ranges) == Const(True, DType.bool)


def divides(factor: int, expr: Expr, ranges: Ranges | None = None) -> bool:
    """True if `expr` is certainly a multiple of `factor`."""
    return simplify(expr % factor, ranges) == Const(0)


class _Simplifier:
    """The rules for one set of ranges. All rules share the ranges and the memo, hence the class."""

    def __init__(self, ranges: Ranges) -> None:
        self.ranges = ranges
        self.polynomials: dict[Expr, Polynomial] = {}
        self.results: dict[Expr, Expr] = {}  # of parts of expressions that are no arithmetic

    def simplify(self, expr: Expr) -> Expr:
        """Simplify bottom-up, but treat a whole tree of index arithmetic as one polynomial."""
        results = self.results
        stack: list[tuple[Expr, bool]] = [(expr, False)]
        if _is_arithmetic(expr) and expr.lanes == 1:
            return self.to_expr(self.polynomial(expr))
        while stack:
            node, expanded = stack.pop()
            if node in results:
                continue
            if _is_arithmetic(node) and node.lanes == 1:
                results[node] = self.to_expr(self.polynomial(node))
                continue
            children = node.children
            if children and not expanded:
                stack.append((node, True))
                stack.extend([(child, False) for child in children])
                continue
            new_children = tuple(map(results.__getitem__, children))
            rebuilt = node if new_children == children else node.rebuild(new_children)
            result = self.rule(rebuilt)
            results[node] = rebuilt if result is None else result
        return results[expr]

    def rule(self, node: Expr) -> Expr | None:
        match node:
            case Var() if (interval := self.ranges.get(node)) is not None and interval.is_point:
                return Const(int(interval.low), node.dtype)
            case Call(op="select", args=(Const(value=value), then, otherwise)):
                return then if value else otherwise
            case Call(op="select", args=(_, then, otherwise)) if then == otherwise:
                return then
            case Combination(matrix=matrix, row=Const(value=int(row))) if 0 <= row < len(matrix):
                return node.sums[row]
            case Call() if node.lanes > 1:
                return None
            case Call(dtype=dtype) if dtype == INDEX and _is_arithmetic(node):
                return self.to_expr(self.polynomial(node))
            case Call(op="lt" | "le" | "gt" | "ge" | "eq" | "ne", args=(a, b)) if a.dtype == INDEX:
                return self.compare(node.op, a, b)
            case Call(op="bit_and" | "bit_or", args=(a, b), dtype=DType.bool):
                return _boolean(node.op, a, b)
            case Call(op="bit_not", args=(Const(value=value),), dtype=DType.bool):
                return Const(not value, DType.bool)
            case Call(op="min" | "max", args=(a, b)) if a == b:
                return a
            case Call(op=op, args=args, dtype=dtype) if all(isinstance(a, Const) for a in args):
                return _fold(op, args, dtype)
            case Call(op="mul" | "div", args=(a, Const(value=1))):
                return a
            case Call(op="mul", args=(Const(value=1), b)):
                return b
            case Call(op="sub", args=(a, Const(value=0))) if not a.dtype.is_float:
                return a
            case Cast(value=inner, dtype=dtype) if inner.dtype == dtype:
                return inner
            case Cast(value=Const(value=value), dtype=dtype):
                return _cast_literal(value, dtype)
        return None

    def compare(self, op: str, a: Expr, b: Expr) -> Expr | None:
        """Decide a comparison of indices from the bounds of their difference, if possible."""
        interval = self.extremes(self.polynomial(call("sub", a, b)))
        answer: bool | None = None
        match op:
            case "lt":
                answer = True if interval.high < 0 else False if interval.low >= 0 else None
            case "le":
                answer = True if interval.high <= 0 else False if interval.low > 0 else None
            case "gt":
                answer = True if interval.low > 0 else False if interval.high <= 0 else None
            case "ge":
                answer = True if interval.low >= 0 else False if interval.high < 0 else None
            case "eq" | "ne":
                if interval.is_point and interval.low == 0:
                    answer = op == "eq"
                elif interval.low > 0 or interval.high < 0:
                    answer = op == "ne"
        return None if answer is None else Const(answer, DType.bool)

    def extremes(self, polynomial: Polynomial) -> Interval:
        """Bound a polynomial, also by symbolic ends: `i - n` is negative because `i < n`."""
        numeric = self.bounds(polynomial)
        high, low = numeric.high, numeric.low
        if math.isinf(high):
            high = bounds(self.to_expr(self.at_end(polynomial, 1)), self.ranges).high
        if math.isinf(low):
            low = bounds(self.to_expr(self.at_end(polynomial, -1)), self.ranges).low
        return Interval(low, high)

    def at_end(self, polynomial: Polynomial, sign: int) -> Polynomial:
        """Replace variables of symbolic range by the end that makes `polynomial` extreme.

        It becomes largest if `sign` is 1, and smallest if it is -1. Ends may depend on other
        variables, so the replacement repeats.
        """
        for _ in range(4):
            result: Polynomial = {}
            for term, factor in polynomial.items():
                result = _add(result, self.term_at_end(term, factor, sign), 1)
            if result == polynomial:
                break
            polynomial = result
        return polynomial

    def term_at_end(self, term: Monomial, factor: int, sign: int) -> Polynomial:
        for position, atom in enumerate(term):
            interval = self.ranges.get(atom) if isinstance(atom, Var) else None
            if interval is None or interval.below is None or math.isinf(interval.low):
                continue
            factors = term[:position] + term[position + 1 :]
            if any(bounds(other, self.ranges).low < 0 for other in factors):
                continue
            upper = self.polynomial(call("sub", interval.below, 1))
            lower: Polynomial = {(): int(interval.low)}
            end = upper if factor * sign > 0 else lower
            return _multiply({factors: factor}, end)
        return {term: factor}

    # -- polynomials -------------------------------------------------------------------

    def polynomial(self, root: Expr) -> Polynomial:
        """Compute the canonical form of an index expression with an explicit stack."""
        memo = self.polynomials
        stack: list[tuple[Expr, bool]] = [(root, False)]
        while stack:
            node, expanded = stack.pop()
            if node in memo:
                continue
            if not _is_arithmetic(node):
                memo[node] = self.leaf(node)
            elif expanded:
                memo[node] = self.combine(node, [memo[child] for child in node.children])
            else:
                stack.append((node, True))
                stack.extend([(child, False) for child in node.children])
        return memo[root]

    def leaf(self, node: Expr) -> Polynomial:
        match node:
            case Const(value=value):
                return {(): int(value)} if value else {}
            case Var():
                interval = self.ranges.get(node)
                if interval is None or interval.low != interval.high:
                    return {(node,): 1}
                return {(): int(interval.low)} if interval.low else {}
        children = tuple(self.simplify(child) for child in node.children)
        atom = node.rebuild(children) if children else node
        simpler = self.rule(atom)
        return {(atom,): 1} if simpler is None else self.polynomial(simpler)

    def combine(self, node: Expr, parts: list[Polynomial]) -> Polynomial:
        assert isinstance(node, Call)
        match node.op:
            case "add":
                return _add(parts[0], parts[1], 1)
            case "sub":
                return _add(parts[0], parts[1], -1)
            case "neg":
                return _scale(parts[0], -1)
            case "mul":
                return _multiply(parts[0], parts[1])
            case "floordiv":
                return self.floordiv(parts[0], parts[1])
            case "floormod":
                quotient = self.floordiv(parts[0], parts[1])
                return _add(parts[0], _multiply(quotient, parts[1]), -1)
        return self.extremum(node.op, parts[0], parts[1])

    def extremum(self, op: str, a: Polynomial, b: Polynomial) -> Polynomial:
        """Decide `min` or `max` from the bounds of the difference, if possible."""
        interval = self.bounds(_add(a, b, -1))
        if interval.high <= 0:
            return a if op == "min" else b
        if interval.low >= 0:
            return b if op == "min" else a
        return {(call(op, self.to_expr(a), self.to_expr(b)),): 1}

    def floordiv(self, a: Polynomial, b: Polynomial) -> Polynomial:
        """Divide `a` by `b`.

        The terms of `a` that `b` divides become terms of the quotient. The quotient of the other
        terms may prove to be zero.
        """
        if not a:
            return {}
        if set(b) == {()} and b[()] > 0:
            return self.floordiv_constant(a, b[()])
        if len(b) != 1:
            if a == b:
                return {(): 1}
            return {(call("floordiv", self.to_expr(a), self.to_expr(b)),): 1}
        ((monomial, coefficient),) = b.items()
        quotient_terms: Polynomial = {}
        undivided: Polynomial = {}
        for term, factor in a.items():
            remaining = _without(term, monomial)
            if remaining is not None and factor % coefficient == 0:
                quotient_terms[remaining] = factor // coefficient
            else:
                undivided[term] = factor
        if undivided:
            divisor, remainder = self.to_expr(b), self.to_expr(undivided)
            if self.is_below(remainder, divisor):
                return quotient_terms
            match remainder:
                case Call(op="floordiv", args=(inner, first)):  # x // a // b == x // (a·b)
                    product = _multiply(self.polynomial(first), b)
                    return _add(quotient_terms, self.floordiv(self.polynomial(inner), product), 1)
            quotient_terms = _add(quotient_terms, {(call("floordiv", remainder, divisor),): 1}, 1)
        return quotient_terms

    def is_below(self, a: Expr, b: Expr) -> bool:
        """True if 0 <= a < b certainly holds, for a symbolic b."""
        if bounds(a, self.ranges).low < 0:
            return False
        match a:
            case Call(op="floormod", args=(_, modulus)) if modulus == b:
                return True
        return bounds(self.to_expr(self.polynomial(call("sub", a, b))), self.ranges).high < 0

    def floordiv_constant(self, a: Polynomial, divisor: int) -> Polynomial:
        quotient_terms: Polynomial = {}
        undivided: Polynomial = {}
        for term, factor in a.items():
            if factor % divisor == 0:
                quotient_terms[term] = factor // divisor
            elif term == ():
                quotient, remainder = divmod(factor, divisor)
                _accumulate(quotient_terms, (), quotient)
                _accumulate(undivided, (), remainder)
            else:
                undivided[term] = factor
        if not any(undivided):  # nothing, or a constant between 0 and the divisor
            return quotient_terms
        common = math.gcd(divisor, *(f for t, f in undivided.items() if t != ()))
        if common > 1:  # (g·x + r) // (g·d) == (x + r // g) // d
            undivided = {t: f // common for t, f in undivided.items() if f // common}
            divisor //= common
        interval = self.bounds(undivided)
        if not math.isinf(interval.low) and interval.low // divisor == interval.high // divisor:
            return _add(quotient_terms, {(): int(interval.low) // divisor}, 1)
        if divisor == 1:
            return _add(quotient_terms, undivided, 1)
        step = self.common_step(undivided, divisor)
        if step > 1:  # (g·x + y) // (g·d) == x // d where 0 <= y < g
            coarse = {t: f // step for t, f in undivided.items() if f % step == 0}
            return _add(quotient_terms, self.floordiv_constant(coarse, divisor // step), 1)
        if len(undivided) == 1:
            ((term, factor),) = undivided.items()
            match term:
                case (Call(op="floordiv", args=(inner, first)),) if factor == 1:
                    product = _scale(self.polynomial(first), divisor)
                    return _add(quotient_terms, self.floordiv(self.polynomial(inner), product), 1)
        return _add(quotient_terms, {(call("floordiv", self.to_expr(undivided), divisor),): 1}, 1)

    def common_step(self, terms: Polynomial, divisor: int) -> int:
        """The largest g > 1 that divides `divisor` and some terms, or 1 if there is none.

        The sum of the other terms must lie in [0, g).
        """
        for step in sorted({math.gcd(divisor, factor) for factor in terms.values()}, reverse=True):
            fine = {t: f for t, f in terms.items() if f % step}
            if step > 1 and fine != terms and self.bounds(fine).within(0, step - 1):
                return step
        return 1

    def bounds(self, polynomial: Polynomial) -> Interval:
        """The interval of a canonical form."""
        low: Bound = 0
        high: Bound = 0
        for term, factor in polynomial.items():
            match term:
                case ():
                    low, high = low + factor, high + factor
                case (Var() as var,) if factor:
                    interval = self.ranges.get(var, EVERYTHING)
                    ends = interval.low * factor, interval.high * factor
                    low, high = low + min(ends), high + max(ends)
                case _ if factor:
                    return bounds(self.to_expr(polynomial), self.ranges)
        return Interval(low, high)

    # -- back to expressions -----------------------------------------------------------

    def to_expr(self, polynomial: Polynomial) -> Expr:
        """Build the expression of a canonical form.

        Remainders are restored. Positive terms come first, and the constant comes last.
        """
        terms = _restore_remainders({t: f for t, f in polynomial.items() if f}, self)
        positive = sorted((t for t, f in terms.items() if f > 0 and t), key=_order)
        negative = sorted((t for t, f in terms.items() if f < 0 and t), key=_order)
        result: Expr | None = None
        for term in positive:
            product = _product(term, terms[term])
            result = product if result is None else Call("add", (result, product), INDEX)
        constant = terms.get((), 0)
        if result is None and (constant > 0 or not negative):
            result, constant = Const(constant), 0
        for term in negative:
            if result is None:
                result = _product(term, terms[term])
            else:
                result = Call("sub", (result, _product(term, -terms[term])), INDEX)
        assert result is not None
        if constant:
            op = "add" if constant > 0 else "sub"
            result = Call(op, (result, Const(abs(constant))), INDEX)
        return result


_ARITHMETIC = frozenset({"add", "sub", "mul", "neg", "floordiv", "floormod", "min", "max"})


def _is_arithmetic(node: Expr) -> bool:
    return isinstance(node, Call) and node.op in _ARITHMETIC and node.dtype == INDEX


def _restore_remainders(terms: Polynomial, simplifier: _Simplifier) -> Polynomial:
    """Turn `k·x - k·c·(x // c)` back into `k·(x % c)`."""
    result = dict(terms)
    for term, factor in terms.items():
        for position, atom in enumerate(term):
            match atom:
                case Call(op="floordiv", args=(inner, divisor)):
                    pass
                case _:
                    continue
            if result.get(term) != factor:
                break
            factors = term[:position] + term[position + 1 :]
            divisor_terms = simplifier.polynomial(divisor)
            if len(divisor_terms) != 1:
                break
            ((divisor_monomial, divisor_factor),) = divisor_terms.items()
            outer = _without(factors, divisor_monomial)
            if outer is None or factor % divisor_factor:
                break
            scale = -(factor // divisor_factor)
            subtrahend = {
                _join(outer, t): scale * f for t, f in simplifier.polynomial(inner).items()
            }
            if all(t == () or _covers(result.get(t, 0), f) for t, f in subtrahend.items()):
                for t, f in subtrahend.items():
                    _accumulate(result, t, -f)
                _accumulate(result, term, -factor)
                _accumulate(
                    result, _join(outer, (Call("floormod", (inner, divisor), INDEX),)), scale
                )
            break
    return {t: f for t, f in result.items() if f}


def _covers(factor: int, part: int) -> bool:
    """True if subtracting `part` from `factor` neither changes the sign nor adds magnitude.

    The term with this factor then contains the part.
    """
    return factor == part or (factor * part > 0 and abs(factor) >= abs(part))


@lru_cache(maxsize=1 << 14)
def _order(term: Monomial) -> tuple[int, str]:
    return (-len(term), " ".join(map(_text, term)))


@lru_cache(maxsize=1 << 16)
def _text(atom: Expr) -> str:
    return str(atom)


def _product(term: Monomial, factor: int) -> Expr:
    result: Expr | None = None
    for atom in term:
        result = atom if result is None else Call("mul", (result, atom), INDEX)
    if result is None:
        return Const(factor)
    return result if factor == 1 else Call("mul", (result, Const(factor)), INDEX)


def _accumulate(terms: Polynomial, term: Monomial, factor: int) -> None:
    total = terms.get(term, 0) + factor
    if total:
        terms[term] = total
    else:
        terms.pop(term, None)


def _add(a: Polynomial, b: Polynomial, sign: int) -> Polynomial:
    result = dict(a)
    for term, factor in b.items():
        _accumulate(result, term, sign * factor)
    return result


def _scale(a: Polynomial, factor: int) -> Polynomial:
    return {term: f * factor for term, f in a.items()}


def _multiply(a: Polynomial, b: Polynomial) -> Polynomial:
    result: Polynomial = {}
    for left, x in a.items():
        for right, y in b.items():
            _accumulate(result, _join(left, right), x * y)
    return result


def _join(left: Monomial, right: Monomial) -> Monomial:
    return tuple(sorted(left + right, key=_text)) if left and right else left or right


def _without(term: Monomial, part: Monomial) -> Monomial | None:
    """Divide `term` by the product `part`; `None` if `part` does not divide it."""
    remaining = list(term)
    for atom in part:
        if atom not in remaining:
            return None
        remaining.remove(atom)
    return tuple(remaining)


def _boolean(op: str, a: Expr, b: Expr) -> Expr | None:
    neutral = op == "bit_and"
    for operand, other in ((a, b), (b, a)):
        match operand:
            case Const(value=value):
                return other if bool(value) == neutral else operand
    return a if a == b else None


def _fold(op: str, args: tuple[Expr, ...], dtype: DType) -> Expr | None:
    """Fold an operator of literals if numpy and every target compute the same result."""
    row = SCALAR_OPERATORS[op]
    values = [a.dtype.numpy.type(a.value) for a in args if isinstance(a, Const)]
    is_exact = (
        op in {"add", "sub", "mul", "min", "max", "neg", "abs", "select"} or row.result == "bool"
    )
    if not is_exact or any(isinstance(v, float) and math.isnan(v) for v in values):
        return None
    value: Number = row.meaning(*values).item()
    return Const(value, dtype)


def _cast_literal(value: Mapping[str, int] | Number, dtype: DType) -> Expr | None:
    if isinstance(value, float) and (not math.isfinite(value) or not dtype.is_float):
        return None
    return Const(np.asarray(value).astype(dtype.numpy).item(), dtype)
