"""Compute the parts of long size expressions once, where they are used several times.

Needs: the form that is printed. Guarantees: no expression prints much longer than its shared form.
A part that is used more than once, and reads no memory, is bound just before its statement. Short
expressions stay as they are. The minimum of two integers prints as a `select` that names both
operands twice, so thirty nested minima would be 2³⁰ instructions.

before                                             after
    for i in range(select(a < b, a, b)): ...           s = a
                                                       s_1 = b
                                                       for i in range(select(s < s_1, s, s_1)): ...
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from operator import attrgetter

from webmlc.core.expr import Call, Const, Expr, Var
from webmlc.core.rewrite import bottom_up, postorder, walk, written_out
from webmlc.loops.ir import Load, LoopFunction, Stmt, expressions, map_expressions, map_statements
from webmlc.target.scoped import Names, join_lets

MAX_WRITTEN_NODES = 2000
"""The nodes of an expression, counting a shared node once per use, above which its parts are bound.
Chosen by hand: the kernels of known models stay below it.
"""

_DIVISIONS = frozenset({"floordiv", "floormod", "truncdiv", "truncmod"})
"""The operators that trap where the divisor is 0."""


def share_values(function: LoopFunction) -> LoopFunction:
    """Bind the values that long expressions of `function` use more than once."""
    names = Names.of(function)

    def rule(stmt: Stmt) -> Stmt | None:
        long = [e for e in expressions(stmt) if written_out(e) > MAX_WRITTEN_NODES]
        lets, values = _bound(long, names)
        if not lets:
            return None
        return join_lets([*lets, map_expressions(stmt, lambda e: values.get(e, e))])

    return replace(function, body=map_statements(function.body, rule))


def _bound(roots: Sequence[Expr], names: Names) -> tuple[list[tuple[Var, Expr]], dict[Expr, Expr]]:
    """The values to bind, in order, and the new form of every node."""
    uses = Counter(child for root in roots for node in set(walk(root)) for child in node.children)
    lets: list[tuple[Var, Expr]] = []
    results: dict[Expr, Expr] = {}
    for root in roots:
        for node in postorder(root, attrgetter("children"), results):
            children = node.children
            new = node.rebuild(tuple(results[child] for child in children)) if children else node
            if uses[node] > 1 and children and node.lanes == 1 and _is_safe_anywhere(node):
                var = Var(names.fresh("s"), node.dtype)
                lets.append((var, new))
                new = var
            results[node] = new
    return lets, results


@bottom_up()
def _is_safe_anywhere(node: Expr) -> bool:
    """True where evaluating a node reads no memory and cannot trap, wherever it is evaluated."""
    match node:
        case Load():
            return False
        case Call(op=op, args=(_, divisor)) if op in _DIVISIONS and not isinstance(divisor, Const):
            return False
    return all(map(_is_safe_anywhere, node.children))
