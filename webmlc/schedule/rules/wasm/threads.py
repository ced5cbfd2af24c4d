"""Sharing a kernel's work out to threads.

In: a finished schedule of serial loops. Out: the same with the outermost loop of every nest
parallel; loops are fused first where the outermost alone would not balance, or may run only once (a
batch).
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from webmlc.core.expr import Call, Expr, as_int
from webmlc.core.rewrite import variables
from webmlc.loops.ir import For, Seq, Stmt, blocks, loads, stores
from webmlc.schedule.analysis import operations
from webmlc.schedule.legality import locals_shared_with
from webmlc.schedule.rules.wasm.nests import extent_of
from webmlc.schedule.schedule import Schedule

ENOUGH_FOR_THREADS = 8
"""Iterations that a parallel loop should have to balance."""
LITTLE = 2048
"""Scalar operations of a loop that is no part of a parallel one around it."""
SMALL = 16384
"""Scalar operations of a nest that one thread runs sooner than two: slabs of padding."""


def share_work(schedule: Schedule) -> None:
    """Make one loop of every nest of the function parallel."""
    nests = _nests(schedule.function.body)
    while nests:
        nest = nests.pop()
        if locals_shared_with(schedule.function, nest):
            continue  # one tile: its results reach the next nest in one thread's memory
        if operations(replace(schedule.function, body=nest)) < SMALL:
            continue
        loops, last = _loops_to_share(schedule, nest)
        known = any(extent_of(schedule, loop) is not None for loop in loops)
        least = prod(_known_factor(schedule.extent(loop)) for loop in loops)
        known = known or least >= ENOUGH_FOR_THREADS
        parts = [] if known or not isinstance(last.body, Seq) else _independent_nests(last.body)
        if isinstance(last.body, Seq) and (len(parts) == len(last.body.statements) or not loops):
            nests += parts  # around them a batch, perhaps of one
        elif loops:
            schedule.parallel(schedule.fuse(*loops) if len(loops) > 1 else loops[0])


def _independent_nests(body: Seq) -> list[For]:
    """The nests of `body` that exchange no values with its other statements: each may be shared
    out by itself.
    """
    written = [{store.buffer.name for store in stores(s)} for s in body.statements]
    read = [{load.buffer.name for load in loads(s)} for s in body.statements]

    def exchanges(a: int, b: int) -> bool:
        return bool(written[a] & read[b] or read[a] & written[b])

    return [
        nest
        for a, nest in enumerate(body.statements)
        if isinstance(nest, For) and not any(exchanges(a, b) for b in range(len(written)) if a != b)
    ]


def _nests(body: Stmt) -> list[For]:
    statements = body.statements if isinstance(body, Seq) else (body,)
    return [statement for statement in statements if isinstance(statement, For)]


def _loops_to_share(schedule: Schedule, nest: For) -> tuple[list[str], For]:
    """The outermost loops of a nest that together have enough iterations, and the last loop that
    was looked at. Of symbolic loops nothing is known.
    """
    reduced = _reduction_loops(nest)
    chosen: list[str] = []
    iterations = 1
    loop = nest
    while iterations < ENOUGH_FOR_THREADS:
        name = loop.var.name
        if loop.kind != "serial" or name in reduced:
            break
        if chosen and operations(replace(schedule.function, body=loop)) < LITTLE:
            break  # it would take a fused index apart for every few instructions
        if extent_of(schedule, name) != 1 or chosen:
            chosen.append(name)
            iterations *= _known_factor(schedule.extent(name))
        if not isinstance(loop.body, For):
            break
        loop = loop.body
    return chosen, loop


def _known_factor(extent: Expr) -> int:
    """The literal factors of an extent: the least it can be, but for none at all."""
    match extent:
        case Call(op="mul", args=(a, b)):
            return _known_factor(a) * _known_factor(b)
    return as_int(extent) or 1


def _reduction_loops(nest: For) -> set[str]:
    """The loops of a nest that some reduction runs along."""
    return {
        var.name
        for block in blocks(nest)
        for axis, binding in zip(block.axes, block.bindings, strict=True)
        if axis.kind == "reduce"
        for var in variables(binding)
    }
