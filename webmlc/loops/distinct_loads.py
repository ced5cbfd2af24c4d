"""Collect the loads of a statement."""

from __future__ import annotations

from webmlc.loops.ir import Load, Stmt, expressions, loads_in, walk_statements


def distinct_loads(root: Stmt) -> set[Load]:
    """Every different load in `root`, in much less time than `loads` yields them all."""
    roots = {expr for stmt in walk_statements(root) for expr in expressions(stmt)}
    return set[Load]().union(*map(loads_in, roots))
