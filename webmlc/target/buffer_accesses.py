"""Collect every access to the allocations of a function, with the statements around it.

In: a function without blocks. Out: the accesses of each allocation, in program order.

    >>> collect_accesses(function)[Y]          # for mo in range(9): ... Y[mo * 6 + mi, n] = ...
    [Access(indices=(mo * 6 + mi, n), offset=mo * 384 + mi * 64 + n, is_store=True, ...), ...]
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
"""The statements around an access, outermost first, each with the position of the child to take."""


@dataclass(frozen=True, slots=True)
class Access:
    """A load or store: its indices, the shape of the buffer, the row-major offset, the statements
    around it, and the ranges of the variables in scope.
    """

    indices: tuple[Expr, ...]
    shape: tuple[Expr, ...]
    offset: Expr
    is_store: bool
    path: Path
    scope: Scope

    def loops(self, depth: int | None = None) -> list[For]:
        """The loops around the access, outermost first, in the first `depth` steps of the path."""
        return [stmt for stmt, _ in self.path[:depth] if isinstance(stmt, For)]


def collect_accesses(function: LoopFunction) -> dict[Buffer, list[Access]]:
    """Every access to an allocation of `function`, in program order."""
    accesses: dict[Buffer, list[Access]] = {b: [] for b in function.allocations}

    def visit(stmt: Stmt, path: Path, scope: Scope) -> None:
        inner_path = (*path, (stmt, 0))
        for expr in expressions(stmt):
            for node in walk(expr):
                if isinstance(node, Load) and node.buffer in accesses:
                    index = simplify(offset(node.buffer, node.indices), scope)
                    shape = node.buffer.shape
                    access = Access(node.indices, shape, index, False, inner_path, scope)
                    accesses[node.buffer].append(access)
        match stmt:
            case Store(buffer=buffer, indices=indices) if buffer in accesses:
                index = simplify(offset(buffer, indices), scope)
                access = Access(indices, buffer.shape, index, True, inner_path, scope)
                accesses[buffer].append(access)
            case Seq(statements=statements):
                for position, child in enumerate(statements):
                    visit(child, (*path, (stmt, position)), scope)
            case For(var=var, extent=extent, body=body):
                visit(body, inner_path, {**scope, var: loop_range(extent, scope)})
            case Let(var=var, value=value, body=body):
                inner = {**scope, var: bounds(value, scope)} if var.dtype.is_integer else scope
                visit(body, inner_path, inner)
            case If(then=then, otherwise=otherwise):
                visit(then, inner_path, scope)
                if otherwise is not None:
                    visit(otherwise, (*path, (stmt, 1)), scope)

    visit(function.body, (), symbol_ranges(function))
    return accesses
