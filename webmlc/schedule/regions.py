"""Compute the part of a buffer that some statements touch, as boxes over the loops around them.

In: statements and the ranges of the loops around them. Out: for each dimension of a buffer a `Span`
(its lowest index over the outer loops, and how far it reaches), with the loops *inside* the
statements run through:

    for m1, k in T.grid(6, 64): ... A[m0 * 6 + m1, k] ...    ->    [Span(m0 * 6, 5), Span(0, 63)]

Indices may be sums, products with invariants, quotients and remainders. For any other index, or an
index that depends on data, the whole dimension counts (`None`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from webmlc.core.bounds import SYMBOL, Interval, bounds, iterations
from webmlc.core.expr import Call, Const, Expr, Var, as_int, call, maximum
from webmlc.core.rewrite import substitute, variables
from webmlc.core.simplify import divides, simplify
from webmlc.loops.ir import (
    Block,
    Buffer,
    For,
    If,
    Let,
    Load,
    Stmt,
    Store,
    child_statements,
    loads_in,
)
from webmlc.schedule.tree import Intervals, conjuncts


@dataclass(frozen=True, slots=True)
class Access:
    """One load or store, its indices over loop variables only.

    A `guarded` access may not happen, so its indices may be out of bounds. If only predicates of
    blocks guard it, these predicates are the `conditions`; else it is `conditional`.
    """

    buffer: Buffer
    indices: tuple[Expr, ...]
    writes: bool
    block: str | None
    conditions: tuple[Expr, ...] = ()
    conditional: bool = False

    @property
    def guarded(self) -> bool:
        """True if the access may not happen."""
        return self.conditional or bool(self.conditions)


@dataclass(frozen=True, slots=True)
class Span:
    """The indices `low` to `low + width` of one dimension.

    `exact`: both ends really occur. `step`: every index between the ends that is `low` plus a
    multiple of `step` also occurs; `None` if the step is not known.
    """

    low: Expr
    width: Expr
    exact: bool = True
    step: int | None = 1


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

    def base(self, access: Access) -> tuple[Expr, ...]:
        """The lowest index of each dimension; the index itself if the lowest index is not known.

        Accesses of equal base meet in the same iteration of the loops around the statements.
        """
        spans = [(index, relax(index, self)) for index in access.indices]
        return tuple(
            simplify(index if span is None else span.low, self.ranges) for index, span in spans
        )

    def region(self, accesses: Sequence[Access]) -> tuple[Span | None, ...]:
        """The box that covers `accesses` (of one buffer): one span a dimension, `None` where the
        accesses may touch the whole dimension.
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
        """The span with a width that does not depend on loops: the width becomes the extent of a
        new loop.
        """
        low, width = simplify(span.low, self.ranges), simplify(span.width, self.ranges)
        loops = {var for var in variables(width) if not _is_symbol(var, self.ranges)}
        if not loops:
            return Span(low, width, span.exact, span.step)
        high = bounds(width, self.ranges).high
        return Span(low, Const(int(high)), False, None) if isinstance(high, int) else None


def _is_symbol(var: Var, ranges: Mapping[Var, Interval]) -> bool:
    return ranges.get(var) is SYMBOL  # a loop of symbolic extent has a range like it, but its own


def scan(root: Stmt, ranges: Mapping[Var, Interval], buffers: Iterable[str] | None = None) -> Scan:
    """The accesses of `root` to `buffers` (all of them by default)."""
    result = Scan(ranges=dict(ranges))
    buffer_names = None if buffers is None else frozenset(buffers)
    _Walker(result, buffer_names).visit(root, _Inside())
    return result


@dataclass(frozen=True, slots=True)
class _Inside:
    """The place of a walk: the values of axes and lets over the loops, and the guards around it."""

    values: Mapping[Var, Expr] = field(default_factory=dict)
    block: str | None = None
    conditions: tuple[Expr, ...] = ()
    conditional: bool = False


