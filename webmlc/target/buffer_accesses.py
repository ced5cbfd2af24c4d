"""Collect every access to the allocations of a function, with the statements that lead to it.

In: a function whose blocks (`loops.ir.Block`) are lowered to loops and stores. Out: the accesses of
each allocation, in program order: the loads of a store come before it. Accesses of parameters are
left out. `compact_buffers` shrinks allocations to the accessed region.

    >>> # Y of shape (54, 64); for mo, mi, n in grid(9, 6, 64): Y[mo * 6 + mi, n] = 0
    >>> collect_accesses(function)[Y]
    [Access(indices=(mo * 6 + mi, n), offset=mo * 384 + mi * 64 + n, is_store=True, ...)]
"""

from __future__ import annotations

from dataclasses import dataclass

from webmlc.core.bounds import bounds
from webmlc.core.expr import Expr
from webmlc.core.rewrite import walk
from webmlc.core.simplify import simplify
from webmlc.loops.ir import (
    Buffer,
    For,
    If,
    Let,
    Load,
    LoopFunction,
    Seq,
    Stmt,
    Store,
    expressions,
)
from webmlc.target.flatten_buffers import offset
from webmlc.target.scoped import Scope, loop_range, symbol_ranges

Path = tuple[tuple[Stmt, int], ...]
"""The statements from the body of a function to an access, outermost first. The last statement
performs the access. Each statement has the number of the child that leads to the access: a place in
a `Seq`, 0 or 1 for the branches of an `If`, else 0.
"""


@dataclass(frozen=True, slots=True)
class Access:
    """A load or store: its indices, the shape of the buffer, the row-major offset, the path to it,
    and the ranges of the integer variables in scope. Conditions do not narrow these.
    """

    indices: tuple[Expr, ...]
    shape: tuple[Expr, ...]
    offset: Expr
    is_store: bool
    path: Path
    scope: Scope

    def loops(self, depth: int | None = None) -> list[For]:
        """The loops among the first `depth` statements of the path, outermost first. For a load in
        the extent of a loop, that loop is among them.
        """
        return [stmt for stmt, _ in self.path[:depth] if isinstance(stmt, For)]


def collect_accesses(function: LoopFunction) -> dict[Buffer, list[Access]]:
    """Every access to an allocation of `function`, in program order."""
    accesses: dict[Buffer, list[Access]] = {b: [] for b in function.allocations}

    def visit(stmt: Stmt, path: Path, scope: Scope) -> None:
        path_here = (*path, (stmt, 0))

        def add(access: Load | Store, is_store: bool) -> None:
            buffer, indices = access.buffer, access.indices
            if buffer in accesses:
                place = simplify(offset(buffer, indices), scope)
                record = Access(indices, buffer.shape, place, is_store, path_here, scope)
                accesses[buffer].append(record)

        for expr in expressions(stmt):
            for node in walk(expr):
                if isinstance(node, Load):
                    add(node, is_store=False)
        match stmt:
            case Store():
                add(stmt, is_store=True)
            case Seq(statements=statements):
                for position, child in enumerate(statements):
                    visit(child, (*path, (stmt, position)), scope)
            case For(var=var, extent=extent, body=body):
                visit(body, path_here, {**scope, var: loop_range(extent, scope)})
            case Let(var=var, value=value, body=body):
                inner = {**scope, var: bounds(value, scope)} if var.dtype.is_integer else scope
                visit(body, path_here, inner)
            case If(then=then, otherwise=otherwise):
                visit(then, path_here, scope)
                if otherwise is not None:
                    visit(otherwise, (*path, (stmt, 1)), scope)

    visit(function.body, (), symbol_ranges(function))
    return accesses
