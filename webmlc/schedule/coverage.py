"""Decide whether a box of a buffer is written in full: only then may a consumer move next to its
producers.

In: the writes of some statements (`regions.scan`). Out: yes, or not known. A region is a box around
the written elements; a tile of fused loops, or a predicate, may leave holes in it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import cast

from webmlc.core.bounds import Interval, bounds
from webmlc.core.expr import Call, Const, Expr, Var
from webmlc.core.rewrite import variables
from webmlc.core.simplify import prove_equal, simplify
from webmlc.schedule.regions import Access, Scan, Span, relax, within


def fills(scanned: Scan, writes: Sequence[Access]) -> bool:
    """True if the loops inside write every element of the box around `writes`, if no predicate
    stops them.
    """
    region = _known(scanned.region(writes))
    if region is None or any(access.conditional for access in writes):
        return False
    for indices in {access.indices for access in writes}:
        spans = _known(relax(index, scanned) for index in indices)
        if spans is None or not _same(spans, region, scanned.ranges):
            continue
        if _is_dense(indices, spans, scanned) or _is_as_large(indices, region, scanned):
            return True
    return False


def _known(spans: Iterable[Span | None]) -> list[Span] | None:
    """The spans; `None` if one is not known."""
    known_spans = list(spans)
    return None if None in known_spans else cast(list[Span], known_spans)


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


def _same(spans: Sequence[Span], region: Sequence[Span], ranges: Mapping[Var, Interval]) -> bool:
    return all(
        prove_equal(span.low, box.low, ranges) and prove_equal(span.width, box.width, ranges)
        for span, box in zip(spans, region, strict=True)
    )


def _is_dense(indices: Sequence[Expr], spans: Sequence[Span], scanned: Scan) -> bool:
    """True if every dimension is run through without gaps, by loops of its own."""
    earlier_variables: set[Var] = set()
    for index, span in zip(indices, spans, strict=True):
        used = scanned.inner.keys() & variables(simplify(index, scanned.ranges))
        if used & earlier_variables or (used and span.step != 1):
            return False
        earlier_variables |= used
    return True


def _is_as_large(indices: Sequence[Expr], region: Sequence[Span], scanned: Scan) -> bool:
    """True if there are as many iterations as elements; the iterations write different elements."""
    volume = _product(span.width + 1 for span in region)
    iterations = _product(scanned.inner[var] for var in _inner_variables(indices, scanned))
    return prove_equal(iterations, volume, scanned.ranges)


def _inner_variables(indices: Sequence[Expr], scanned: Scan) -> list[Var]:
    """The loops that occur in `indices`."""
    inner_variables = {var for index in indices for var in variables(index) if var in scanned.inner}
    return sorted(inner_variables, key=lambda var: var.name)


def _product(factors: Iterable[Expr]) -> Expr:
    return math.prod(factors, start=Const(1))


def _writes_everything(scanned: Scan, writes: Sequence[Access]) -> bool:
    """True if as many instances run as the buffer has elements; the instances write different
    elements.
    """
    first = writes[0]
    if any(a.indices != first.indices or a.conditions != first.conditions for a in writes):
        return False
    counted: set[Var] = set()
    factors: list[Expr] = []
    for condition in first.conditions:
        if not isinstance(condition, Call) or condition.op != "lt":
            return False
        index, limit = condition.args
        span = relax(index, scanned)
        used = scanned.inner.keys() & variables(index)
        if span is None or used & counted or span.step != 1:
            return False
        if not prove_equal(span.low, Const(0), scanned.ranges):
            return False
        if bounds(simplify(span.width + 1 - limit, scanned.ranges), scanned.ranges).low < 0:
            return False
        counted |= used
        factors.append(limit)
    loops = (var for var in _inner_variables(first.indices, scanned) if var not in counted)
    factors += (scanned.inner[var] for var in loops)
    return prove_equal(_product(factors), _product(first.buffer.shape), scanned.ranges)


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
