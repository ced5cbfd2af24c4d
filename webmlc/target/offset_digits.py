"""Collect the accesses to allocations, and split each row-major offset into the part that outer
loops decide and one digit per dimension.

In: an offset, the strides of the buffer, and the outer variables. Out: the terms over outer
variables alone, and for each dimension a digit: the sum of the other terms that belong to it. A
term belongs to the dimension with the largest stride that divides it. Fused loops
(`f // 56, f % 56`) cancel in the offset, though not in the indices.

    mo * 384 + mi * 64 + n   with strides (64, 1) and the outer variable mo
        ->   outer terms mo * 384;   digits mi, n
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from webmlc.core.affine import Term, Terms, from_terms, terms
from webmlc.core.bounds import Interval, bounds
from webmlc.core.expr import Call, Const, Expr, Var, as_int, call
from webmlc.core.rewrite import variables
from webmlc.core.simplify import simplify
from webmlc.loops.ir import Buffer, For, LoopFunction, Stmt, child_statements, own_accesses
from webmlc.target.flatten_buffers import offset
from webmlc.target.scoped import Scope, inside, symbol_ranges

Path = tuple[tuple[Stmt, int], ...]
"""The statements from the body of a function to an access, outermost first. The last statement
performs the access. Each statement has the number of the child that leads to the access: a place in
a `Seq`, 0 or 1 for the branches of an `If`, else 0.
"""


@dataclass(frozen=True, slots=True)
class Access:
    """A load or store: its indices, the shape of the buffer, the row-major offset, the path to it,
    and the ranges of the integer variables in scope. Conditions do not narrow these.
    """

    indices: tuple[Expr, ...]
    shape: tuple[Expr, ...]
    offset: Expr
    is_store: bool
    path: Path
    scope: Scope

    def loops(self, depth: int | None = None) -> list[For]:
        """The loops among the first `depth` statements of the path, outermost first. For a load in
        the extent of a loop, that loop is among them.
        """
        return [stmt for stmt, _ in self.path[:depth] if isinstance(stmt, For)]


def collect_accesses(function: LoopFunction) -> dict[Buffer, list[Access]]:
    """Every access to an allocation of a function without blocks, in program order: the loads of a
    store come before it.

    >>> # Y of shape (54, 64); for mo, mi, n in grid(9, 6, 64): Y[mo * 6 + mi, n] = 0
    >>> collect_accesses(function)[Y]
    [Access(indices=(mo * 6 + mi, n), offset=mo * 384 + mi * 64 + n, is_store=True, ...)]
    """
    accesses: dict[Buffer, list[Access]] = {b: [] for b in function.allocations}

    def visit(stmt: Stmt, path: Path, scope: Scope) -> None:
        for access in own_accesses(stmt):
            buffer, indices = access.buffer, access.indices
            if buffer in accesses:
                place = simplify(offset(buffer, indices), scope)
                is_store, path_here = access is stmt, (*path, (stmt, 0))
                record = Access(indices, buffer.shape, place, is_store, path_here, scope)
                accesses[buffer].append(record)
        inner = inside(stmt, scope)
        for position, child in enumerate(child_statements(stmt)):
            visit(child, (*path, (stmt, position)), inner)

    visit(function.body, (), symbol_ranges(function))
    return accesses


@dataclass(frozen=True, slots=True)
class Digits:
    """The way to split offsets: the full buffer's `strides`, and the `outer` variables over which
    terms are dropped. `nearest` says how constants are split (`_split_constant`).
    """

    strides: tuple[Expr, ...]
    outer: frozenset[Var]
    nearest: bool

    def outer_terms(self, offset: Expr) -> dict[Term, int]:
        """The terms of an offset that are dropped."""
        return outer_terms(offset, self.outer, self.strides)

    def split(self, offset: Expr) -> tuple[Expr, ...]:
        """The digits of an offset, one expression per dimension, without its outer terms."""
        return _split(offset, self)

    def ranges(self, access: Access) -> list[Interval]:
        """The interval of each digit of an access's offset."""
        parts = self.split(access.offset)
        return [bounds(simplify(part, access.scope), access.scope) for part in parts]


