"""Expand unrolled loops into copies of their body.

Needs: nothing. Runs after `expand_vectors`, which unrolls loops that have no vector form.
Guarantees: no `unrolled` loop of constant extent. The variable is replaced by its value, and loops
and lets inside a copy get fresh names. An unrolled loop of symbolic extent becomes serial.
Expressions are in canonical form again.

before                                             after
    for r in T.unrolled(2):                            C[i * 2] = A[i * 2]
        C[i * 2 + r] = A[i * 2 + r]                    C[i * 2 + 1] = A[i * 2 + 1]
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from webmlc.core.affine import canonical
from webmlc.core.bounds import Ranges
from webmlc.core.dtypes import INDEX
from webmlc.core.expr import Call, Const, Expr, Ramp, Var, as_int
from webmlc.core.rewrite import bottom_up, containing, rewriter
from webmlc.core.simplify import simplify
from webmlc.loops.ir import (
    Binder,
    For,
    Load,
    LoopFunction,
    Stmt,
    map_statements,
    seq,
    substitute_statement,
    walk_statements,
)
from webmlc.target.scoped import Names, drop_trivial, map_scoped, rename_variables, symbol_ranges


def unroll_loops(function: LoopFunction) -> LoopFunction:
    """Expand every unrolled loop of `function`, innermost first."""
    names = Names.of(function)

    def rule(stmt: Stmt) -> Stmt | None:
        match stmt:
            case For(kind="unrolled", var=var, extent=extent, body=body):
                count = as_int(extent)
                if count is None:
                    return replace(stmt, kind="serial")
                copies = [substitute_statement(body, {var: Const(0)})] if count else []
                copies += [rename_bound(body, names, {var: Const(i)}) for i in range(1, count)]
                return seq(*copies)
        return None

    body = map_statements(function.body, rule)
    body = map_scoped(body, symbol_ranges(function), _tidier())
    return replace(function, body=drop_trivial(body))


_NEEDS_RANGES = frozenset(
    {"floordiv", "floormod", "min", "max", "lt", "le", "gt", "ge", "eq", "ne", "select"}
)
"""The operators that only `simplify` folds, because their result depends on the ranges of
variables.
"""


def _tidier() -> Callable[[Expr, Ranges], Expr]:
    """Return a rule that folds what unrolling made constant."""
    fold = rewriter(_tidy_index, containing(Load, Ramp))

    def tidy(expr: Expr, ranges: Ranges) -> Expr:
        if _needs_ranges(expr):
            return simplify(expr, ranges)
        if expr.dtype == INDEX and expr.lanes == 1 and isinstance(expr, Call):
            return canonical(expr)
        return fold(expr)

    return tidy


@bottom_up()
def _needs_ranges(root: Expr) -> bool:
    """True if some part of an expression folds only with the ranges of variables."""
    match root:
        case Call(op=op, args=(*_, last), lanes=1) if op in _NEEDS_RANGES and last.dtype == INDEX:
            return True
    return any(map(_needs_ranges, root.children))


def _tidy_index(node: Expr) -> Expr | None:
    match node:
        case Load(buffer=buffer, indices=indices) if any(isinstance(i, Call) for i in indices):
            return Load(buffer, tuple(canonical(i) if isinstance(i, Call) else i for i in indices))
        case Ramp(base=Call() as base, stride=stride, width=width):
            return Ramp(canonical(base), stride, width)
    return None


def rename_bound(root: Stmt, names: Names, values: Mapping[Var, Expr] | None = None) -> Stmt:
    """Return a copy of `root` whose loops and lets have fresh names, and whose free variables have
    these `values`.
    """
    variables = [s.var for s in walk_statements(root) if isinstance(s, Binder)]
    if not variables:
        return substitute_statement(root, values or {})
    new_variables = {v: Var(names.fresh(v.name), v.dtype) for v in variables}
    return substitute_statement(rename_variables(root, new_variables), values or {})
