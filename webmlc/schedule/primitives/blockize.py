"""`blockize`: a loop and its body become a block, which primitives then move as one.

for i0, k0, i1, k1 in T.grid(16, 8, 4, 4):     for i0, k0 in T.grid(16, 8):
    with T.block("Y"):                             with T.block("Y_o"):
        vi = T.axis.spatial(64, i0 * 4 + i1)           vio, vko = T.axis.remap("SR", [i0, k0])
        vk = T.axis.reduce(32, k0 * 4 + k1)   ->       for i1, k1 in T.grid(4, 4):
        Y[vi] += A[vi, vk]                                 with T.block("Y"):
                                                               vi = ...(64, vio * 4 + i1)
                                                               vk = ...(32, vko * 4 + k1)
                                                               Y[vi] += A[vi, vk]
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from webmlc.core.expr import Const, Expr, Var, as_int
from webmlc.core.rewrite import substitute, variables
from webmlc.core.simplify import divides, prove_equal, simplify
from webmlc.loops.ir import (
    Axis,
    Block,
    For,
    LoopFunction,
    Stmt,
    grid,
    substitute_statement,
)
from webmlc.schedule.errors import ScheduleError
from webmlc.schedule.regions import Scan, relax
from webmlc.schedule.tree import (
    Intervals,
    block_names,
    fresh,
    path_to_loop,
    ranges_along,
    replace_last,
    used_names,
)
from webmlc.schedule.update import with_body

_NAME = "blockize"


@dataclass(frozen=True, slots=True)
class Tile:
    """A binding as `outer · size + inner`: `inner` covers 0 to `size` - 1 over the inner loops."""

    outer: Expr
    size: int
    inner: Expr


def blockize(function: LoopFunction, loop: str) -> tuple[LoopFunction, str]:
    """Make a block of `loop`, the loops inside it and their only block.

    The init of a reduction moves to the new block, over the loops of spatial axes. Returns the
    function and the new block's name, `<block>_o`. Raises `ScheduleError` if the loops are not a
    perfect nest around one block, or do not run over whole tiles of its axes.
    """
    path, target = path_to_loop(function, _NAME, loop)
    loops, block = _perfect_nest(function, target)
    ranges = ranges_along(function, (*path, *loops[1:]))
    inner = {each.var for each in loops}
    if block.predicate is not None and variables(block.predicate) & inner:
        reason = f"block {block.name!r} has the predicate {block.predicate} on the inner loops"
        raise ScheduleError(_NAME, reason, function, block.name)
    taken_names = used_names(function)
    axes: list[Axis] = []
    outer_bindings: list[Expr] = []
    bindings: list[Expr] = []
    for axis, binding in block.bound_axes():
        tile = _tile(function, block, axis, binding, loops, ranges)
        var = Var(fresh(f"{axis.var.name}o", taken_names))
        extent = simplify((axis.extent + (tile.size - 1)) // tile.size, ranges)
        axes.append(Axis(var, extent, axis.kind))
        outer_bindings.append(tile.outer)
        bindings.append(simplify(var * tile.size + tile.inner, ranges))
    names = block_names(function)
    name = fresh(f"{block.name}_o", names)
    init = None
    if block.init is not None:
        init = _init(block, bindings, loops, fresh(f"{block.name}_init", names), taken_names)
    body = replace(block, bindings=tuple(bindings), init=None, predicate=None)
    nest: Stmt = body
    for each in reversed(loops):
        nest = replace(each, body=nest)
    new = Block(name, tuple(axes), tuple(outer_bindings), nest, init, block.predicate)
    return with_body(function, replace_last(path, new)), name


def _perfect_nest(function: LoopFunction, target: For) -> tuple[list[For], Block]:
    loops = [target]
    while isinstance(loops[-1].body, For):
        loops.append(loops[-1].body)
    block = loops[-1].body
    if not isinstance(block, Block):
        reason = f"the loops from {target.var.name!r} inwards hold more than one block"
        raise ScheduleError(_NAME, reason, function, target.var.name)
    bound = {loop.var for loop in loops}
    for loop in loops:
        if variables(loop.extent) & bound:
            reason = f"the extent of loop {loop.var.name!r} depends on another loop"
            raise ScheduleError(_NAME, reason, function, loop.var.name)
    return loops, block


def _tile(
    function: LoopFunction,
    block: Block,
    axis: Axis,
    binding: Expr,
    loops: list[For],
    ranges: Intervals,
) -> Tile:
    """The binding taken apart; the inner loops must run over whole tiles of the axis."""
    inner_vars = {loop.var: loop.extent for loop in loops}
    outer_vars = variables(binding) - inner_vars.keys()
    zeros: dict[Var, Expr] = dict.fromkeys(inner_vars, Const(0))
    outer = simplify(substitute(binding, zeros), ranges)
    inner = simplify(binding - outer, ranges)
    reason = (
        f"the loops from {loops[0].var.name!r} inwards do not run over whole tiles of axis "
        f"{axis.var.name!r} of block {block.name!r}"
    )
    span = relax(inner, Scan(inner=inner_vars, ranges=ranges))
    size = None if span is None else as_int(simplify(span.width + 1, ranges))
    if span is None or size is None or variables(inner) & outer_vars or not span.exact:
        raise ScheduleError(_NAME, reason, function, block.name, loops[0].var.name)
    symbols = {var: interval for var, interval in ranges.items() if var in function.symbols}
    whole = divides(size, outer, ranges) and (
        divides(size, axis.extent, symbols) or prove_equal(axis.extent, Const(size), symbols)
    )
    if not whole or span.low != Const(0):
        raise ScheduleError(_NAME, reason, function, block.name, loops[0].var.name)
    return Tile(simplify(outer // size, ranges), size, inner)


def _init(
    block: Block, bindings: list[Expr], loops: list[For], name: str, taken_names: set[str]
) -> Stmt:
    """The init over copies of the loops of spatial axes, as a block of its own."""
    assert block.init is not None
    pairs = [
        (axis, binding)
        for axis, binding in zip(block.axes, bindings, strict=True)
        if axis.kind == "spatial"
    ]
    used = frozenset[Var]().union(*(variables(binding) for _, binding in pairs))
    copies: dict[Var, Expr] = {
        loop.var: Var(fresh(f"{loop.var.name}_init", taken_names))
        for loop in loops
        if loop.var in used
    }
    renamed: dict[Var, Expr] = {
        axis.var: Var(fresh(f"{axis.var.name}_init", taken_names)) for axis, _ in pairs
    }
    axes = [Axis(_var(renamed[axis.var]), axis.extent, "spatial") for axis, _ in pairs]
    body = Block(
        name,
        tuple(axes),
        tuple(substitute(binding, copies) for _, binding in pairs),
        substitute_statement(block.init, renamed),
    )
    nest = [(_var(copies[loop.var]), loop.extent) for loop in loops if loop.var in copies]
    return grid(tuple(nest), body)


def _var(expr: Expr) -> Var:
    assert isinstance(expr, Var)
    return expr
