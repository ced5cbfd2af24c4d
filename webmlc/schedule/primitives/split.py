"""`split`: one loop becomes a nest of loops.

    for i in T.serial(100):            for i_0, i_1 in T.grid(13, 8):
        with T.block("C"):        ->       with T.block("C"):
            vi = ...(i)                        T.where(i_0 * 8 + i_1 < 100)
                                               vi = ...(i_0 * 8 + i_1)

The predicate appears only where the factors do not divide the extent.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from webmlc.core.expr import Const, Expr, Var, as_int
from webmlc.core.simplify import divides, prove_equal, simplify
from webmlc.loops.ir import For, LoopFunction, grid
from webmlc.schedule.errors import ScheduleError
from webmlc.schedule.legality import require_serial
from webmlc.schedule.tree import (
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


def split(
    function: LoopFunction, loop: str, factors: Sequence[int | None]
) -> tuple[LoopFunction, tuple[str, ...]]:
    """Split `loop` into a nest of `factors` iterations, outermost first. One factor may be `None`:
    it covers the rest of the loop.

    Returns the function and the new loops' names, `<loop>_0`, `<loop>_1`, ... Raises
    `ScheduleError` if the factors cover less than the extent, or are not positive.
    """
    path, old = path_to_loop(function, "split", loop)
    require_serial("split", function, old)
    extents, exact = _extents(function, old, factors)
    taken_names = used_names(function)
    new = [Var(fresh(f"{loop}_{position}", taken_names)) for position in range(len(extents))]
    index: Expr = Const(0)
    ranges = ranges_along(function, path[:-1])
    for var, extent in zip(new, extents, strict=True):
        index = index * extent + var
        ranges[var] = interval_of(extent, ranges)
    index = simplify(index, ranges)
    guard = None if exact else index < old.extent
    body = rebind(old.body, {old.var: index}, ranges, guard)
    nest = grid(tuple(zip(new, extents, strict=True)), body)
    return with_body(function, replace_last(path, nest)), tuple(var.name for var in new)


def _extents(
    function: LoopFunction, loop: For, factors: Sequence[int | None]
) -> tuple[list[Expr], bool]:
    """The extents of the new loops, and whether they cover the old loop exactly."""
    name, extent = loop.var.name, loop.extent
    numbers = [factor for factor in factors if factor is not None]
    if not factors or len(numbers) < len(factors) - 1 or any(factor < 1 for factor in numbers):
        reason = f"factors {list(factors)} must be positive, with at most one None"
        raise ScheduleError("split", reason, function, name)
    product = math.prod(numbers)
    symbols = symbol_ranges(function)
    if len(numbers) == len(factors):
        exact = prove_equal(extent, Const(product), symbols)
        size = as_int(extent)
        if not exact and (size is None or size > product):
            reason = (
                f"factors {list(factors)} cover {product} of the {extent} iterations of loop "
                f"{name!r}"
            )
            raise ScheduleError("split", reason, function, name)
        return [Const(factor) for factor in numbers], exact
    exact = divides(product, extent, symbols)
    missing_factor = simplify(
        extent // product if exact else (extent + (product - 1)) // product, symbols
    )
    return [missing_factor if factor is None else Const(factor) for factor in factors], exact
