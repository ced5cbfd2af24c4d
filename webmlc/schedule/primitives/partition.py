"""`partition`: a loop becomes two consecutive loops, so that a remainder needs no predicate.

    for i in T.serial(50):             for i in T.serial(48):
        with T.block("C"):        ->       with T.block("C"):
            vi = ...(i)                        vi = ...(i)
                                       for i_tail in T.serial(2):
                                           with T.block("C_tail"):
                                               vi_tail = ...(i_tail + 48)

Buffers that only the loop uses are allocated again for the second part. Each part is a `Copy` of
the loop's body:

    for i in T.serial(48): ...      # Copy("i")
    for i_tail in T.serial(2): ...  # Copy("i_tail", loops={"i": "i_tail"}, blocks={"C": "C_tail"})
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar

from webmlc.core.bounds import bounds
from webmlc.core.expr import Expr, Operand, Var, as_expr, as_int
from webmlc.core.simplify import simplify
from webmlc.loops.ir import (
    Axis,
    Block,
    Buffer,
    For,
    If,
    Let,
    LoopFunction,
    Seq,
    Stmt,
    loads,
    map_statements,
    replace_buffers,
    seq,
    stores,
    substitute_statement,
    walk_statements,
)
from webmlc.schedule.errors import ScheduleError
from webmlc.schedule.legality import require_serial
from webmlc.schedule.tree import (
    Intervals,
    block_names,
    fresh,
    interval_of,
    path_to_loop,
    ranges_along,
    rebind,
    replace_last,
    simplified_condition,
    symbol_ranges,
    used_names,
)
from webmlc.schedule.update import with_body

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Copy:
    """A part of a partitioned loop: its `loop`, and the names that it has for the loops and blocks
    of the whole. Other names stayed the same.
    """

    loop: str
    loops: Mapping[str, str] = field(default_factory=dict)
    blocks: Mapping[str, str] = field(default_factory=dict)

    def with_loops(self, record: R) -> R:
        """A dataclass whose fields are names of loops, in this copy."""
        return _renamed(record, self.loops)

    def with_blocks(self, record: R) -> R:
        """A dataclass whose fields are names of blocks, in this copy."""
        return _renamed(record, self.blocks)

    def of(self, part: Copy) -> Copy:
        """This part of a part, which has names for the loops and blocks of the whole."""
        return Copy(
            self.loop,
            {**self.loops, **{n: self.loops.get(m, m) for n, m in part.loops.items()}},
            {**self.blocks, **{n: self.blocks.get(m, m) for n, m in part.blocks.items()}},
        )


def _renamed(record: R, names: Mapping[str, str]) -> R:
    """A dataclass whose fields, or their items, have other names."""

    def renamed(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map(renamed, value))
        return names.get(value, value) if isinstance(value, str) else value

    of_fields: Any = record
    parts = {f.name: renamed(getattr(record, f.name)) for f in fields(of_fields)}
    return replace(of_fields, **parts)  # type: ignore[no-any-return]


def partition(
    function: LoopFunction, loop: str, at: Operand
) -> tuple[LoopFunction, tuple[Copy, Copy]]:
    """Split the iterations of `loop` into [0, at) and [at, extent).

    Returns the function and its two parts. The second part's loops, blocks, axes and own buffers
    are renamed with the suffix `_tail`. Raises `ScheduleError` if `at` does not lie inside the
    loop.
    """
    path, old = path_to_loop(function, "partition", loop)
    require_serial("partition", function, old)
    symbols = symbol_ranges(function)
    at = simplify(as_expr(at), symbols)
    tail_extent = simplify(old.extent - at, symbols)
    if (
        bounds(tail_extent, symbols).low < 0
        or bounds(at, symbols).low < 0
        or 0 in (as_int(at), as_int(tail_extent))
    ):
        reason = f"{at} does not lie inside the {old.extent} iterations of loop {loop!r}"
        raise ScheduleError("partition", reason, function, loop)
    taken_names = used_names(function)
    buffers = _own_buffers(function, old, taken_names)
    outer = ranges_along(function, path[:-1])
    ranges = {**outer, old.var: interval_of(at, outer)}
    first = For(old.var, at, _settle(old.body, ranges))
    inside = replace_buffers(old.body, buffers)
    copy, loops, new_blocks = _rename(inside, taken_names, block_names(function))
    tail = Var(fresh(f"{loop}_tail", taken_names))
    ranges = {**outer, tail: interval_of(tail_extent, outer)}
    body = _settle(rebind(copy, {old.var: simplify(tail + at, ranges)}, ranges), ranges)
    body_after = replace_last(path, seq(first, For(tail, tail_extent, body)))
    allocations = (*function.allocations, *buffers.values())
    parts = Copy(loop), Copy(tail.name, {loop: tail.name, **loops}, new_blocks)
    return with_body(function, body_after, allocations), parts


def _own_buffers(function: LoopFunction, loop: For, taken_names: set[str]) -> dict[Buffer, Buffer]:
    """New allocations for the buffers that nothing outside `loop` uses."""
    inside = _uses(loop)
    total = _uses(function.body)
    return {
        buffer: replace(buffer, name=fresh(f"{buffer.name}_tail", taken_names))
        for buffer in function.allocations
        if inside[buffer.name] > 0 and inside[buffer.name] == total[buffer.name]
    }


def _uses(stmt: Stmt) -> Counter[str]:
    names = [load.buffer.name for load in loads(stmt)]
    return Counter(names + [store.buffer.name for store in stores(stmt)])


def _rename(
    root: Stmt, taken_names: set[str], taken_blocks: set[str]
) -> tuple[Stmt, dict[str, str], dict[str, str]]:
    """A copy of `root` with new names for its loops, lets, blocks and axes. Also returns the new
    names of loops and of blocks, by the old names.
    """
    mapping: dict[Var, Expr] = {}
    new_blocks: dict[str, str] = {}
    for stmt in walk_statements(root):
        match stmt:
            case For(var=var) | Let(var=var):
                mapping[var] = Var(fresh(f"{var.name}_tail", taken_names), var.dtype)
            case Block(axes=axes):
                for axis in axes:
                    if axis.var not in mapping:
                        mapping[axis.var] = Var(fresh(f"{axis.var.name}_tail", taken_names))

    def renamed(var: Var) -> Var:
        new = mapping[var]
        assert isinstance(new, Var)
        return new

    def visit(stmt: Stmt) -> Stmt:
        match stmt:
            case Seq(statements=statements):
                return Seq(tuple(visit(s) for s in statements))
            case For(var=var, body=body) | Let(var=var, body=body):
                return replace(stmt, var=renamed(var), body=visit(body))
            case If(then=then, otherwise=otherwise):
                other = None if otherwise is None else visit(otherwise)
                return replace(stmt, then=visit(then), otherwise=other)
            case Block(name=name, axes=axes, body=body, init=init):
                new_blocks[name] = fresh(f"{name}_tail", taken_blocks)
                return replace(
                    stmt,
                    name=new_blocks[name],
                    axes=tuple(Axis(renamed(a.var), a.extent, a.kind) for a in axes),
                    body=visit(body),
                    init=None if init is None else visit(init),
                )
        return stmt

    copy = substitute_statement(visit(root), mapping)
    return copy, {old.name: str(new) for old, new in mapping.items()}, new_blocks


def _settle(root: Stmt, ranges: Intervals) -> Stmt:
    """Drop the predicates that always hold in the narrower loop, and the inits of reductions that
    began before.
    """
    inside = dict(ranges)
    for stmt in walk_statements(root):
        if isinstance(stmt, For):
            inside[stmt.var] = interval_of(stmt.extent, inside)

    def rule(stmt: Stmt) -> Stmt | None:
        match stmt:
            case Block(predicate=predicate, init=init):
                if predicate is not None:
                    predicate = simplified_condition(predicate, inside)
                for axis, binding in stmt.bound_axes():
                    if axis.kind == "reduce" and bounds(binding, inside).low > 0:
                        init = None
                if predicate is not stmt.predicate or init is not stmt.init:
                    return replace(stmt, predicate=predicate, init=init)
        return None

    return map_statements(root, rule)
