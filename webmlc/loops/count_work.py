"""Count the work of a loop function: operations on data, and bytes read and written per buffer.

In: a `LoopFunction` in any form (blocks, or lowered) and the value of each symbol. Out: its `Work`.
A loop counts as often as its extent says. A condition over loop variables counts for the iterations
in which it holds. A condition over data counts as if it always held.

    >>> count_work(matmul, {}).flops  # doctest: +SKIP
    2147483648
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import chain

import numpy as np

from webmlc.core.bounds import Interval, bounds
from webmlc.core.expr import Call, Const, Expr, Var, call, widest
from webmlc.core.rewrite import evaluate, postorder, substitute, variables, walk
from webmlc.core.scalar_operators import SCALAR_OPERATORS
from webmlc.loops.ir import (
    Block,
    Buffer,
    For,
    If,
    Let,
    Load,
    LoopFunction,
    Seq,
    Stmt,
    Store,
    expressions,
    loads_in,
)
from webmlc.loops.write_out_combinations import write_out_combinations
from webmlc.loops.write_out_instructions import write_out_instructions

_MOVES = frozenset({"select", "bit_and", "bit_or", "bit_xor", "bit_not", "shift_left",
                    "shift_right"})  # fmt: skip
"""Scalar operators that do not count as operations."""
_CHUNK = 1 << 20
"""Evaluate conditions for this many points of a domain at once.

