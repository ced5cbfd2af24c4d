"""Build nests of serial loops."""

from __future__ import annotations

from webmlc.core.expr import Expr, Var
from webmlc.loops.ir import For, Stmt


def grid(loops: tuple[tuple[Var, Expr], ...], body: Stmt) -> Stmt:
    """Wrap `body` in nested serial loops, given outermost first."""
    for var, extent in reversed(loops):
        body = For(var, extent, body)
    return body
