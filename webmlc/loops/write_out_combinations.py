"""Write combinations out as selects among their sums.

Needs: nothing. Guarantees: no `Combination`; an expression that had one is simplified. The
interpreter, the counts of work and the lowering of every target begin with this pass, so that one
definition gives the meaning of a combination.

before                                             after
    C[i] = T.combination([[1, 1], [1, -1]],            C[i] = T.select(i == 0, A[0] + A[1],
                         i, A[0], A[1])                                A[0] - A[1])
"""

from __future__ import annotations

from dataclasses import replace

from webmlc.core.combination import Combination, write_out
from webmlc.core.expr import Expr
from webmlc.core.rewrite import contents, walk
from webmlc.core.simplify import simplify
from webmlc.loops.ir import LoopFunction, Stmt, expressions, map_expressions, walk_statements


def write_out_combinations(function: LoopFunction) -> LoopFunction:
    """Replace every combination of `function` by its meaning."""
    if not combinations(function.body):
        return function
    return replace(function, body=map_expressions(function.body, _write_out))


def _write_out(root: Expr) -> Expr:
    result = write_out(root)
    return root if result is root else simplify(result)


def combinations(root: Stmt) -> list[Combination]:
    """The linear combinations in `root`, in any order, without repetition within an expression."""
    roots = (expr for stmt in walk_statements(root) for expr in expressions(stmt))
    return [
        node
        for expr in roots
        if Combination in contents(expr)
        for node in walk(expr)
        if isinstance(node, Combination)
    ]