@dataclass(slots=True)
class _Walker:
    """Walks statements and records their accesses in `result`."""

    result: Scan
    buffer_names: frozenset[str] | None

    def visit(self, stmt: Stmt, inside: _Inside) -> None:
        match stmt:
            case For(var=var, body=body):
                extent = substitute(stmt.extent, inside.values)
                self.result.inner[var] = extent
                self.result.ranges[var] = iterations(extent, self.result.ranges)
                self.visit(body, inside)
            case Block():
                self.block(stmt, inside)
            case Let(var=var, value=value, body=body):
                self.loads(value, inside)
                values = {**inside.values, var: substitute(value, inside.values)}
                self.visit(body, replace(inside, values=values))
            case If(condition=condition):
                self.loads(condition, inside)
                for branch in child_statements(stmt):
                    self.visit(branch, replace(inside, conditional=True))
            case Store(buffer=buffer, indices=indices, value=value):
                for index in indices:
                    self.loads(index, inside)
                self.loads(value, inside)
                self.add(buffer, indices, True, inside)
            case _:
                for child in child_statements(stmt):
                    self.visit(child, inside)

    def block(self, block: Block, outside: _Inside) -> None:
        axis_values = block.axis_values().items()
        values = {var: substitute(value, outside.values) for var, value in axis_values}
        conditions = (substitute(c, outside.values) for c in conjuncts(block.predicate))
        inside = _Inside(
            {**outside.values, **values},
            block.name if outside.block is None else outside.block,
            (*outside.conditions, *conditions),
            outside.conditional,
        )
        for child in child_statements(block):
            self.visit(child, inside)

    def loads(self, root: Expr, inside: _Inside) -> None:
        """Record the loads of an expression; the loads of one side of a `select` are
        conditional.
        """
        if not loads_in(root):
            return
        guarded = replace(inside, conditional=True)
        stack = [(root, inside)]
        visited: set[tuple[int, bool]] = set()
        while stack:
            node, place = stack.pop()
            if (id(node), place is guarded) in visited:
                continue
            visited.add((id(node), place is guarded))
            match node:
                case Load(buffer=buffer, indices=indices):
                    self.add(buffer, indices, False, place)
                case Call(op="select", args=(condition, then, otherwise)):
                    stack += [(condition, place), (then, guarded), (otherwise, guarded)]
                    continue
            stack.extend((child, place) for child in node.children)

    def add(self, buffer: Buffer, indices: tuple[Expr, ...], writes: bool, inside: _Inside) -> None:
        if self.buffer_names is None or buffer.name in self.buffer_names:
            new = tuple(substitute(index, inside.values) for index in indices)
            self.result.accesses.append(
                Access(buffer, new, writes, inside.block, inside.conditions, inside.conditional)
            )


def relax(index: Expr, scanned: Scan) -> Span | None:
    """The span of `index` while the loops inside run; `None` if it is not known."""
    if loads_in(index):
        return None
    return _relax(simplify(index, scanned.ranges), scanned)


def _relax(index: Expr, scanned: Scan) -> Span | None:
    inner = scanned.inner
    if not any(var in inner for var in variables(index)):
        return Span(index, Const(0))
    match index:
        case Var():
            return Span(Const(0), inner[index] - 1)
        case Call(op="add" | "sub"):
            return _middle_digit(index, scanned) or _sum(index, scanned)
        case Call(op="mul", args=(a, b)):
            if any(var in inner for var in variables(a)):
                return _scale(_relax(a, scanned), b, scanned)
            return _scale(_relax(b, scanned), a, scanned)
        case Call(op="floordiv" | "floormod" as op, args=(a, b)):
            size, span = as_int(b), _relax(a, scanned)
            if size is None and span is not None:
                return _digit(op, span, b, scanned)
            if size is None or size <= 0 or span is None:
                return None
            part = _quotient if op == "floordiv" else _remainder
            return part(span, size, scanned)
        case Call(op="min" | "max" as op, args=(a, b)):
            left, right = _relax(a, scanned), _relax(b, scanned)
            if left is None or right is None:
                return None
            width = maximum(left.width, right.width)
            return Span(call(op, left.low, right.low), width, False, None)
    return None


def _sum(index: Expr, scanned: Scan) -> Span | None:
    """The span of a sum: its terms move independently where they share no inner loop."""
    spans: list[Span] = []
    earlier_variables: set[Var] = set()
    independent = True
    for term, sign in _terms(index):
        span = _relax(term, scanned)
        if span is None:
            return None
        if sign < 0:
            span = Span(-(span.low + span.width), span.width, span.exact, span.step)
        used = {var for var in variables(term) if var in scanned.inner}
        independent = independent and not used & earlier_variables
        earlier_variables |= used
        spans.append(span)
    low: Expr = Const(0)
    width: Expr = Const(0)
    for span in spans:
        low, width = low + span.low, width + span.width
    exact = independent and all(span.exact for span in spans)
    return Span(low, width, exact, _joint_step(spans, scanned) if independent else None)


def _terms(index: Expr) -> Iterator[tuple[Expr, int]]:
    """The terms of a sum with their signs."""
    stack = [(index, 1)]
    while stack:
        node, sign = stack.pop()
        match node:
            case Call(op="add" | "sub" as op, args=(a, b)):
                stack += [(a, sign), (b, sign if op == "add" else -sign)]
            case _:
                yield node, sign


