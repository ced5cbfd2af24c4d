"""`overlap`: a loop becomes two loops over full tiles: the last tiles begin early enough to fit.

    for i in T.serial(50):             for i_0, i_1 in T.grid(4, 16):
        with T.block("C"):        ->       with T.block("C"):
            vi = ...(i)                        T.where(i_0 * 16 <= T.min(i_0 * 16, 34) + i_1)
                                               vi = ...(T.min(i_0 * 16, 34) + i_1)

So no tile is smaller than another. A block that only fills `local` buffers runs twice for the
iterations that two tiles share. All other blocks are predicated, so that each iteration runs once.
"""

from __future__ import annotations

from dataclasses import replace

from webmlc.core.bounds import iterations
from webmlc.core.expr import Const, Expr, Var, as_int, minimum
from webmlc.core.simplify import simplify
from webmlc.loops.ir import (
    Block,
    For,
    Stmt,
    grid,
    map_statements,
    stores,
    walk_statements,
)
from webmlc.schedule.edit import Edit
from webmlc.schedule.nest import axis_variables
from webmlc.schedule.tree import (
    conjoin,
    reads,
    rebind,
    simplified_condition,
    writes,
)


def overlap(edit: Edit, loop: str, tiles: int, size: int) -> tuple[str, str]:
    """Run a loop as `tiles` tiles of `size` iterations, which together cover the loop.

    Returns the loop over tiles and the loop within a tile. Raises `ScheduleError` if the tiles do
    not cover the loop, if a tile is longer than the loop, if a reduce axis runs along the loop, or
    if the loop shares a `local` buffer with statements outside.
    """
    path, old = edit.serial_loop(loop)
    edit.require_data_parallel(old)
    edit.require_own_locals(old)
    extent = as_int(old.extent)
    if extent is None or not 0 < size <= extent:
        reason = f"no tile of {size} fits into the {old.extent} iterations of loop {loop!r}"
        edit.refuse(reason, loop)
    if tiles * size < extent:
        reason = f"{tiles} tiles of {size} do not cover the {extent} iterations of loop {loop!r}"
        edit.refuse(reason, loop)
    first, second = (edit.var(f"{loop}_{position}") for position in range(2))
    ranges = edit.ranges(path[:-1])
    ranges |= {var: iterations(Const(n), ranges) for var, n in ((first, tiles), (second, size))}
    index = simplify(minimum(first * size, extent - size) + second, ranges)
    guard = simplified_condition(index >= first * size, ranges)
    body = _guarded(rebind(old.body, {old.var: index}, ranges), old, guard)
    edit.put(path, grid(((first, Const(tiles)), (second, Const(size))), body))
    return first.name, second.name


def _guarded(body: Stmt, loop: For, guard: Expr | None) -> Stmt:
    """Add the guard to the blocks under a loop that must run once for each of its iterations."""
    inside = {stmt.var for stmt in walk_statements(loop.body) if isinstance(stmt, For)}

    def rule(stmt: Stmt) -> Stmt | None:
        if isinstance(stmt, Block) and not _may_run_again(stmt, inside):
            return replace(stmt, predicate=conjoin(stmt.predicate, guard))
        return None

    return map_statements(body, rule)


def _may_run_again(block: Block, inside: set[Var]) -> bool:
    """True for a block that writes only `local` buffers, and does not update them, or runs its init
    each time because the loops of its reduction are `inside`.
    """
    if any(store.buffer.scope != "local" for store in stores(block)):
        return False
    if block.init is not None:
        return set(axis_variables(block, "reduce")) <= inside
    return writes(block).isdisjoint(reads(block))
