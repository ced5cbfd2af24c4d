"""Name computed sizes, so that every dimension of a kernel is a number or a product of symbols.

needs: a naive function. guarantees: no dimension, extent or divisor holds a sum, a quotient, a
remainder, a minimum or a maximum of symbols. Such a size becomes a symbol of the function, and
`values` defines it. before → after:

    conv: T.Buffer((batch, (height + 1) // 2, 8))    →    conv: T.Buffer((batch, size_0, 8))
    for i in range((height + 1) // 2)                →    for i in range(size_0)

A schedule splits and fuses loops over sizes. There is a short proof of `size // 4 * 4 <= size`, but
no short proof of `(height + 1) // 8 * 4 <= (height + 1) // 2`. `bind_dimensions` restores the
values when the kernel is lowered.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache

from webmlc.core.affine import canonical, from_terms, terms
from webmlc.core.bounds import SYMBOL, bounds
from webmlc.core.dtypes import INDEX
from webmlc.core.expr import Call, Const, Expr, Var, call
from webmlc.core.rewrite import rewrite, substitute, variables
from webmlc.loops.ir import (
    Block,
    Buffer,
    For,
    LoopFunction,
    Stmt,
    expressions,
    loads_in,
    map_expressions,
    map_statements,
    replace_buffers,
    walk_statements,
)

NAMED = frozenset({"floordiv", "floormod", "truncdiv", "truncmod", "min", "max", "abs", "select"})
"""The operators whose results get a name."""


@dataclass(frozen=True, slots=True)
class NamedDimensions:
    """A function, and the values of its additional symbols, each in terms of earlier symbols."""

    function: LoopFunction
    values: tuple[tuple[Var, Expr], ...]


@lru_cache(maxsize=1024)
def name_dimensions(function: LoopFunction) -> NamedDimensions:
    """Name the sizes of `function` that are not products of its symbols."""
    if not function.symbols:
        return NamedDimensions(function, ())
    naming = _Naming(function, set(function.symbols), frozenset(_sizes(function)))
    buffers = {b: naming.buffer(b) for b in (*function.params, *function.allocations)}
    body = naming.statements(function.body)
    if not naming.values:
        return NamedDimensions(function, ())
    body = replace_buffers(body, {old: new for old, new in buffers.items() if old != new})
    named_function = replace(
        function,
        params=tuple(buffers[b] for b in function.params),
        allocations=tuple(buffers[b] for b in function.allocations),
        body=body,
    )
    values = _used_values(named_function, naming)
    symbols = (*function.symbols, *(var for var, _ in values))
    return NamedDimensions(replace(named_function, symbols=symbols), values)


def _used_values(named_function: LoopFunction, naming: _Naming) -> tuple[tuple[Var, Expr], ...]:
    """The values of the names that the function uses; names used only in values are inlined."""
    used = {v for size in _sizes(named_function) for v in variables(size)}
    for stmt in walk_statements(named_function.body):
        used |= {v for e in expressions(stmt) for v in variables(e)}
    inlined: dict[Var, Expr] = {}
    used_values: list[tuple[Var, Expr]] = []
    for value, var in naming.values.items():
        full_value = substitute(value, inlined)
        if var in used:
            used_values.append((var, full_value))
        else:
            inlined[var] = full_value
    return tuple(used_values)


def _sizes(function: LoopFunction) -> Iterator[Expr]:
    """Yield all dimensions and extents, which are never negative."""
    for buffer in (*function.params, *function.allocations):
        yield from buffer.shape
    for stmt in walk_statements(function.body):
        match stmt:
            case For(extent=extent):
                yield extent
            case Block(axes=axes):
                yield from (axis.extent for axis in axes)


@dataclass(slots=True)
class _Naming:
    """The names so far, by value. `all_names` are the names of the whole function."""

    function: LoopFunction
    symbols: set[Var]
    sizes: frozenset[Expr]
    values: dict[Expr, Var] = field(default_factory=dict)
    all_names: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.all_names = self.function.used_names()

    def statements(self, root: Stmt) -> Stmt:
        """Rewrite statements to use names."""

        def extents(stmt: Stmt) -> Stmt | None:
            match stmt:
                case For(extent=extent):
                    return replace(stmt, extent=self.size(extent))
                case Block(axes=axes):
                    named = tuple(replace(a, extent=self.size(a.extent)) for a in axes)
                    return replace(stmt, axes=named)
            return None

        return map_statements(map_expressions(root, self.expression), extents)

    def expression(self, root: Expr) -> Expr:
        """Rewrite an expression to use names."""
        return rewrite(root, self.rule)

    def buffer(self, buffer: Buffer) -> Buffer:
        """Rewrite the shape of a buffer to use names."""
        return replace(buffer, shape=tuple(map(self.size, buffer.shape)))

    def size(self, root: Expr) -> Expr:
        """Rewrite a size to use names. A sum is the common factor of its terms times a name."""
        size = self.expression(root)
        parts = terms(size)
        if len(parts) < 2 or not variables(size) <= self.symbols:
            return size
        common = Counter(next(iter(parts)))
        for term in parts:
            common &= Counter(term)
        factor = math.gcd(*parts.values())
        quotients = {
            tuple((Counter(term) - common).elements()): number // factor
            for term, number in parts.items()
        }
        result: Expr = self.name(canonical(from_terms(quotients)))
        for atom in common.elements():
            result = call("mul", atom, result)
        return result if factor == 1 else call("mul", result, Const(factor))

    def rule(self, node: Expr) -> Expr | None:
        match node:
            case Call(op="floordiv" | "floormod", args=(a, b)) if b.dtype == INDEX:
                if variables(b) <= self.symbols and (size := self.size(b)) != b:
                    node = call(node.op, a, size)
        match node:
            case Call(op=op) if op in NAMED and node.dtype == INDEX:
                used = variables(node)
                if used and used <= self.symbols and self.is_size(node):
                    return self.name(node)
                return node
        return None

    def is_size(self, node: Expr) -> bool:
        """True if the value is never negative, as a symbol must be, and no element of a tensor
        decides it: the value is computed before any statement.
        """
        if loads_in(node):
            return False
        ranges = dict.fromkeys(variables(node), SYMBOL)
        return node in self.sizes or bounds(node, ranges).low >= 0

    def name(self, node: Expr) -> Var:
        if node not in self.values:
            number = len(self.values)
            while f"size_{number}" in self.all_names:
                number += 1
            self.all_names.add(f"size_{number}")
            var = Var(f"size_{number}")
            self.values[node] = var
            self.symbols.add(var)
        return self.values[node]
