"""Walking a loop nest with the interval of every variable in scope, and names that are still free.

In: a statement and the intervals of the symbols around it. Out: the statement with every
expression rewritten by a rule that is told what each variable can be.

    >>> map_scoped(loop, symbol_ranges(function), simplify)   # `for i in range(8)`: i in [0, 7]
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from webmlc.core.bounds import SYMBOL, Interval, Ranges, bounds, iterations
from webmlc.core.expr import Expr, Var
from webmlc.core.simplify import simplify
from webmlc.loops.ir import (
    Block,
    For,
    If,
    Let,
    LoopFunction,
    Seq,
    Stmt,
    Store,
    seq,
    walk_statements,
)

Scope = dict[Var, Interval]


def symbol_ranges(function: LoopFunction) -> Scope:
    """The intervals of a function's symbols: not negative."""
    return dict.fromkeys(function.symbols, SYMBOL)


def loop_range(extent: Expr, ranges: Ranges) -> Interval:
    """The interval of a loop variable of this extent (of a loop that runs at all)."""
    return iterations(extent, ranges)


def map_scoped(root: Stmt, scope: Scope, rule: Callable[[Expr, Ranges], Expr]) -> Stmt:
    """Apply `rule` to every whole expression of a statement without blocks; it sees the intervals
    in scope.
    """
    match root:
        case Seq(statements=statements):
            return seq(*(map_scoped(s, scope, rule) for s in statements))
        case Store(buffer=buffer, indices=indices, value=value):
            return Store(buffer, tuple(rule(i, scope) for i in indices), rule(value, scope))
        case For(var=var, extent=extent, body=body):
            inner = {**scope, var: loop_range(extent, scope)}
            return replace(root, extent=rule(extent, scope), body=map_scoped(body, inner, rule))
        case Let(var=var, value=value, body=body):
            new = rule(value, scope)
            inner = {**scope, var: bounds(new, scope)} if var.dtype.is_integer else scope
            return Let(var, new, map_scoped(body, inner, rule))
        case If(condition=condition, then=then, otherwise=otherwise):
            other = None if otherwise is None else map_scoped(otherwise, scope, rule)
            return If(rule(condition, scope), map_scoped(then, scope, rule), other)
        case Block():
            raise TypeError(f"block {root.name!r} is still there: lower_blocks comes first")
    return root


def simplify_function(function: LoopFunction) -> LoopFunction:
    """Needs no blocks; guarantees every expression in canonical form, decided `If`s and loops of
    extent 1 gone.
    """
    body = map_scoped(function.body, symbol_ranges(function), simplify)
    return replace(function, body=drop_trivial(body))


def drop_trivial(root: Stmt) -> Stmt:
    """Remove conditionals that are decided, serial loops that run once or never, and empty
    statements.
    """
    from webmlc.core.expr import Const, as_int
    from webmlc.loops.ir import ZERO, map_statements, substitute_statement

    nothing = Seq(())

    def rule(stmt: Stmt) -> Stmt | None:
        match stmt:
            case If(condition=Const(value=value), then=then, otherwise=otherwise):
                return then if value else otherwise or nothing
            case If(then=Seq(statements=()), otherwise=None):
                return nothing
            case If(otherwise=Seq(statements=())):
                return replace(stmt, otherwise=None)
            case For(body=Seq(statements=())):
                return nothing
            case Let(body=Seq(statements=())):
                return nothing
            case For(var=var, extent=extent, body=body, kind=kind):
                if as_int(extent) == 0:
                    return nothing
                if as_int(extent) == 1 and kind in ("serial", "unrolled", "vectorized"):
                    return substitute_statement(body, {var: ZERO})
        return None

    return map_statements(root, rule)


class Names:
    """Names that are free in a function, made from a wish: `k`, `k_1`, `k_2`, ..."""

    def __init__(self, taken: Iterable[str]) -> None:
        self.taken = set(taken)
        self.counts: dict[str, int] = {}

    @classmethod
    def of(cls, function: LoopFunction) -> Names:
        """The names that `function` does not use."""
        buffers = (*function.params, *function.allocations)
        taken = {b.name for b in buffers} | {s.name for s in function.symbols}
        for stmt in walk_statements(function.body):
            match stmt:
                case For(var=var) | Let(var=var):
                    taken.add(var.name)
        return cls(taken)

    def fresh(self, wish: str) -> str:
        """A name nobody has; remembers it."""
        name = wish
        count = self.counts.get(wish, 0)
        while name in self.taken:
            count += 1
            name = f"{wish}_{count}"
        self.counts[wish] = count
        self.taken.add(name)
        return name
