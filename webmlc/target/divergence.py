"""Find where the threads of a workgroup may differ, and where they wait for each other.

`differs` takes the variables whose values may differ between threads: loop variables of thread
axes, and variables that are computed from them.
"""

from __future__ import annotations

from collections.abc import Set

from webmlc.core.expr import Expr, Var
from webmlc.core.rewrite import variables, walk
from webmlc.loops.ir import Barrier, Load, Stmt, walk_statements


def reads_memory(expr: Expr) -> bool:
    """True for an expression that contains a load."""
    return any(isinstance(node, Load) for node in walk(expr))


def differs(value: Expr, differing: Set[Var]) -> bool:
    """True for a value that may differ between threads, as all that memory holds may."""
    return reads_memory(value) or not variables(value).isdisjoint(differing)


def has_barrier(stmt: Stmt) -> bool:
    """True where threads wait for each other inside `stmt`."""
    return any(isinstance(s, Barrier) for s in walk_statements(stmt))
