"""Primitives that make several loops of one, or one of several."""

from __future__ import annotations

import math
from collections.abc import Sequence

from webmlc.core.bounds import iterations
from webmlc.core.expr import Const, Expr, Var, as_int
from webmlc.core.simplify import divides, prove_equal, simplify
from webmlc.loops.ir import For, grid
from webmlc.schedule.edit import Edit
from webmlc.schedule.tree import depends_on, rebind


def split(edit: Edit, loop: str, factors: Sequence[int | None]) -> tuple[str, ...]:
    """Split `loop` into a nest of `factors` iterations, outermost first. One factor may be `None`:
    it covers the rest of the loop.

    for i in T.serial(100):            for i_0, i_1 in T.grid(13, 8):
        with T.block("C"):        ->       with T.block("C"):
            vi = ...(i)                        T.where(i_0 * 8 + i_1 < 100)
                                               vi = ...(i_0 * 8 + i_1)

    The predicate appears only where the factors do not divide the extent. Returns the new loops,
    `<loop>_0`, `<loop>_1`, ... Raises `ScheduleError` if the factors cover less than the extent, or
    are not positive.
    """
    path, old = edit.serial_loop(loop)
    extents, is_exact = _extents(edit, old, factors)
    new = [edit.var(f"{loop}_{position}") for position in range(len(extents))]
    index: Expr = Const(0)
    ranges = edit.ranges(path[:-1])
    for var, extent in zip(new, extents, strict=True):
        index = index * extent + var
        ranges[var] = iterations(extent, ranges)
    index = simplify(index, ranges)
    guard = None if is_exact else index < old.extent
    body = rebind(old.body, {old.var: index}, ranges, guard)
    edit.put(path, grid(zip(new, extents, strict=True), body))
    return tuple(var.name for var in new)


def _extents(edit: Edit, loop: For, factors: Sequence[int | None]) -> tuple[list[Expr], bool]:
    """The extents of the new loops, and whether they cover the old loop exactly."""
    name, extent = loop.var.name, loop.extent
    numbers = [factor for factor in factors if factor is not None]
    if not factors or len(numbers) < len(factors) - 1 or any(factor < 1 for factor in numbers):
        edit.refuse(f"factors {list(factors)} must be positive, with at most one None", name)
    product, symbols = math.prod(numbers), edit.ranges()
    if len(numbers) == len(factors):
        is_exact = prove_equal(extent, Const(product), symbols)
        size = as_int(extent)
        if not is_exact and (size is None or size > product):
            covered = f"{product} of the {extent} iterations of loop {name!r}"
            edit.refuse(f"factors {list(factors)} cover {covered}", name)
        return [Const(factor) for factor in numbers], is_exact
    is_exact = divides(product, extent, symbols)
    missing_factor = simplify(
        extent // product if is_exact else (extent + (product - 1)) // product, symbols
    )
    return [missing_factor if factor is None else Const(factor) for factor in factors], is_exact


def fuse(edit: Edit, *loops: str) -> str:
    """Fuse `loops`, outermost first. Each loop is the only statement of the loop before it.

    for i, j in T.grid(4, 8):          for i_j in T.serial(32):
        with T.block("C"):        ->       with T.block("C"):
            vi, vj = ...(i, j)                 vi, vj = ...(i_j // 8, i_j % 8)

    Returns the new loop, the old names joined by `_`. Raises `ScheduleError` if the loops are not
    perfectly nested, or if an extent depends on another of the loops.
    """
    if not loops:
        edit.refuse("needs at least one loop")
    path, first = edit.loop(loops[0])
    nest = [first]
    for name in loops[1:]:
        inner, outer = nest[-1].body, nest[-1].var.name
        if not isinstance(inner, For) or inner.var.name != name:
            edit.refuse(f"loop {name!r} is not the only statement of loop {outer!r}", outer, name)
        nest.append(inner)
    for loop in nest:
        edit.require_serial(loop)
        if depends_on(loop.extent, frozenset(loops)):
            depending = f"the extent {loop.extent} of loop {loop.var.name!r} depends"
            edit.refuse(f"{depending} on a loop fused with it", *loops)
    if len(nest) == 1:
        return loops[0]
    total = simplify(math.prod((loop.extent for loop in nest), start=Const(1)), edit.ranges())
    fused = edit.var("_".join(loops))
    ranges = edit.ranges(path[:-1])
    ranges[fused] = iterations(total, ranges)
    body = rebind(nest[-1].body, _parts(fused, nest), ranges)
    edit.put(path, For(fused, total, body))
    return fused.name


def _parts(fused: Var, nest: list[For]) -> dict[Var, Expr]:
    """Each old loop variable as an expression of the fused variable."""
    parts: dict[Var, Expr] = {}
    below: Expr = Const(1)
    for loop in reversed(nest):
        quotient = fused // below
        parts[loop.var] = quotient if loop is nest[0] else quotient % loop.extent
        below = below * loop.extent
    return parts


def add_unit_loop(edit: Edit, block: str) -> str:
    """Put a loop of one iteration directly around `block`, where steps need a loop: a place to
    compute a producer at, or a thread axis with a single busy thread.

    with T.block("Y"):                     for Y_unit in T.serial(1):
        Y[()] = X[0]               ->          with T.block("Y"):
                                                   Y[()] = X[0]

    Returns the loop, `<block>_unit`.
    """
    path, inner = edit.block(block)
    var = edit.var(f"{block}_unit")
    edit.put(path, For(var, Const(1), inner))
    return var.name
