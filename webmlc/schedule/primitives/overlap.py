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

from webmlc.core.expr import Const, Expr, Var, as_int, minimum
from webmlc.core.simplify import simplify
from webmlc.loops.ir import (
    Block,
    For,
    LoopFunction,
    Stmt,
    grid,
    loads,
    map_statements,
    stores,
    walk_statements,
)
from webmlc.schedule.errors import ScheduleError
from webmlc.schedule.legality import require_data_parallel, require_own_locals, require_serial
from webmlc.schedule.nest import axis_variables
from webmlc.schedule.tree import (
    conjoin,
    fresh,
    interval_of,
    path_to_loop,
    ranges_along,
    rebind,
    replace_last,
    simplified_condition,
    used_names,
)
from webmlc.schedule.update import with_body

_NAME = "overlap"


def overlap(
    function: LoopFunction, loop: str, tiles: int, size: int
) -> tuple[LoopFunction, tuple[str, str]]:
    """Run a loop as `tiles` tiles of `size` iterations, which together cover the loop.

    Returns the function and the names of the two loops. Raises `ScheduleError` if the tiles do not
    cover the loop, if a tile is longer than the loop, if a reduce axis runs along the loop, or if
    the loop shares a `local` buffer with statements outside.
    """
    path, old = path_to_loop(function, _NAME, loop)
    require_serial(_NAME, function, old)
    require_data_parallel(_NAME, function, old)
    require_own_locals(_NAME, function, old)
    extent = as_int(old.extent)
    if extent is None or not 0 < size <= extent:
        reason = f"no tile of {size} fits into the {old.extent} iterations of loop {loop!r}"
        raise ScheduleError(_NAME, reason, function, loop)
    if tiles * size < extent:
        reason = f"{tiles} tiles of {size} do not cover the {extent} iterations of loop {loop!r}"
        raise ScheduleError(_NAME, reason, function, loop)
    taken_names = used_names(function)
    first, second = (Var(fresh(f"{loop}_{position}", taken_names)) for position in range(2))
    ranges = ranges_along(function, path[:-1])
    ranges |= {var: interval_of(Const(n), ranges) for var, n in ((first, tiles), (second, size))}
    index = simplify(minimum(first * size, extent - size) + second, ranges)
    guard = simplified_condition(index >= first * size, ranges)
    body = _guarded(rebind(old.body, {old.var: index}, ranges), old, guard)
    nest = grid(((first, Const(tiles)), (second, Const(size))), body)
    return with_body(function, replace_last(path, nest)), (first.name, second.name)


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
    written = {store.buffer for store in stores(block)}
    if any(buffer.scope != "local" for buffer in written):
        return False
    if block.init is not None:
        return set(axis_variables(block, "reduce")) <= inside
    return not any(load.buffer in written for load in loads(block))
