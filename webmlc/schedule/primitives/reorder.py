"""`reorder`: loops of one nest change places.

for i, j, k in T.grid(4, 8, 16):        for k, i, j in T.grid(16, 4, 8):
    with T.block("C"): ...         ->       with T.block("C"): ...
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from itertools import chain

from webmlc.core.expr import Expr, as_int
from webmlc.core.rewrite import variables
from webmlc.loops.ir import For, Load, LoopFunction, Stmt, Store, loads, stores
from webmlc.schedule.errors import ScheduleError
from webmlc.schedule.legality import repeating_loops
from webmlc.schedule.nest import axis_variables
from webmlc.schedule.regions import scan
from webmlc.schedule.tree import depends_on, outer_blocks, path_to_loop, ranges_along, replace_last
from webmlc.schedule.update import with_body


def reorder(function: LoopFunction, *loops: str) -> LoopFunction:
    """Put `loops` in this order, outermost first, in the places they have now; other loops stay.

    The loops may be given in any order and must lie on one path with no statement beside it between
    them. Raises `ScheduleError` otherwise, and where a loop's extent depends on a loop that would
    come to stand inside it.
    """
    if len(set(loops)) != len(loops) or not loops:
        reason = f"{list(loops)} must name each loop once"
        raise ScheduleError("reorder", reason, function, *loops)
    paths = [path_to_loop(function, "reorder", name)[0] for name in loops]
    top, bottom = min(paths, key=len), max(paths, key=len)
    chain = bottom[len(top) - 1 :]
    nest: list[For] = []
    for stmt in chain:
        if not isinstance(stmt, For):
            reason = f"loops {', '.join(map(repr, loops))} are not perfectly nested in one another"
            raise ScheduleError("reorder", reason, function, *loops)
        nest.append(stmt)
    on_path = {loop.var.name for loop in nest}
    for name in loops:
        if name not in on_path:
            reason = f"loop {name!r} is not on one path with loop {nest[-1].var.name!r}"
            raise ScheduleError("reorder", reason, function, name, nest[-1].var.name)
    by_name = {loop.var.name: loop for loop in nest}
    new_order = iter(loops)
    order = [by_name[next(new_order)] if loop.var.name in loops else loop for loop in nest]
    _check_extents(function, order)
    if order != nest:
        _check_blocks(function, bottom, nest)
        _check_reductions(function, nest, order)
    body: Stmt = nest[-1].body
    for loop in reversed(order):
        body = replace(loop, body=body)
    return with_body(function, replace_last(top, body))


def _check_extents(function: LoopFunction, order: list[For]) -> None:
    inside = {loop.var.name for loop in order}
    for loop in order:
        if depends_on(loop.extent, inside):
            reason = (
                f"the extent {loop.extent} of loop {loop.var.name!r} depends on a loop that would "
                "be inside it"
            )
            raise ScheduleError("reorder", reason, function, loop.var.name)
        inside.discard(loop.var.name)


def _check_blocks(function: LoopFunction, path: tuple[Stmt, ...], nest: list[For]) -> None:
    """Blocks that share a buffer must meet in the same iteration of the moved loops, or the order
    of loops matters.
    """
    names = frozenset(loop.var.name for loop in nest if as_int(loop.extent) != 1)
    shared_buffers = _shared_buffers(nest[-1].body)
    if not shared_buffers:
        return
    scan_result = scan(nest[-1].body, ranges_along(function, path), shared_buffers)
    for name, accesses in scan_result.by_buffer().items():
        blocks = {access.block for access in accesses if access.block is not None}
        if len(blocks) < 2 or not any(access.writes for access in accesses):
            continue
        bases = {_moving(scan_result.base(access), names) for access in accesses}
        fixed = {var.name for _, index in next(iter(bases)) for var in variables(index)}
        if len(bases) > 1 or len(names - fixed) > 1:
            reason = (
                f"blocks {', '.join(map(repr, sorted(blocks)))} share buffer {name!r} across "
                "iterations"
            )
            raise ScheduleError("reorder", reason, function, *sorted(blocks))


def _shared_buffers(root: Stmt) -> set[str]:
    """The names of the buffers that several blocks of a statement use."""
    users = Counter[str]()
    for block in outer_blocks(root):
        accesses: Iterable[Load | Store] = chain(loads(block), stores(block))
        users.update({access.buffer.name for access in accesses})
    return {name for name, count in users.items() if count > 1}


def _moving(base: tuple[Expr, ...], names: frozenset[str]) -> tuple[tuple[int, Expr], ...]:
    """The dimensions, and their indices, that depend on the loops `names`. Accesses that differ in
    another dimension touch different elements in every iteration.
    """
    return tuple((d, index) for d, index in enumerate(base) if depends_on(index, names))


def _check_reductions(function: LoopFunction, nest: list[For], order: list[For]) -> None:
    """A loop that runs a whole reduction again must stay outside the loops of the reduction."""
    for block in outer_blocks(nest[-1].body):
        reduced = {var.name for var in axis_variables(block, "reduce")}
        for name in repeating_loops(block, nest):
            if _inside(name, reduced, order) - _inside(name, reduced, nest):
                reason = (
                    f"loop {name!r} would run parts of the reduction of block {block.name!r} again"
                )
                raise ScheduleError("reorder", reason, function, name, block.name)


def _inside(name: str, outer: set[str], order: list[For]) -> set[str]:
    """The loops of `outer` that loop `name` stands inside."""
    names = [loop.var.name for loop in order]
    return {n for n in names[: names.index(name)] if n in outer}
