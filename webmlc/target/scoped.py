"""Walk a loop nest with the interval of every variable in scope, and rename what it accesses.

In: a statement and the intervals of the symbols around it. Out: the statement with every expression
rewritten by a rule, which receives the interval of each variable.

    >>> map_scoped(loop, symbol_ranges(function), simplify)   # `for i in range(8)`: i in [0, 7]
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from webmlc.core.bounds import SYMBOL, Interval, Ranges, bounds, iterations
from webmlc.core.expr import Const, Expr, Var, as_int
from webmlc.core.rewrite import rewriter
from webmlc.core.simplify import simplify
from webmlc.loops.ir import (
    Binder,
    Block,
    Buffer,
    For,
    If,
    Let,
    LoopFunction,
    Seq,
    Stmt,
    Store,
    child_statements,
    map_statements,
    replace_buffers,
    seq,
    substitute_statement,
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


def inside(stmt: Stmt, scope: Scope) -> Scope:
    """The intervals inside a loop that runs at all, or in a let; unchanged for other statements."""
    match stmt:
        case For(var=var, extent=extent):
            return {**scope, var: iterations(extent, scope)}
        case Let(var=var, value=value) if var.dtype.is_integer:
            return {**scope, var: bounds(value, scope)}
    return scope


def walk_scoped(function: LoopFunction) -> Iterator[tuple[Stmt, Scope]]:
    """Yield every statement of a function in any order, with the intervals around it."""
    stack = [(function.body, symbol_ranges(function))]
    while stack:
        stmt, scope = stack.pop()
        yield stmt, scope
        inner = inside(stmt, scope)
        stack.extend((child, inner) for child in child_statements(stmt))


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
            new_body = map_scoped(body, inside(root, scope), rule)
            return For(var, rule(extent, scope), new_body, kind, thread)
        case Let(var=var, value=value, body=body):
            let = Let(var, rule(value, scope), body)
            return replace(let, body=map_scoped(body, inside(let, scope), rule))
        case If(condition=condition, then=then, otherwise=otherwise):
            new_otherwise = None if otherwise is None else map_scoped(otherwise, scope, rule)
            return If(rule(condition, scope), map_scoped(then, scope, rule), new_otherwise)
        case Block():
            raise TypeError(f"block {root.name!r} is still there: lower_blocks comes first")
    return root


def rewriter_in_scope(
    rule: Callable[[Expr, Ranges], Expr | None],
    concerns: Callable[[Expr], object] | None = None,
) -> Callable[[Expr, Ranges], Expr]:
    """Return a rule of `map_scoped` that rewrites nodes, as `rewriter` does. A node that several
    expressions of one scope share is rewritten once.
    """
    current: Ranges = {}
    rewrite_node = rewriter(lambda node: rule(node, current), concerns)

    def rewrite_root(root: Expr, ranges: Ranges) -> Expr:
        nonlocal current, rewrite_node
        if ranges is not current:
            current = ranges
            rewrite_node = rewriter(lambda node: rule(node, ranges), concerns)
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
    empty = Seq(())

    def rule(stmt: Stmt) -> Stmt | None:
        match stmt:
            case If(condition=Const(value=value), then=then, otherwise=otherwise):
                return then if value else otherwise or empty
            case (
                If(then=Seq(statements=()), otherwise=None)
                | For(body=Seq(statements=()))
                | Let(body=Seq(statements=()))
            ):
                return empty
            case If(otherwise=Seq(statements=())):
                return replace(stmt, otherwise=None)
            case For(var=var, extent=extent, body=body, kind=kind):
                if as_int(extent) == 0:
                    return empty
                if as_int(extent) == 1 and kind in ("serial", "unrolled", "vectorized"):
                    return substitute_statement(body, {var: Const(0)})
        return None

    return map_statements(root, rule)


Item = Stmt | tuple[Var, Expr]
"""A statement, or a let whose body is all the items after it."""


def split_lets(stmt: Stmt) -> list[Item]:
    """The statements of a body, with its lets as items of the same list."""
    match stmt:
        case Seq(statements=statements):
            return [item for s in statements for item in split_lets(s)]
        case Let(var=var, value=value, body=body):
            return [(var, value), *split_lets(body)]
    return [stmt]


def join_lets(items: Sequence[Item]) -> Stmt:
    """The statement that consists of these items: the inverse of `split_lets`."""
    tail: list[Stmt] = []
    for item in reversed(items):
        if isinstance(item, tuple):
            tail = [Let(item[0], item[1], seq(*reversed(tail)))]
        else:
            tail.append(item)
    return seq(*reversed(tail))


def replace_all_buffers(
    function: LoopFunction, body: Stmt, new: Callable[[Buffer], Buffer]
) -> LoopFunction:
    """The function with another body, and other forms of all its buffers."""
    buffers = {buffer: new(buffer) for buffer in (*function.params, *function.allocations)}
    return replace(
        function,
        params=tuple(buffers[b] for b in function.params),
        allocations=tuple(buffers[b] for b in function.allocations),
        body=replace_buffers(body, buffers),
    )


def rename_variables(root: Stmt, new: Mapping[Var, Var]) -> Stmt:
    """Rename the variables that loops and lets bind."""

    def rule(stmt: Stmt) -> Stmt | None:
        return replace(stmt, var=new[stmt.var]) if isinstance(stmt, Binder) else None

    return substitute_statement(map_statements(root, rule), new)


class Names:
    """Creates names that a function does not use, such as `k`, `k_1`, `k_2`."""

    def __init__(self, used_names: Iterable[str]) -> None:
        self.used_names = set(used_names)
        self.counts: dict[str, int] = {}

    @classmethod
    def of(cls, function: LoopFunction) -> Names:
        """A generator of names that `function` does not use."""
        return cls(function.used_names())

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
