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

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar

from webmlc.core.bounds import bounds, iterations
from webmlc.core.expr import Operand, Var, as_expr, as_int
from webmlc.core.simplify import simplify
from webmlc.loops.ir import (
    Block,
    Buffer,
    For,
    Let,
    Stmt,
    map_statements,
    rename_bound,
    replace_buffers,
    seq,
    substitute_statement,
    walk_statements,
)
from webmlc.schedule.edit import Edit
from webmlc.schedule.tree import (
    Intervals,
    rebind,
    simplified_condition,
    uses,
)

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


def partition(edit: Edit, loop: str, at: Operand) -> tuple[Copy, Copy]:
    """Split the iterations of `loop` into [0, at) and [at, extent).

    Returns the two parts. The second part's loops, blocks, axes and own buffers
    are renamed with the suffix `_tail`. Raises `ScheduleError` if `at` does not lie inside the
    loop.
    """
    path, old = edit.serial_loop(loop)
    symbols = edit.ranges()
    at = simplify(as_expr(at), symbols)
    tail_extent = simplify(old.extent - at, symbols)
    if (
        bounds(tail_extent, symbols).low < 0
        or bounds(at, symbols).low < 0
        or 0 in (as_int(at), as_int(tail_extent))
    ):
        reason = f"{at} does not lie inside the {old.extent} iterations of loop {loop!r}"
        edit.refuse(reason, loop)
    buffers = _own_buffers(edit, old)
    outer = edit.ranges(path[:-1])
    ranges = {**outer, old.var: iterations(at, outer)}
    first = For(old.var, at, _settle(old.body, ranges))
    inside = replace_buffers(old.body, buffers)
    copy, loops, new_blocks = _rename(edit, inside)
    tail = edit.var(f"{loop}_tail")
    ranges = {**outer, tail: iterations(tail_extent, outer)}
    body = _settle(rebind(copy, {old.var: simplify(tail + at, ranges)}, ranges), ranges)
    edit.put(path, seq(first, For(tail, tail_extent, body)), *buffers.values())
    return Copy(loop), Copy(tail.name, {loop: tail.name, **loops}, new_blocks)


def _own_buffers(edit: Edit, loop: For) -> dict[Buffer, Buffer]:
    """New allocations for the buffers that nothing outside `loop` uses."""
    inside, total = uses(loop), uses(edit.function.body)
    return {
        buffer: replace(buffer, name=edit.name(f"{buffer.name}_tail"))
        for buffer in edit.function.allocations
        if inside[buffer.name] > 0 and inside[buffer.name] == total[buffer.name]
    }


def _rename(edit: Edit, root: Stmt) -> tuple[Stmt, dict[str, str], dict[str, str]]:
    """A copy of `root` with new names for its loops, lets, blocks and axes. Also returns the new
    names of loops and of blocks, by the old names.
    """
    mapping: dict[Var, Var] = {}
    new_blocks: dict[str, str] = {}
    for stmt in walk_statements(root):
        match stmt:
            case For(var=var) | Let(var=var):
                mapping[var] = Var(edit.name(f"{var.name}_tail"), var.dtype)
            case Block(name=name, axes=axes):
                new_blocks[name] = edit.block_name(f"{name}_tail")
                for axis in axes:
                    mapping[axis.var] = edit.var(f"{axis.var.name}_tail")

    def rule(stmt: Stmt) -> Stmt | None:
        renamed = rename_bound(stmt, mapping)
        match renamed or stmt:
            case Block(name=name) as block:
                return replace(block, name=new_blocks[name])
        return renamed

    copy = substitute_statement(map_statements(root, rule), mapping)
    return copy, {old.name: new.name for old, new in mapping.items()}, new_blocks


def _settle(root: Stmt, ranges: Intervals) -> Stmt:
    """Drop the predicates that always hold in the narrower loop, and the inits of reductions that
    began before.
    """
    inside = dict(ranges)
    for stmt in walk_statements(root):
        if isinstance(stmt, For):
            inside[stmt.var] = iterations(stmt.extent, inside)

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