@dataclass(frozen=True, slots=True)
class Region:
    """The part of a buffer that is live at once: the least digit of each dimension, and the number
    of digits from there on.
    """

    digits: Digits
    lows: tuple[int, ...]
    extents: tuple[int, ...]

    @property
    def elements(self) -> int:
        """The number of elements of the region."""
        return math.prod(self.extents)


def strides_of(buffer: Buffer) -> tuple[Expr, ...]:
    """The row-major stride of each dimension of a buffer, in elements."""
    result: list[Expr] = []
    stride: Expr = Const(1)
    for extent in reversed(buffer.shape):
        result.append(simplify(stride))
        stride = stride * extent
    return tuple(reversed(result))


def term_variables(term: Term) -> frozenset[Var]:
    """The variables of a product."""
    return frozenset(v for factor in term for v in variables(factor))


def outer_terms(
    index: Expr, outer: frozenset[Var], strides: tuple[Expr, ...] = ()
) -> dict[Term, int]:
    """The terms of an offset that only the outer loops and the symbols decide. Multiples of
    `strides` are left out: they are literal indices.
    """
    return {
        term: factor
        for term, factor in terms(index).items()
        if term
        and (term_vars := term_variables(term))
        and term_vars <= outer
        and not any(_is_multiple(term, factor, stride) for stride in strides)
    }


def _is_multiple(term: Term, factor: int, stride: Expr) -> bool:
    """True where a term is a literal times the stride."""
    quotient = divide_term(term, factor, stride)
    return quotient is not None and not quotient[0]


def divide_term(term: Term, factor: int, stride: Expr) -> tuple[Term, int] | None:
    """`factor · term / stride` where the division is exact, else None. A stride that is a sum
    (`6n - 18`) divides no term.
    """
    parts = terms(stride)
    if len(parts) != 1:
        return None
    ((divisor, unit),) = parts.items()
    quotient = list(term)
    for atom in divisor:
        if atom not in quotient:
            return None
        quotient.remove(atom)
    return (tuple(quotient), factor // unit) if factor % unit == 0 else None


@lru_cache(maxsize=1024)
def _split(index: Expr, by: Digits) -> tuple[Expr, ...]:
    """Split an offset. Cached: `compact_buffers` asks again for each region that it tries, and many
    accesses have the same offset.
    """
    strides = by.strides
    outer_part = by.outer_terms(index)
    inner_part = {t: factor for t, factor in terms(index).items() if t not in outer_part}
    digits: list[dict[Term, int]] = [{} for _ in strides]
    for term, factor in _with_remainders(inner_part, strides).items():
        if not term:
            _split_constant(factor, strides, digits, by.nearest)
            continue
        for digit, stride in zip(digits, strides, strict=True):
            quotient = divide_term(term, factor, stride)
            if quotient is not None:
                digit[quotient[0]] = digit.get(quotient[0], 0) + quotient[1]
                break
    return tuple(map(from_terms, digits))


def _with_remainders(parts: Terms, strides: tuple[Expr, ...]) -> Terms:
    """Write `a·x + b·(x // c)` as `a·(x % c) + (a·c + b)·(x // c)`, if a longer stride divides the
    new factor of the quotient than the old factor. `x` is a fused loop: its quotient and its
    remainder are digits of different dimensions.
    """
    units = [unit for stride in strides if (unit := as_int(stride)) is not None and unit > 1]

    def longest(factor: int) -> int:
        return max((unit for unit in units if factor % unit == 0), default=0)

    result = dict(parts)
    for term, factor in parts.items():
        match term:
            case (Call(op="floordiv", args=(x, Const(value=size))),) if (x,) in parts:
                whole = factor + parts[(x,)] * int(size)
                if longest(whole) > longest(factor):
                    remainder = (call("floormod", x, size),)
                    result[remainder] = result.pop((x,))
                    result[term] = whole
                    return result
    return result


def _split_constant(
    value: int, strides: tuple[Expr, ...], digits: list[dict[Term, int]], nearest: bool
) -> None:
    """Add a constant offset to the digits, as a number in mixed radix.

    A digit is rounded to the `nearest` integer, so that a small negative offset (a halo) stays
    small; or down, so that the last elements of a row stay in that row.
    """
    for digit, stride in zip(digits, strides, strict=True):
        unit = as_int(stride)
        if unit is None:
            continue
        quotient = (value + (unit // 2 if nearest else 0)) // unit if unit > 1 else value
        digit[()] = quotient
        value -= quotient * unit
