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
MOST = 16
"""Of so many operations one thread may do one by itself."""
PART = 1 << 20
"""Scalar operations of a nest that is worth sharing out anew in each iteration of another."""


def share_work(schedule: Schedule) -> None:
    """Make one loop of every nest of the function parallel."""
    nests = _nests(schedule.function.body)
    while nests:
        nest = nests.pop()
        if locals_shared_with(schedule.function, nest):
            continue  # one tile: its results reach the next nest in one thread's memory
        if _operations(schedule, nest) < SMALL:
            continue
        loops, last = _loops_to_share(schedule, nest)
        few = not _is_enough(schedule, nest, loops)
        parts = _parts_to_share(schedule, loops, last) if few else None
        if parts is not None:
            nests += parts
        elif loops:
            schedule.parallel(schedule.fuse(*loops) if len(loops) > 1 else loops[0])


def _parts_to_share(schedule: Schedule, loops: list[str], last: For) -> list[For] | None:
    """The nests inside of loops with too few iterations, where each is shared out better: they
    exchange no values, and are nearly all that these loops run. `None` where there are none.
    """
    if not isinstance(last.body, Seq):
        return None
    parts = _independent_nests(last.body)
    if not loops:
        return parts
    work = [_operations(schedule, part) for part in parts]
    if sum(work) * MOST < _operations(schedule, last.body) * (MOST - 1):
        return None
    if _known(schedule, loops) == 1:
        return parts  # around them a batch, perhaps of one
    inside, _ = _loops_to_share(schedule, parts[work.index(max(work))])
    return parts if max(work) >= PART and _known(schedule, inside) >= ENOUGH_FOR_THREADS else None


def _is_enough(schedule: Schedule, nest: For, loops: list[str]) -> bool:
    """True where the iterations of some loops of a nest balance, as far as they are known: of what
    is not, only the outermost loop and those along the first axis may be a batch of one.
    """
    batch = _loops_of_first_axes(nest) | {nest.var.name}
    unknown = any(extent_of(schedule, loop) is None for loop in loops if loop not in batch)
    return unknown or _known(schedule, loops) >= ENOUGH_FOR_THREADS


def _known(schedule: Schedule, loops: list[str]) -> int:
    """The iterations of some loops, as far as they are known."""
    return prod(_known_factor(schedule.extent(loop)) for loop in loops)


def _operations(schedule: Schedule, body: Stmt) -> int:
    return operations(replace(schedule.function, body=body))


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
        if chosen and _operations(schedule, loop) < LITTLE:
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


def _loops_of_first_axes(nest: For) -> set[str]:
    """The loops of a nest that run along the first axis of some block."""
    firsts = [block.bindings[0] for block in blocks(nest) if block.bindings]
    return {var.name for binding in firsts for var in variables(binding)}


def _reduction_loops(nest: For) -> set[str]:
    """The loops of a nest that some reduction runs along."""
    return {
        var.name
        for block in blocks(nest)
        for axis, binding in zip(block.axes, block.bindings, strict=True)
        if axis.kind == "reduce"
        for var in variables(binding)
    }
