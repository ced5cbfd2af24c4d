"""Find the work of each workgroup: the statements inside the loops over workgroups."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from webmlc.core.expr import Var
from webmlc.loops.ir import For, Let, LoopFunction, Seq, Stmt, seq

Rewrite = Callable[[Stmt, frozenset[Var]], Stmt]
"""A rewriting of the work of a workgroup. The variables have a value where the work starts."""


def map_sections(function: LoopFunction, rewrite: Rewrite) -> Stmt:
    """The body of a lowered kernel, with the work of each workgroup rewritten."""
    return _map(function.body, rewrite, frozenset(function.symbols))


def _map(stmt: Stmt, rewrite: Rewrite, scope: frozenset[Var]) -> Stmt:
    match stmt:
        case Seq(statements=statements):
            return seq(*(_map(child, rewrite, scope) for child in statements))
        case Let(var=var, body=body):
            return replace(stmt, body=_map(body, rewrite, scope | {var}))
        case For(thread=str() as thread, var=var, body=body) if thread.startswith("blockIdx"):
            inside = scope | {var}
            if isinstance(body, For) and (body.thread or "").startswith("blockIdx"):
                return replace(stmt, body=_map(body, rewrite, inside))
            return replace(stmt, body=rewrite(body, inside))
    return stmt
