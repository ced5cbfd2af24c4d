"""Which part of a buffer some statements touch, as boxes over the loops around them.

In: statements and the ranges of the loops around them. Out: for each dimension of a buffer a `Span`
(its lowest index over the outer loops, and how far it reaches), with the loops *inside* the
statements run through:

    for m1, k in T.grid(6, 64): ... A[m0 * 6 + m1, k] ...    ->    [Span(m0 * 6, 5), Span(0, 63)]

Indices may be sums, products with invariants, quotients and remainders; where one is none of these,
or depends on data, the whole dimension counts (`None`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from webmlc.core.bounds import SYMBOL, Interval, bounds
from webmlc.core.expr import (
    Call,
    Const,
    Expr,
    Var,
    as_int,
    call,
    maximum,
    substitute,
    variables,
    walk,
)
from webmlc.core.simplify import divides, simplify
from webmlc.loops.ir import Block, Buffer, For, If, Let, Load, Seq, Stmt, Store
from webmlc.schedule.tree import Intervals, interval_of


@dataclass(frozen=True, slots=True)
class Access:
    """One load or store, its indices over loop variables only. `guarded`: it may not happen, so may
    be out of bounds.
    """

    buffer: Buffer
    indices: tuple[Expr, ...]
    writes: bool
    guarded: bool
    block: str | None


@dataclass(frozen=True, slots=True)
class Span:
    """The indices `low` to `low + width` of one dimension. `exact`: both ends really occur."""

    low: Expr
    width: Expr
    exact: bool = True


@dataclass(slots=True)
class Scan:
    """The accesses of some statements; `inner` are the extents of the loops inside them."""

    accesses: list[Access] = field(default_factory=list)
    inner: dict[Var, Expr] = field(default_factory=dict)
    ranges: Intervals = field(default_factory=dict)

    def by_buffer(self) -> dict[str, list[Access]]:
        """The accesses of each buffer."""
        result: dict[str, list[Access]] = {}
        for access in self.accesses:
            result.setdefault(access.buffer.name, []).append(access)
        return result

    def base(self, access: Access) -> tuple[Expr | None, ...]:
        """The lowest index of each dimension; `None` where it is not known."""
        spans = [relax(index, self) for index in access.indices]
        return tuple(None if span is None else simplify(span.low, self.ranges) for span in spans)

    def region(self, accesses: Sequence[Access]) -> tuple[Span | None, ...]:
        """The box that covers `accesses` (of one buffer): one span a dimension, `None` where it may
        be all of it.
        """
        spans: list[Span | None] = []
        for dimension in range(len(accesses[0].buffer.shape)):
            distinct = dict.fromkeys(access.indices[dimension] for access in accesses)
            span: Span | None = None
            for position, index in enumerate(distinct):
                one = relax(index, self)
                span = one if position == 0 else union(span, one, self.ranges)
                if span is None:
                    break
            spans.append(None if span is None else self.close(span))
        return tuple(spans)

    def close(self, span: Span) -> Span | None:
        """The span with a width that does not depend on loops: it becomes the extent of a new
        one.
        """
        low, width = simplify(span.low, self.ranges), simplify(span.width, self.ranges)
        loops = {var for var in variables(width) if not _is_symbol(var, self.ranges)}
        if not loops:
            return Span(low, width, span.exact)
        high = bounds(width, self.ranges).high
        return Span(low, Const(int(high)), False) if isinstance(high, int) else None


def _is_symbol(var: Var, ranges: Mapping[Var, Interval]) -> bool:
    return ranges.get(var) is SYMBOL  # a loop of symbolic extent has a range like it, but its own


def scan(root: Stmt, ranges: Mapping[Var, Interval], buffers: Iterable[str] | None = None) -> Scan:
    """The accesses of `root` to `buffers` (all of them by default)."""
    found = Scan(ranges=dict(ranges))
    wanted = None if buffers is None else frozenset(buffers)
    _Walker(found, wanted).visit(root, {}, False, None)
    return found


@dataclass(slots=True)
class _Walker:
    """Walks statements with the values of axes and lets over the loops."""

    found: Scan
    wanted: frozenset[str] | None

    def visit(
        self, stmt: Stmt, values: Mapping[Var, Expr], guarded: bool, block: str | None
    ) -> None:
        match stmt:
            case Seq(statements=statements):
                for inner in statements:
                    self.visit(inner, values, guarded, block)
            case For(var=var, body=body):
                extent = substitute(stmt.extent, values)
                self.found.inner[var] = extent
                self.found.ranges[var] = interval_of(extent, self.found.ranges)
                self.visit(body, values, guarded, block)
            case Block(axes=axes, body=body, init=init):
                inside = dict(values)
                for axis, binding in zip(axes, stmt.bindings, strict=True):
                    inside[axis.var] = substitute(binding, values)
                name = stmt.name if block is None else block
                guarded = guarded or stmt.predicate is not None
                if init is not None:
                    self.visit(init, inside, guarded, name)
                self.visit(body, inside, guarded, name)
            case Let(var=var, value=value, body=body):
                self.loads(value, values, guarded, block)
                self.visit(body, {**values, var: substitute(value, values)}, guarded, block)
            case If(condition=condition, then=then, otherwise=otherwise):
                self.loads(condition, values, guarded, block)
                self.visit(then, values, True, block)
                if otherwise is not None:
                    self.visit(otherwise, values, True, block)
            case Store(buffer=buffer, indices=indices, value=value):
                for index in indices:
                    self.loads(index, values, guarded, block)
                self.loads(value, values, guarded, block)
                self.add(buffer, indices, values, True, guarded, block)

    def loads(
        self, root: Expr, values: Mapping[Var, Expr], guarded: bool, block: str | None
    ) -> None:
        """Record the loads of an expression; what only one side of a `select` loads is guarded."""
        stack = [(root, guarded)]
        while stack:
            node, inside = stack.pop()
            match node:
                case Load(buffer=buffer, indices=indices):
                    self.add(buffer, indices, values, False, inside, block)
                case Call(op="select", args=(condition, then, otherwise)):
                    stack += [(condition, inside), (then, True), (otherwise, True)]
                    continue
            stack.extend((child, inside) for child in node.children())

    def add(
        self,
        buffer: Buffer,
        indices: tuple[Expr, ...],
        values: Mapping[Var, Expr],
        writes: bool,
        guarded: bool,
        block: str | None,
    ) -> None:
        if self.wanted is None or buffer.name in self.wanted:
            new = tuple(substitute(index, values) for index in indices)
            self.found.accesses.append(Access(buffer, new, writes, guarded, block))


def relax(index: Expr, scanned: Scan) -> Span | None:
    """The span of `index` while the loops inside run; `None` where it is not known."""
    if any(isinstance(node, Load) for node in walk(index)):
        return None
    return _relax(simplify(index, scanned.ranges), scanned)


def _relax(index: Expr, scanned: Scan) -> Span | None:
    inner = scanned.inner
    if not any(var in inner for var in variables(index)):
        return Span(index, Const(0))
    match index:
        case Var():
            return Span(Const(0), inner[index] - 1)
        case Call(op="add" | "sub" as op, args=(a, b)):
            left, right = _relax(a, scanned), _relax(b, scanned)
            if left is None or right is None:
                return None
            shared = variables(a) & variables(b) & inner.keys()
            exact = left.exact and right.exact and not shared
            if op == "add":
                return Span(left.low + right.low, left.width + right.width, exact)
            return Span(left.low - (right.low + right.width), left.width + right.width, exact)
        case Call(op="mul", args=(a, b)):
            if any(var in inner for var in variables(a)):
                return _scale(_relax(a, scanned), b, scanned)
            return _scale(_relax(b, scanned), a, scanned)
        case Call(op="floordiv" | "floormod" as op, args=(a, b)):
            size = as_int(b)
            span = _relax(a, scanned)
            if size is None or size <= 0 or span is None:
                return None
            return (
                _quotient(span, size, scanned) if op == "floordiv" else _rest(span, size, scanned)
            )
        case Call(op="min" | "max" as op, args=(a, b)):
            left, right = _relax(a, scanned), _relax(b, scanned)
            if left is None or right is None:
                return None
            return Span(call(op, left.low, right.low), maximum(left.width, right.width), False)
    return None


def _scale(span: Span | None, factor: Expr, scanned: Scan) -> Span | None:
    """`span * factor` for an invariant factor of known sign."""
    if span is None or any(var in scanned.inner for var in variables(factor)):
        return None
    sign = bounds(factor, scanned.ranges)
    if sign.low >= 0:
        return Span(span.low * factor, span.width * factor, span.exact)
    if sign.high <= 0:
        return Span((span.low + span.width) * factor, span.width * -factor, span.exact)
    return None


def _quotient(span: Span, size: int, scanned: Scan) -> Span:
    if divides(size, span.low, scanned.ranges):
        return Span(span.low // size, span.width // size, span.exact)
    return Span(span.low // size, (span.width + (size - 1)) // size, False)


def _rest(span: Span, size: int, scanned: Scan) -> Span:
    low = simplify(span.low % size, scanned.ranges)
    if bounds(simplify(low + span.width, scanned.ranges), scanned.ranges).high < size:
        return Span(low, span.width, span.exact)
    return Span(Const(0), Const(size - 1), False)


def union(a: Span | None, b: Span | None, ranges: Mapping[Var, Interval]) -> Span | None:
    """The smallest span around both; `None` where their order is not known."""
    if a is None or b is None:
        return None
    apart = bounds(simplify(b.low - a.low, ranges), ranges)
    if apart.high < 0 or (apart.high == 0 and not apart.is_point):
        return union(b, a, ranges)
    if apart.low < 0:
        return None
    reach = simplify(maximum(a.width, b.low - a.low + b.width), ranges)
    return Span(a.low, reach, a.exact and b.exact)


def disjoint(
    a: Sequence[Span | None], b: Sequence[Span | None], ranges: Mapping[Var, Interval]
) -> bool:
    """True where two boxes certainly share no element."""
    for one, other in zip(a, b, strict=True):
        if one is None or other is None:
            continue
        for lower, upper in ((one, other), (other, one)):
            gap = bounds(simplify(upper.low - lower.low - lower.width, ranges), ranges)
            if gap.low > 0:
                return True
    return False


def within(inner: Span | None, outer: Span | None, ranges: Mapping[Var, Interval]) -> bool:
    """True where `inner` certainly lies in `outer`; `None` as `outer` is everything."""
    if outer is None:
        return True
    if inner is None:
        return False
    below = simplify(inner.low - outer.low, ranges)
    above = simplify(outer.low + outer.width - inner.low - inner.width, ranges)
    return bounds(below, ranges).low >= 0 and bounds(above, ranges).low >= 0


def whole(buffer: Buffer, spans: Sequence[Span | None]) -> tuple[Span, ...]:
    """`spans` with the full dimension where one is not known."""
    return tuple(
        Span(Const(0), size - 1) if span is None else span
        for size, span in zip(buffer.shape, spans, strict=True)
    )


__all__ = [
    "Access", "Scan", "Span", "disjoint", "relax", "scan", "union", "whole", "within",
]  # fmt: skip
