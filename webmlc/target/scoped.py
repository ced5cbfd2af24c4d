"""Walk a loop nest with the interval of every variable in scope, and create unused names.

In: a statement and the intervals of the symbols around it. Out: the statement with every expression
rewritten by a rule, which receives the interval of each variable.

    >>> map_scoped(loop, symbol_ranges(function), simplify)   # `for i in range(8)`: i in [0, 7]
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from webmlc.core.bounds import SYMBOL, Interval, Ranges, bounds, iterations
from webmlc.core.expr import Expr, Var
from webmlc.core.rewrite import rewriter
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
"""The interval of each variable in scope."""


def statements_of(root: Stmt) -> Iterator[Stmt]:
    """The statements of a body in order, inside its sequences and lets."""
    match root:
        case Seq(statements=statements):
            for child in statements:
                yield from statements_of(child)
        case Let(body=body):
            yield from statements_of(body)
        case _:
            yield root


def symbol_ranges(function: LoopFunction) -> Scope:
    """The intervals of a function's symbols: they are not negative."""
    return dict.fromkeys(function.symbols, SYMBOL)


def loop_range(extent: Expr, ranges: Ranges) -> Interval:
    """The interval of the variable of a loop of this extent, given that the loop runs at all."""
    return iterations(extent, ranges)


def map_scoped(root: Stmt, scope: Scope, rule: Callable[[Expr, Ranges], Expr]) -> Stmt:
    """Apply `rule` to every whole expression of a statement without blocks. It also receives the
    intervals in scope.
    """
    match root:
        case Seq(statements=statements):
            return seq(*(map_scoped(s, scope, rule) for s in statements))
        case Store(buffer=buffer, indices=indices, value=value, stage=stage):
            new_indices = tuple(rule(i, scope) for i in indices)
            return Store(buffer, new_indices, rule(value, scope), stage)
        case For(var=var, extent=extent, body=body, kind=kind, thread=thread):
            inner = {**scope, var: loop_range(extent, scope)}
            new_extent = rule(extent, scope)
            return For(var, new_extent, map_scoped(body, inner, rule), kind, thread)
        case Let(var=var, value=value, body=body):
            new = rule(value, scope)
            inner = {**scope, var: bounds(new, scope)} if var.dtype.is_integer else scope
            return Let(var, new, map_scoped(body, inner, rule))
        case If(condition=condition, then=then, otherwise=otherwise):
            new_otherwise = None if otherwise is None else map_scoped(otherwise, scope, rule)
            return If(rule(condition, scope), map_scoped(then, scope, rule), new_otherwise)
        case Block():
            raise TypeError(f"block {root.name!r} is still there: lower_blocks comes first")
    return root


def rewriter_in_scope(
    rule: Callable[[Expr, Ranges], Expr | None],
) -> Callable[[Expr, Ranges], Expr]:
    """Return a rule of `map_scoped` that rewrites nodes, as `rewriter` does. A node that several
    expressions of one scope share is rewritten once.
    """
    current: Ranges = {}
    rewrite_node = rewriter(lambda node: rule(node, current))

    def rewrite_root(root: Expr, ranges: Ranges) -> Expr:
        nonlocal current, rewrite_node
        if ranges is not current:
            current = ranges
            rewrite_node = rewriter(lambda node: rule(node, ranges))
        return rewrite_node(root)

    return rewrite_root


def simplify_function(function: LoopFunction) -> LoopFunction:
    """Needs no blocks. Guarantees that every expression is in canonical form, and that no `If` has
    a constant condition and no serial loop has extent 1.
    """
    body = map_scoped(function.body, symbol_ranges(function), simplify)
    return replace(function, body=drop_trivial(body))


def drop_trivial(root: Stmt) -> Stmt:
    """Remove conditionals with constant conditions, serial loops that run once or never, and empty
    statements.
    """
    from webmlc.core.expr import Const, as_int
    from webmlc.loops.ir import map_statements, substitute_statement

    empty = Seq(())

    def rule(stmt: Stmt) -> Stmt | None:
        match stmt:
            case If(condition=Const(value=value), then=then, otherwise=otherwise):
                return then if value else otherwise or empty
            case If(then=Seq(statements=()), otherwise=None):
                return empty
            case If(otherwise=Seq(statements=())):
                return replace(stmt, otherwise=None)
            case For(body=Seq(statements=())):
                return empty
            case Let(body=Seq(statements=())):
                return empty
            case For(var=var, extent=extent, body=body, kind=kind):
                if as_int(extent) == 0:
                    return empty
                if as_int(extent) == 1 and kind in ("serial", "unrolled", "vectorized"):
                    return substitute_statement(body, {var: Const(0)})
        return None

    return map_statements(root, rule)


class Names:
    """Creates names that a function does not use, such as `k`, `k_1`, `k_2`."""

    def __init__(self, used_names: Iterable[str]) -> None:
        self.used_names = set(used_names)
        self.counts: dict[str, int] = {}

    @classmethod
    def of(cls, function: LoopFunction) -> Names:
        """A generator of names that `function` does not use."""
        buffers = (*function.params, *function.allocations)
        used_names = {b.name for b in buffers} | {s.name for s in function.symbols}
        for stmt in walk_statements(function.body):
            match stmt:
                case For(var=var) | Let(var=var):
                    used_names.add(var.name)
        return cls(used_names)

    def fresh(self, preferred: str) -> str:
        """Return an unused name, which counts as used from then on."""
        name = preferred
        count = self.counts.get(preferred, 0)
        while name in self.used_names:
            count += 1
            name = f"{preferred}_{count}"
        self.counts[preferred] = count
        self.used_names.add(name)
        return name
