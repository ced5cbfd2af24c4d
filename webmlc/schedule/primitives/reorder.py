"""`reorder`: loops of one nest change places."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from webmlc.core.expr import Expr, as_int
from webmlc.core.rewrite import variables
from webmlc.loops.ir import For, Stmt, inside_loops
from webmlc.schedule.edit import Edit, repeating_loops
from webmlc.schedule.nest import axis_variables
from webmlc.schedule.regions import scan
from webmlc.schedule.tree import Path, depends_on, outer_blocks, uses


def reorder(edit: Edit, *loops: str) -> None:
    """Put `loops` in this order, outermost first, in the places they have now; other loops stay.

    for i, j, k in T.grid(4, 8, 16):        for k, i, j in T.grid(16, 4, 8):
        with T.block("C"): ...         ->       with T.block("C"): ...

    The loops may be given in any order and must lie on one path with no statement beside it between
    them. Raises `ScheduleError` otherwise, and where a loop's extent depends on a loop that would
    come to stand inside it.
    """
    if len(set(loops)) != len(loops) or not loops:
        edit.refuse(f"{list(loops)} must name each loop once", *loops)
    paths = [edit.loop(name)[0] for name in loops]
    top, bottom = min(paths, key=len), max(paths, key=len)
    nest: list[For] = []
    for stmt in bottom[len(top) - 1 :]:
        if not isinstance(stmt, For):
            names = ", ".join(map(repr, loops))
            edit.refuse(f"loops {names} are not perfectly nested in one another", *loops)
        nest.append(stmt)
    by_name = {loop.var.name: loop for loop in nest}
    innermost = nest[-1].var.name
    for name in loops:
        if name not in by_name:
            edit.refuse(
                f"loop {name!r} is not on one path with loop {innermost!r}", name, innermost
            )
    new_order = iter(loops)
    order = [by_name[next(new_order)] if name in loops else by_name[name] for name in by_name]
    _check_extents(edit, order)
    if order != nest:
        _check_blocks(edit, bottom, nest)
        _check_reductions(edit, nest, order)
    edit.put(top, inside_loops(order, nest[-1].body))


def _check_extents(edit: Edit, order: Sequence[For]) -> None:
    inside = {loop.var.name for loop in order}
    for loop in order:
        name = loop.var.name
        if depends_on(loop.extent, inside):
            depending = f"the extent {loop.extent} of loop {name!r} depends"
            edit.refuse(f"{depending} on a loop that would be inside it", name)
        inside.discard(name)


def _check_blocks(edit: Edit, path: Path, nest: Sequence[For]) -> None:
    """Blocks that share a buffer must meet in the same iteration of the moved loops, or the order
    of loops matters.
    """
    names = frozenset(loop.var.name for loop in nest if as_int(loop.extent) != 1)
    shared_buffers = _shared_buffers(nest[-1].body)
    if not shared_buffers:
        return
    scanned = scan(nest[-1].body, edit.ranges(path), shared_buffers)
    for name, accesses in scanned.by_buffer().items():
        blocks = sorted({access.block for access in accesses if access.block is not None})
        if len(blocks) < 2 or not any(access.writes for access in accesses):
            continue
        bases = {_moving(scanned.base(access), names) for access in accesses}
        fixed = {var.name for _, index in next(iter(bases)) for var in variables(index)}
        if len(bases) > 1 or len(names - fixed) > 1:
            sharing = f"blocks {', '.join(map(repr, blocks))} share buffer {name!r}"
            edit.refuse(f"{sharing} across iterations", *blocks)


def _shared_buffers(root: Stmt) -> set[str]:
    """The names of the buffers that several blocks of a statement use."""
    users = Counter(name for block in outer_blocks(root) for name in uses(block))
    return {name for name, count in users.items() if count > 1}


def _moving(base: tuple[Expr, ...], names: frozenset[str]) -> tuple[tuple[int, Expr], ...]:
    """The dimensions, and their indices, that depend on the loops `names`. Accesses that differ in
    another dimension touch different elements in every iteration.
    """
    return tuple((d, index) for d, index in enumerate(base) if depends_on(index, names))


def _check_reductions(edit: Edit, nest: Sequence[For], order: Sequence[For]) -> None:
    """A loop that runs a whole reduction again must stay outside the loops of the reduction."""
    for block in outer_blocks(nest[-1].body):
        reduced = {var.name for var in axis_variables(block, "reduce")}
        for name in repeating_loops(block, nest):
            if _inside(name, reduced, order) - _inside(name, reduced, nest):
                again = f"parts of the reduction of block {block.name!r} again"
                edit.refuse(f"loop {name!r} would run {again}", name, block.name)


def _inside(name: str, outer: set[str], order: Sequence[For]) -> set[str]:
    """The loops of `outer` that loop `name` stands inside."""
    names = [loop.var.name for loop in order]
    return {n for n in names[: names.index(name)] if n in outer}