It bounds the memory of the numpy arrays, at 8 bytes a point for each loop. Chosen by hand.
"""


@dataclass(frozen=True, slots=True)
class Work:
    """The operations on data, and the bytes read and written in each buffer, including registers.

    An `fma` counts as two operations. Comparisons and selects count as none.
    """

    flops: int
    read: Mapping[Buffer, int]
    written: Mapping[Buffer, int]

    def moved(self, buffer: Buffer) -> int:
        """The bytes read and written in a buffer."""
        return self.read.get(buffer, 0) + self.written.get(buffer, 0)


def buffer_bytes(buffer: Buffer, sizes: Mapping[str, int]) -> int:
    """The bytes of a buffer, with these values of the symbols."""
    elements = math.prod(int(evaluate(dimension, dict(sizes))) for dimension in buffer.shape)
    return elements * buffer.dtype.bytes


def count_work(function: LoopFunction, sizes: Mapping[str, int]) -> Work:
    """Count the work of one run with these values of the symbols. A symbol without a value is 1."""
    values = {symbol.name: sizes.get(symbol.name, 1) for symbol in function.symbols}
    counting = _Counting(values)
    written_out = write_out_instructions(write_out_combinations(function))
    counting.statement(written_out.body, _Domain())
    return Work(counting.flops, counting.read, counting.written)


@dataclass(frozen=True, slots=True)
class _Domain:
    """The loops around a statement, the conditions on them, and how often the statement runs.

    `values` defines lets and block axes by loop variables. `data` are lets that depend on loads.
    `threads` has the loop that each thread axis of a GPU is bound to.
    """

    extents: Mapping[Var, int] = field(default_factory=dict)
    threads: Mapping[str, Var] = field(default_factory=dict)
    conditions: tuple[Expr, ...] = ()
    values: Mapping[Var, Expr] = field(default_factory=dict)
    data: frozenset[Var] = frozenset()
    times: int = 1


@dataclass(slots=True)
class _Counting:
    """The work counted so far."""

    symbols: Mapping[str, int]
    flops: int = 0
    read: Counter[Buffer] = field(default_factory=Counter)
    written: Counter[Buffer] = field(default_factory=Counter)

    def statement(self, stmt: Stmt, domain: _Domain) -> None:
        """Count a statement and the statements inside it."""
        for expr in expressions(stmt):
            self.expression(expr, domain)
        match stmt:
            case Seq(statements=statements):
                for child in statements:
                    self.statement(child, domain)
            case Store(buffer=buffer, indices=indices):
                self.written[buffer] += domain.times * widest(indices) * buffer.dtype.bytes
            case For(body=body):
                self.statement(body, self.inside(stmt, domain))
            case If(condition=condition, then=then, otherwise=otherwise):
                self.statement(then, self.where(domain, condition))
                if otherwise is not None:
                    self.statement(otherwise, self.where(domain, ~condition))
            case Let(var=var, value=value, body=body):
                values = {**domain.values, var: substitute(value, domain.values)}
                data = domain.data | {var} if _reads(value, domain.data) else domain.data
                self.statement(body, replace(domain, values=values, data=data))
            case Block():
                self.block(stmt, domain)

    def block(self, block: Block, domain: _Domain) -> None:
        """Count a block: its axes equal their bindings; `init` runs if all reduce axes are zero."""
        bindings = [substitute(binding, domain.values) for binding in block.bindings]
        values = dict(zip((axis.var for axis in block.axes), bindings, strict=True))
        if block.predicate is not None:
            domain = self.where(domain, block.predicate)
        domain = replace(domain, values={**domain.values, **values})
        if block.init is not None:
            starts = (call("eq", a.var, Const(0)) for a in block.axes if a.kind == "reduce")
            self.statement(block.init, self.where(domain, *starts))
        self.statement(block.body, domain)

    def expression(self, root: Expr, domain: _Domain) -> None:
        """Count the operations and the loads of an expression."""
        self.flops += domain.times * _operations(root, domain.data)
        for node in walk(root):
            if isinstance(node, Load):
                self.read[node.buffer] += domain.times * node.lanes * node.dtype.bytes

    def inside(self, loop: For, domain: _Domain) -> _Domain:
        """The domain of a loop's body. An extent that depends on other loops adds a condition.

        A loop over threads inside a loop over the same threads replaces the outer loop.
        """
        extent = substitute(loop.extent, domain.values)
        ranges = {v: Interval(0, max(0, n - 1)) for v, n in domain.extents.items()}
        ranges |= {v: Interval(n, n) for v in variables(extent) if (n := self.value(v)) is not None}
        iterations = max(0, int(bounds(extent, ranges).high))
        if loop.thread is not None:
            if (thread := domain.threads.get(loop.thread)) is not None:
                values = {**domain.values, loop.var: thread}
                domain = replace(domain, extents={**domain.extents, thread: iterations})
                return replace(domain, values=values, times=self.points(domain))
            domain = replace(domain, threads={**domain.threads, loop.thread: loop.var})
        times = domain.times * iterations
        domain = replace(domain, extents={**domain.extents, loop.var: iterations}, times=times)
        if variables(extent).isdisjoint(domain.extents):
            return domain
        return self.where(domain, call("lt", loop.var, extent))

    def value(self, symbol: Var) -> int | None:
        """The value of a symbol, or `None` for any other variable."""
        return self.symbols.get(symbol.name)

    def where(self, domain: _Domain, *conditions: Expr) -> _Domain:
        """Restrict a domain to the points where all conditions hold."""
        new = [substitute(c, domain.values) for c in chain(*map(_conjuncts, conditions))]
        decidable = [c for c in new if not loads_in(c)]
        domain = replace(domain, conditions=(*domain.conditions, *decidable))
        return replace(domain, times=self.points(domain)) if decidable else domain

    def points(self, domain: _Domain) -> int:
        """Count the points of the loops that fulfil the conditions, group by group."""
        count = 1
        free = dict(domain.extents)
        for group in _connected_groups(domain.conditions, frozenset(domain.extents)):
            used = sorted({v for c in group for v in variables(c) if v in free}, key=str)
            count *= self.count_points(group, {v: free.pop(v) for v in used})
        for extent in free.values():
            count *= extent
        return count

    def count_points(self, conditions: list[Expr], extents: Mapping[Var, int]) -> int:
        """Count the points of a box of loops where all conditions hold."""
        shape = tuple(extents.values())
        size = int(np.prod(shape, dtype=np.int64))
        count = 0
        for start in range(0, size, _CHUNK):
            flat = np.arange(start, min(size, start + _CHUNK))
            points = np.unravel_index(flat, shape) if shape else ()
            values = {**self.symbols}
            values |= {v.name: p for v, p in zip(extents, points, strict=True)}  # type: ignore[misc]
            holds = np.ones(flat.shape, bool)
            for condition in conditions:
                holds &= np.asarray(evaluate(condition, values), bool)
            count += int(holds.sum())
        return count


def _connected_groups(conditions: tuple[Expr, ...], loops: frozenset[Var]) -> list[list[Expr]]:
    """Partition conditions into groups that share no loop."""
    groups: list[tuple[frozenset[Var], list[Expr]]] = []
    for condition in conditions:
        used, group = variables(condition) & loops, [condition]
        disjoint = []
        for group_loops, members in groups:
            if used & group_loops:
                used, group = used | group_loops, members + group
            else:
                disjoint.append((group_loops, members))
        groups = [*disjoint, (used, group)]
    return [group for _, group in groups]


def _conjuncts(condition: Expr) -> list[Expr]:
    match condition:
        case Call(op="bit_and", args=(a, b)):
            return [*_conjuncts(a), *_conjuncts(b)]
    return [condition]


def _reads(root: Expr, data: frozenset[Var]) -> bool:
    return any(isinstance(node, Load) or node in data for node in walk(root))


def _operations(root: Expr, data: frozenset[Var]) -> int:
    """Count the operations on loaded values, which include `data`; index arithmetic is free."""
    total = 0
    reads: dict[Expr, bool] = {}
    for node in postorder(root, _operands, reads):
        is_data = isinstance(node, Load) or node in data
        reads[node] = is_data or any(reads[child] for child in _operands(node))
        match node:
            case Call(op=op) if reads[node] and op not in _MOVES:
                if SCALAR_OPERATORS[op].result == "same":
                    total += (2 if op == "fma" else 1) * node.lanes
    return total


def _operands(node: Expr) -> tuple[Expr, ...]:
    """The operands of a node that are values. The indices of a load are none."""
    return () if isinstance(node, Load) else node.children