def _joint_step(spans: list[Span], scanned: Scan) -> int | None:
    """The step of a sum: the step of the finest term, if finer terms fill the gaps of coarser
    terms.
    """
    moving = [span for span in spans if as_int(span.width) != 0]
    if any(span.step is None for span in moving):
        return None
    moving.sort(key=lambda span: span.step or 0)
    reach: Expr = Const(0)
    finest = (moving[0].step or 1) if moving else 1
    for span in moving:
        step = span.step or 1
        gap = bounds(simplify(reach + finest - step, scanned.ranges), scanned.ranges)
        if step % finest or (span is not moving[0] and gap.low < 0):
            return None
        reach = reach + span.width
    return finest


def _scale(span: Span | None, factor: Expr, scanned: Scan) -> Span | None:
    """`span * factor` for an invariant factor of known sign."""
    if span is None or any(var in scanned.inner for var in variables(factor)):
        return None
    size = as_int(factor)
    step = None if size is None or span.step is None else span.step * abs(size)
    sign = bounds(factor, scanned.ranges)
    if sign.low >= 0:
        return Span(span.low * factor, span.width * factor, span.exact, step)
    if sign.high <= 0:
        return Span((span.low + span.width) * factor, span.width * -factor, span.exact, step)
    return None


def _quotient(span: Span, size: int, scanned: Scan) -> Span:
    if divides(size, span.low, scanned.ranges):
        step = span.step
        if step is not None and step > 1:
            step = step // size if step % size == 0 else None
        return Span(span.low // size, span.width // size, span.exact, step)
    step = 1 if span.step == 1 else None
    return Span(span.low // size, (span.width + (size - 1)) // size, False, step)


def _remainder(span: Span, size: int, scanned: Scan) -> Span:
    low = simplify(span.low % size, scanned.ranges)
    if bounds(simplify(low + span.width, scanned.ranges), scanned.ranges).high < size:
        return Span(low, span.width, span.exact, span.step)
    wraps = span.step == 1 and bounds(span.width, scanned.ranges).low >= size - 1
    return Span(Const(0), Const(size - 1), wraps, 1 if wraps else None)


def _middle_digit(index: Expr, scanned: Scan) -> Span | None:
    """The span of `i // n % r`, in the canonical form `i // n - i // (n * r) * r`, where a size is
    symbolic; `None` for another expression.
    """
    match index:
        case Call(
            op="sub",
            args=(Call(op="floordiv", args=(loop, n)) as quotient, Call(op="mul", args=factors)),
        ):
            for whole_part, radix in (factors, factors[::-1]):
                match whole_part:
                    case Call(op="floordiv", args=(inner, size)) if inner == loop and simplify(
                        n * radix - size, scanned.ranges
                    ) == Const(0):
                        span = _relax(quotient, scanned)
                        if span is None or not variables(span.width) | variables(radix):
                            return None
                        return _digit("floormod", span, radix, scanned)
    return None


def _digit(op: str, span: Span, radix: Expr, scanned: Scan) -> Span | None:
    """The span of a quotient or remainder by `radix`, if all quotients and remainders occur: a loop
    over several fused axes has every index of each axis. If the size is 0, the loop has no
    iteration.
    """
    count = span.width + 1
    is_whole = simplify(span.low, scanned.ranges) == Const(0) and span.step == 1
    if not is_whole or simplify(count % radix, scanned.ranges) != Const(0):
        return None
    if any(var in scanned.inner for var in variables(radix)):
        return None
    digits = count // radix if op == "floordiv" else radix
    return Span(Const(0), simplify(digits, scanned.ranges) - 1, span.exact)


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
    step = a.step if a == b else None
    return Span(a.low, reach, a.exact and b.exact, step)


def disjoint(
    a: Sequence[Span | None], b: Sequence[Span | None], ranges: Mapping[Var, Interval]
) -> bool:
    """True if two boxes certainly share no element."""
    for left, right in zip(a, b, strict=True):
        if left is None or right is None:
            continue
        for lower, upper in ((left, right), (right, left)):
            gap = bounds(simplify(upper.low - lower.low - lower.width, ranges), ranges)
            if gap.low > 0:
                return True
    return False


def within(inner: Span | None, outer: Span | None, ranges: Mapping[Var, Interval]) -> bool:
    """True if `inner` certainly lies in `outer`; `None` as `outer` is everything."""
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
