"""Decide whether a box of a buffer is written in full: only then may a consumer move next to its
producers.

In: the writes of some statements (`regions.scan`). Out: yes, or not known. A region is a box around
the written elements; a tile of fused loops, or a predicate, may leave holes in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from webmlc.core.bounds import Interval, bounds
from webmlc.core.expr import Call, Const, Expr, Var
from webmlc.core.rewrite import variables
from webmlc.core.simplify import prove_equal, simplify
from webmlc.schedule.regions import Access, Scan, Span, relax, within


def fills(scanned: Scan, writes: Sequence[Access]) -> bool:
    """True if the loops inside write every element of the box around `writes`, if no predicate
    stops them.
    """
    region = scanned.region(writes)
    distinct = {access.indices for access in writes}
    if any(access.conditional for access in writes):
        return False
    for indices in distinct:
        spans = [relax(index, scanned) for index in indices]
        if not _same(spans, region, scanned.ranges):
            continue
        if _is_dense(indices, spans, scanned) or _is_as_large(indices, region, scanned):
            return True
    return False


def covers(
    scanned: Scan,
    writes: Sequence[Access],
    needed: Mapping[int, Span],
    ranges: Mapping[Var, Interval],
) -> bool:
    """True if all loops together certainly write the box `needed` (spans by dimension)."""
    if any(access.conditional for access in writes):
        return False
    if _writes_everything(scanned, writes):
        return True
    if not fills(scanned, writes):
        return False
    region = scanned.region(writes)
    if not all(within(span, region[d], ranges) for d, span in needed.items()):
        return False
    return all(
        any(_allows(condition, access.indices[d], span, ranges) for d, span in needed.items())
        for access in writes
        for condition in access.conditions
    )


def _same(
    spans: Sequence[Span | None], region: Sequence[Span | None], ranges: Mapping[Var, Interval]
) -> bool:
    for span, whole in zip(spans, region, strict=True):
        if span is None or whole is None:
            return False
        if not prove_equal(span.low, whole.low, ranges):
            return False
        if not prove_equal(span.width, whole.width, ranges):
            return False
    return True


def _is_dense(indices: Sequence[Expr], spans: Sequence[Span | None], scanned: Scan) -> bool:
    """True if every dimension is run through without gaps, by loops of its own."""
    earlier_variables: set[Var] = set()
    for index, span in zip(indices, spans, strict=True):
        used = {var for var in variables(simplify(index, scanned.ranges)) if var in scanned.inner}
        if span is None or used & earlier_variables or (used and span.step != 1):
            return False
        earlier_variables |= used
    return True


def _is_as_large(indices: Sequence[Expr], region: Sequence[Span | None], scanned: Scan) -> bool:
    """True if there are as many iterations as elements; the iterations write different elements."""
    volume: Expr = Const(1)
    for span in region:
        if span is None:
            return False
        volume = volume * (span.width + 1)
    return prove_equal(_iterations(indices, scanned), volume, scanned.ranges)


def _iterations(indices: Sequence[Expr], scanned: Scan) -> Expr:
    """The iterations of the loops that occur in `indices`."""
    count: Expr = Const(1)
    for var in _inner_variables(indices, scanned):
        count = count * scanned.inner[var]
    return count


def _inner_variables(indices: Sequence[Expr], scanned: Scan) -> list[Var]:
    inner_variables = {var for index in indices for var in variables(index) if var in scanned.inner}
    return sorted(inner_variables, key=lambda var: var.name)


def _writes_everything(scanned: Scan, writes: Sequence[Access]) -> bool:
    """True if as many instances run as the buffer has elements; the instances write different
    elements.
    """
    first = writes[0]
    if any(a.indices != first.indices or a.conditions != first.conditions for a in writes):
        return False
    counted: set[Var] = set()
    count: Expr = Const(1)
    for condition in first.conditions:
        match condition:
            case Call(op="lt", args=(index, limit)):
                pass
            case _:
                return False
        span = relax(index, scanned)
        used = {var for var in variables(index) if var in scanned.inner}
        if span is None or used & counted or span.step != 1:
            return False
        if not prove_equal(span.low, Const(0), scanned.ranges):
            return False
        if bounds(simplify(span.width + 1 - limit, scanned.ranges), scanned.ranges).low < 0:
            return False
        counted |= used
        count = count * limit
    for var in _inner_variables(first.indices, scanned):
        if var not in counted:
            count = count * scanned.inner[var]
    elements: Expr = Const(1)
    for size in first.buffer.shape:
        elements = elements * size
    return prove_equal(count, elements, scanned.ranges)


def _allows(condition: Expr, index: Expr, span: Span, ranges: Mapping[Var, Interval]) -> bool:
    """True if a predicate bounds `index` by a limit that all of `span` respects."""
    match condition:
        case Call(op="lt", args=(tested, limit)):
            room = limit - 1 - span.low - span.width
        case Call(op="ge", args=(tested, limit)):
            room = span.low - limit
        case _:
            return False
    if not prove_equal(tested, index, ranges):
        return False
    return bounds(simplify(room, ranges), ranges).low >= 0
