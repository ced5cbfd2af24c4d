"""Make new loops around a block that moves: one loop for each axis, over the part of the axis that
is needed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from webmlc.core.bounds import Interval, iterations
from webmlc.core.expr import Const, Expr, Var, as_int
from webmlc.core.rewrite import substitute, variables
from webmlc.core.simplify import simplify
from webmlc.loops.ir import AxisKind, Block, For, Load, Stmt, grid, inside_loops
from webmlc.schedule.edit import Edit
from webmlc.schedule.regions import Span, within
from webmlc.schedule.tree import conjoin, conjuncts, simplified_condition


@dataclass(frozen=True, slots=True)
class Part:
    """The values of one axis that are run: the values of `span` that lie in `domain` (`None`: all
    values of `span`).
    """

    span: Span
    domain: Span | None = None


def nest_block(
    edit: Edit, block: Block, parts: Mapping[Var, Part], ranges: Mapping[Var, Interval]
) -> Stmt:
    """`block` under new serial loops over `parts` (by axis variable), spatial axes outside reduce
    axes.
    """
    inside = dict(ranges)
    loops: dict[str, list[tuple[Var, Expr]]] = {"spatial": [], "reduce": []}
    bindings: list[Expr] = []
    predicate: Expr | None = None
    for axis in block.axes:
        part = clip(parts[axis.var], ranges)
        low, width = part.span.low, part.span.width
        if as_int(width) == 0:
            binding = simplify(low, inside)
        else:
            var = edit.var(loop_name(axis.var))
            extent = simplify(width + 1, inside)
            inside[var] = iterations(extent, inside)
            loops[axis.kind].append((var, extent))
            binding = simplify(low + var, inside)
        bindings.append(binding)
        if part.domain is not None:
            end = simplify(part.domain.low + part.domain.width + 1, inside)
            predicate = conjoin(predicate, binding >= part.domain.low)
            predicate = conjoin(predicate, binding < end)
    predicate = simplified_condition(predicate, inside)
    moved = replace(block, bindings=tuple(bindings), predicate=predicate)
    return grid((*loops["spatial"], *loops["reduce"]), moved)


def clip(part: Part, ranges: Mapping[Var, Interval]) -> Part:
    """Without the domain where the span lies inside it; the domain itself where the span is wider
    than it.
    """
    span, domain = part.span, part.domain
    if domain is None or within(span, domain, ranges):
        return Part(span)
    return Part(domain) if within(domain, span, ranges) else part


def loop_name(axis: Var) -> str:
    """The loop over an axis `vi` or `v_i` is called `i`; over any other, like the axis."""
    name = axis.name
    for prefix in ("v_", "v"):
        if name.startswith(prefix) and name[len(prefix) :].isidentifier():
            return name[len(prefix) :]
    return name


def invert(index: Expr, axes: frozenset[Var]) -> tuple[Var, Expr] | None:
    """The axis and the offset of an index `axis + offset`; `None` if it has another form."""
    used = variables(index) & axes
    if len(used) != 1:
        return None
    (axis,) = used
    offset = simplify(index - axis)
    if axis in variables(offset) or any(
        isinstance(node, Load) for node in (index, *index.children)
    ):
        return None
    return axis, offset


def full(extent: Expr) -> Span:
    """All values of an axis."""
    return Span(Const(0), simplify(extent - 1))


@dataclass(frozen=True, slots=True)
class Copies:
    """Copies of the spatial loops around a block: `mapping` from the old variables to the new
    variables, and the part of the block's predicate that concerns them.
    """

    loops: tuple[For, ...]
    mapping: dict[Var, Expr]
    predicate: Expr | None

    def around(self, block: Block) -> Stmt:
        """`block` inside the loops."""
        return inside_loops(self.loops, block)


def copy_spatial_loops(edit: Edit, block: Block, loops: Sequence[For], suffix: str) -> Copies:
    """Copies of the `loops` along the spatial axes of `block`, without the loops that it reduces
    over.

    Raises `ScheduleError` if a loop or a predicate is along both kinds of axes.
    """
    inner = {loop.var for loop in loops}
    reduced = axis_variables(block, "reduce") & inner
    used = axis_variables(block, "spatial") & inner
    if both := sorted(var.name for var in used & reduced):
        reason = f"loop {both[0]!r} runs along a spatial and a reduce axis of block {block.name!r}"
        edit.refuse(reason, both[0], block.name)
    predicate: Expr | None = None
    for part in conjuncts(block.predicate):
        mentioned = variables(part) & inner
        if mentioned & reduced and mentioned & used:
            reason = (
                f"the predicate {part} of block {block.name!r} ties its reduction to its output"
            )
            edit.refuse(reason, block.name)
        if not mentioned & reduced:
            predicate = conjoin(predicate, part)
            used |= mentioned
    mapping: dict[Var, Expr] = {}
    copies: list[For] = []
    for loop in loops:
        if loop.var in used:
            new = edit.var(f"{loop.var.name}_{suffix}")
            copies.append(replace(loop, var=new, extent=substitute(loop.extent, mapping)))
            mapping[loop.var] = new
    if predicate is not None:
        predicate = substitute(predicate, mapping)
    return Copies(tuple(copies), mapping, predicate)


def axis_variables(block: Block, kind: AxisKind) -> frozenset[Var]:
    """The loop variables in the bindings of the axes of one kind."""
    return frozenset(v for a, b in block.bound_axes() if a.kind == kind for v in variables(b))
