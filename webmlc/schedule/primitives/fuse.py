"""`fuse`: perfectly nested loops become one.

for i, j in T.grid(4, 8):          for i_j in T.serial(32):
    with T.block("C"):        ->       with T.block("C"):
        vi, vj = ...(i, j)                 vi, vj = ...(i_j // 8, i_j % 8)
"""

from __future__ import annotations

from webmlc.core.expr import Const, Expr, Var
from webmlc.core.simplify import simplify
from webmlc.loops.ir import For, LoopFunction
from webmlc.schedule.errors import ScheduleError
from webmlc.schedule.legality import require_serial
from webmlc.schedule.tree import (
    depends_on,
    fresh,
    interval_of,
    path_to_loop,
    ranges_along,
    rebind,
    replace_last,
    symbol_ranges,
    used_names,
)
from webmlc.schedule.update import with_body


def fuse(function: LoopFunction, *loops: str) -> tuple[LoopFunction, str]:
    """Fuse `loops`, outermost first. Each loop is the only statement of the loop before it.

    Returns the function and the new loop's name, the old names joined by `_`. Raises
    `ScheduleError` if the loops are not perfectly nested, or if an extent depends on another of the
    loops.
    """
    if not loops:
        raise ScheduleError("fuse", "needs at least one loop", function)
    path, first = path_to_loop(function, "fuse", loops[0])
    nest = [first]
    for name in loops[1:]:
        inner = nest[-1].body
        if not isinstance(inner, For) or inner.var.name != name:
            reason = f"loop {name!r} is not the only statement of loop {nest[-1].var.name!r}"
            raise ScheduleError("fuse", reason, function, nest[-1].var.name, name)
        nest.append(inner)
    for loop in nest:
        require_serial("fuse", function, loop)
        if depends_on(loop.extent, frozenset(loops)):
            reason = (
                f"the extent {loop.extent} of loop {loop.var.name!r} depends on a loop fused with "
                "it"
            )
            raise ScheduleError("fuse", reason, function, *loops)
    if len(nest) == 1:
        return function, loops[0]
    total: Expr = Const(1)
    for loop in nest:
        total = total * loop.extent
    total = simplify(total, symbol_ranges(function))
    fused = Var(fresh("_".join(loops), used_names(function)))
    ranges = ranges_along(function, path[:-1])
    ranges[fused] = interval_of(total, ranges)
    body = rebind(nest[-1].body, _parts(fused, nest), ranges)
    return with_body(function, replace_last(path, For(fused, total, body))), fused.name


def _parts(fused: Var, nest: list[For]) -> dict[Var, Expr]:
    """Each old loop variable as an expression of the fused variable."""
    parts: dict[Var, Expr] = {}
    below: Expr = Const(1)
    for loop in reversed(nest):
        quotient = fused // below
        parts[loop.var] = quotient if loop is nest[0] else quotient % loop.extent
        below = below * loop.extent
    return parts
